"""The rule that nobody listens to the world without keys."""

from __future__ import annotations

import pytest

from app.domain.errors import NotAuthenticated
from app.services.keys import create_key, list_keys, revoke_key
from app.serving import access
from app.serving.access import ANONYMOUS, KeyGate, UnsafeExposure, check_exposure, is_loopback
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


def bearer(text: str) -> list[tuple[bytes, bytes]]:
    return [(b"authorization", b"Bearer " + text.encode())]


def test_a_header_once_found_good_is_not_checked_again(sqlite_store: Store, monkeypatch: pytest.MonkeyPatch):
    key, text = create_key(sqlite_store, "one", {"query"})
    gate = KeyGate(Settings())
    gate.replace(list_keys(sqlite_store))
    assert gate.caller(bearer(text)) == key
    monkeypatch.setattr(gate._ring, "authenticate", lambda _text: pytest.fail("checked again"))
    assert gate.caller(bearer(text)) == key


def test_a_remembered_header_is_forgotten_with_its_key(sqlite_store: Store):
    key, text = create_key(sqlite_store, "one", {"query"})
    create_key(sqlite_store, "two", {"query"})
    gate = KeyGate(Settings())
    gate.replace(list_keys(sqlite_store))
    assert gate.caller(bearer(text)) == key
    revoke_key(sqlite_store, key.id)
    assert gate.caller(bearer(text)) == key, "as before until the next snapshot"
    gate.replace(list_keys(sqlite_store))
    with pytest.raises(NotAuthenticated):
        gate.caller(bearer(text))


def test_only_good_and_short_headers_are_remembered_and_not_too_many(
    sqlite_store: Store, monkeypatch: pytest.MonkeyPatch
):
    _, text = create_key(sqlite_store, "one", {"query"})
    _, other = create_key(sqlite_store, "two", {"query"})
    gate = KeyGate(Settings())
    gate.replace(list_keys(sqlite_store))
    for bad in (bearer(text[:-1] + "!"), bearer("x"), [(b"authorization", text.encode())]):
        with pytest.raises(NotAuthenticated):
            gate.caller(bad)
    gate.caller(bearer(" " * 300 + text))
    gate.caller([(b"x-api-key", text.encode())])
    assert gate._good == {}
    monkeypatch.setattr(access, "_MAX_REMEMBERED", 1)
    gate.caller(bearer(text))
    gate.caller(bearer(other))
    assert len(gate._good) == 1


def test_the_nameless_caller_of_an_open_server_is_not_remembered(sqlite_store: Store):
    gate = KeyGate(Settings())
    gate.replace([])
    assert gate.caller(bearer("stms_whatever")) is ANONYMOUS
    create_key(sqlite_store, "one", {"query"})
    gate.replace(list_keys(sqlite_store))
    with pytest.raises(NotAuthenticated):
        gate.caller(bearer("stms_whatever"))
