from __future__ import annotations

import dataclasses
import math
import time

import pytest
import sqlalchemy as sa

from app.domain.audit_context import Actor, AuditContext, audit_context
from app.domain.errors import Conflict, InvalidRequest, NotAuthenticated, NotFound
from app.services.audit import list_records
from app.services.keys import KeyRing, all_keys, create_key, note_uses, revoke_key, rotate_key
from app.store.tables import registry_clock
from app.store.unit_of_work import Store


def test_a_key_is_authenticated_by_its_text_which_is_not_stored(store: Store) -> None:
    key, text = create_key(store, "camera", {"query"}, {"faces"})
    ring = KeyRing()
    ring.reload(store)
    assert ring.authenticate(text) == key
    assert all_keys(store) == [key]
    assert text.split("_", 3)[3] not in repr(key)
    assert text.startswith(f"stms_{key.id}_")


def test_two_keys_never_share_a_secret(store: Store) -> None:
    (one, first), (two, second) = (create_key(store, "a", {"train"}) for _ in range(2))
    ring = KeyRing(all_keys(store))
    assert ring.authenticate(first) == one
    assert ring.authenticate(second) == two
    mixed = first[: -len(second.split(two.id + "_")[1])] + second.split(two.id + "_")[1]
    with pytest.raises(NotAuthenticated):
        ring.authenticate(mixed)


def test_a_revoked_key_is_rejected_and_keys_stay_required(store: Store) -> None:
    key, text = create_key(store, "camera", {"admin"})
    revoke_key(store, key.id)
    ring = KeyRing(all_keys(store))
    with pytest.raises(NotAuthenticated) as caught:
        ring.authenticate(text)
    assert caught.value.reason == "revoked_key"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "stms_",
        "Bearer x",
        f"stms_key_{'0' * 24}_{'A' * 43}",
        f"stms_key_{'0' * 24}_{'ä' * 43}",
        "x" * 10**6,
    ],
)
def test_malformed_keys_are_rejected(sqlite_store: Store, text: str) -> None:
    create_key(sqlite_store, "camera", {"query"})
    ring = KeyRing(all_keys(sqlite_store))
    with pytest.raises(NotAuthenticated) as caught:
        ring.authenticate(text)
    assert caught.value.reason == "invalid_key"


def test_revoking_a_key_that_does_not_exist_is_not_found(store: Store) -> None:
    with pytest.raises(NotFound):
        revoke_key(store, "key_none")


