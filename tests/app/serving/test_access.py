"""The rule that nobody listens to the world without keys."""

from __future__ import annotations

import pytest

from app.services.keys import create_key, revoke_key
from app.serving.access import UnsafeExposure, check_exposure, is_loopback
from app.settings import Settings
from app.store.unit_of_work import Store


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", True),
        ("127.3.2.1", True),
        ("::1", True),
        ("[::1]", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("192.168.0.7", False),
        ("example.org", False),
        ("", False),
    ],
)
def test_loopback_is_recognised(host: str, expected: bool):
    assert is_loopback(host) is expected


def test_listening_to_the_world_needs_a_living_key(sqlite_store: Store):
    world = Settings(host="0.0.0.0")
    check_exposure(Settings(), sqlite_store)
    with pytest.raises(UnsafeExposure, match="stms keys create"):
        check_exposure(world, sqlite_store)
    key, _ = create_key(sqlite_store, "root", {"admin"})
    check_exposure(world, sqlite_store)
    with pytest.raises(UnsafeExposure, match="STMS_REQUIRE_KEYS"):
        check_exposure(Settings(host="0.0.0.0", require_keys=False), sqlite_store)
    revoke_key(sqlite_store, key.id)
    with pytest.raises(UnsafeExposure):
        check_exposure(world, sqlite_store)