@pytest.mark.parametrize(
    ("name", "scopes", "models", "field"),
    [
        (" ", {"query"}, (), "name"),
        ("n" * 101, {"query"}, (), "name"),
        ("a\nb", {"query"}, (), "name"),
        ("camera", set(), (), "scopes"),
        ("camera", {"root"}, (), "scopes"),
        ("camera", {"train"}, {"faces"}, "models"),
        ("camera", {"query"}, {"no name"}, "models"),
    ],
)
def test_invalid_options_of_a_key_are_rejected(
    sqlite_store: Store, name: str, scopes: set[str], models: set[str], field: str
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        create_key(sqlite_store, name, scopes, models)
    assert [fault.field for fault in caught.value.faults] == [field]
    assert all_keys(sqlite_store) == []


def test_a_rotated_key_keeps_its_id_and_its_old_text_is_invalid(store: Store) -> None:
    key, old = create_key(store, "camera", {"query"}, {"faces"}, rate_limit=5.0)
    rotated, new = rotate_key(store, key.id)
    assert new.startswith(f"stms_{key.id}_")
    assert new != old
    assert dataclasses.replace(rotated, digest=key.digest, rotated_at=None) == key
    ring = KeyRing(all_keys(store))
    assert ring.authenticate(new) == rotated
    with pytest.raises(NotAuthenticated) as caught:
        ring.authenticate(old)
    assert caught.value.reason == "invalid_key"


def test_during_an_overlap_exactly_two_texts_are_valid(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    key, first = create_key(store, "camera", {"query"})
    _, second = rotate_key(store, key.id, 100.0)
    ring = KeyRing(all_keys(store))
    assert [ring.recognise(text)[1] for text in (first, second)][1] == math.inf
    assert 0 < ring.recognise(first)[1] - time.time() <= 100
    rotated, third = rotate_key(store, key.id, 100.0)
    ring.reload(store)
    for text in (second, third):
        assert ring.authenticate(text) == rotated
    with pytest.raises(NotAuthenticated):
        ring.authenticate(first)
    assert rotated.previous_until is not None
    monkeypatch.setattr("time.time", lambda: rotated.previous_until)
    assert ring.authenticate(third) == rotated
    with pytest.raises(NotAuthenticated):
        ring.authenticate(second)


def test_revoking_a_key_invalidates_all_its_texts_permanently(store: Store) -> None:
    key, old = create_key(store, "camera", {"query"})
    _, new = rotate_key(store, key.id, 100.0)
    revoked = revoke_key(store, key.id)
    assert revoke_key(store, key.id) == revoked
    ring = KeyRing(all_keys(store))
    for text in (old, new):
        with pytest.raises(NotAuthenticated):
            ring.authenticate(text)
    with pytest.raises(Conflict):
        rotate_key(store, key.id)
    with pytest.raises(NotFound):
        rotate_key(store, "key_none")


def test_a_key_expires(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    ends = time.time() + 60
    key, text = create_key(store, "camera", {"query"}, expires_at=ends)
    ring = KeyRing(all_keys(store))
    assert ring.recognise(text) == (key, ends)
    monkeypatch.setattr("time.time", lambda: ends)
    with pytest.raises(NotAuthenticated) as caught:
        ring.authenticate(text)
    assert caught.value.reason == "expired_key"
    with pytest.raises(Conflict):
        rotate_key(store, key.id)


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"expires_at": 1.0}, "expires_at"),
        ({"expires_at": math.inf}, "expires_at"),
        ({"rate_limit": -1.0}, "rate_limit"),
        ({"rate_limit": math.nan}, "rate_limit"),
        ({"rate_burst": 0}, "rate_burst"),
        ({"rate_burst": 10**9}, "rate_burst"),
    ],
)
def test_invalid_limits_are_rejected(sqlite_store: Store, given: dict[str, float], field: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        create_key(sqlite_store, "camera", {"query"}, **given)  # type: ignore[arg-type]
    assert [fault.field for fault in caught.value.faults] == [field]


@pytest.mark.parametrize("overlap", [-1.0, 1e9, math.nan])
def test_the_overlap_is_bounded(sqlite_store: Store, overlap: float) -> None:
    key, _ = create_key(sqlite_store, "camera", {"query"})
    with pytest.raises(InvalidRequest) as caught:
        rotate_key(sqlite_store, key.id, overlap)
    assert caught.value.faults[0].field == "overlap_seconds"


def test_last_use_times_only_increase_and_change_no_revision(store: Store) -> None:
    one, two = (create_key(store, name, {"query"})[0] for name in "ab")
    with store.read() as uow:
        before = uow.connection.execute(sa.select(registry_clock.c.revision)).scalar_one()
    note_uses(store, {one.id: 100.0, two.id: 50.0, "key_none": 1.0})
    note_uses(store, {one.id: 90.0, two.id: 60.0})
    note_uses(store, {})
    assert {key.id: key.last_used_at for key in all_keys(store)} == {one.id: 100.0, two.id: 60.0}
    with store.read() as uow:
        assert uow.connection.execute(sa.select(registry_clock.c.revision)).scalar_one() == before


def test_changes_of_keys_are_recorded_with_their_actor(store: Store) -> None:
    with audit_context(AuditContext(Actor("cli", "op"), "r-1", "192.0.2.1")) as context:
        key, text = create_key(store, "camera", {"query"})
        _, other = rotate_key(store, key.id)
        revoke_key(store, key.id)
        revoke_key(store, key.id)
    assert context.recorded == 3
    rows, _ = list_records(store, limit=10, object=key.id)
    assert [row.action for row in rows] == ["key.revoke", "key.rotate", "key.create"]
    assert {(row.actor, row.actor_name, row.request_id, row.address) for row in rows} == {
        ("cli", "op", "r-1", "192.0.2.1")
    }
    for secret in (text, other):
        assert secret[-43:] not in repr(rows)
