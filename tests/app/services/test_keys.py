from __future__ import annotations

import dataclasses
import math
import time

import pytest
import sqlalchemy as sa

from app.domain.audit_context import Actor, AuditContext, audit_context
from app.domain.entities import ApiKey
from app.domain.errors import Conflict, InvalidRequest, NotAuthenticated, NotFound, Overloaded, TooLarge
from app.services import keys
from app.services.audit import list_records
from app.services.keys import (
    KeyRing,
    all_keys,
    create_key,
    list_keys,
    note_uses,
    revoke_key,
    rotate_key,
)
from app.settings import Settings
from app.store.repositories.keys import MAX_REMEMBERED, row_bytes
from app.store.tables import registry_clock
from app.store.unit_of_work import Store
from tests.refusals import at_fault, refused_as


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
    with refused_as(NotAuthenticated, "revoked_key"):
        ring.authenticate(text)


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
    with refused_as(NotAuthenticated, "invalid_key"):
        ring.authenticate(text)


def test_revoking_a_key_that_does_not_exist_is_not_found(store: Store) -> None:
    with pytest.raises(NotFound):
        revoke_key(store, "key_none")


@pytest.mark.parametrize(
    ("name", "scopes", "models", "field", "code"),
    [
        (" ", {"query"}, (), "name", "bad_name"),
        ("n" * 101, {"query"}, (), "name", "bad_name"),
        ("a\nb", {"query"}, (), "name", "bad_name"),
        ("camera", set(), (), "scopes", "unknown_scope"),
        ("camera", {"root"}, (), "scopes", "unknown_scope"),
        ("camera", {"train"}, {"faces"}, "models", "models_without_query"),
        ("camera", {"query"}, {"no name"}, "models", "bad_name"),
    ],
)
def test_invalid_options_of_a_key_are_rejected(
    sqlite_store: Store, name: str, scopes: set[str], models: set[str], field: str, code: str
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        create_key(sqlite_store, name, scopes, models)
    assert [(fault.field, fault.code) for fault in caught.value.faults] == [(field, code)]
    assert all_keys(sqlite_store) == []


def test_a_rotated_key_keeps_its_id_and_its_old_text_is_invalid(store: Store) -> None:
    key, old = create_key(store, "camera", {"query"}, {"faces"}, rate_limit=5.0)
    rotated, new = rotate_key(store, key.id)
    assert new.startswith(f"stms_{key.id}_")
    assert new != old
    assert dataclasses.replace(rotated, digest=key.digest, rotated_at=None) == key
    ring = KeyRing(all_keys(store))
    assert ring.authenticate(new) == rotated
    with refused_as(NotAuthenticated, "invalid_key"):
        ring.authenticate(old)


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
    with refused_as(NotAuthenticated, "expired_key"):
        ring.authenticate(text)
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
    with at_fault(InvalidRequest, field="overlap_seconds"):
        rotate_key(sqlite_store, key.id, overlap)


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


def _models(number: int, size: int) -> list[str]:
    return [f"m{place:04d}-" + "x" * (size - 6) for place in range(number)]


def _age(store: Store, key_id: str, **moments: float) -> None:
    with store.begin() as uow:
        uow.keys.change(key_id, **moments)


def test_a_key_that_ended_takes_no_room_in_servers_and_permits_nothing(store: Store) -> None:
    used, text = create_key(store, "used", {"query"}, _models(300, 99))
    expired, _ = create_key(store, "expired", {"query"}, _models(300, 99))
    old, _ = create_key(store, "old", {"train"})
    revoke_key(store, used.id)
    _age(store, expired.id, expires_at=time.time() - 10.0)
    _age(store, old.id, revoked_at=time.time() - 90_000.0)
    with store.read() as uow:
        known, changed = uow.keys.known(), uow.keys.some([used.id, expired.id, old.id])
    assert {key.id for key in known} == {used.id, expired.id}
    assert {key.id for key in changed} == {used.id, expired.id, old.id}, "a server must learn of each change"
    assert {(*key.scopes, *key.models) for key in [*known, *changed]} == {()}
    ring = KeyRing([*all_keys(store)])
    with pytest.raises(NotAuthenticated, match="revoked"):
        ring.authenticate(text)
    assert not ring.known(used.id).models  # type: ignore[union-attr]
    assert ring.known(old.id) is None


def test_servers_forget_keys_that_ended_a_day_ago(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    key, _ = create_key(store, "short", {"query"}, _models(9, 99), expires_at=time.time() + 60.0)
    stays, _ = create_key(store, "stays", {"query"})
    ring, now = KeyRing(all_keys(store)), time.time()
    assert list(ring.sweep()) == []
    monkeypatch.setattr(time, "time", lambda: now + 130.0)
    assert list(ring.sweep()) == [key]
    assert ring.known(key.id) == dataclasses.replace(key, scopes=frozenset(), models=frozenset())
    monkeypatch.setattr(time, "time", lambda: now + 87_000.0)
    ring.sweep()
    assert ring.known(key.id) is None
    assert ring.is_valid(stays.id)


def test_keys_that_are_made_and_revoked_again_and_again_do_not_fill_the_memory_of_servers() -> None:
    ring, now = KeyRing(), time.time()
    models = frozenset(_models(300, 99))
    for number in range(MAX_REMEMBERED + 100):
        key = ApiKey(f"key_{number:024x}", "k", "0" * 64, frozenset({"query"}), models, now)
        ring.update([key])
        ring.update([dataclasses.replace(key, revoked_at=now)])
    assert ring.known(f"key_{0:024x}") is None, "the oldest are forgotten first"
    assert ring.known(key.id) is not None
    assert (len(ring._keys), len(ring._ended)) == (0, MAX_REMEMBERED)


def test_the_models_of_a_key_are_bounded_in_number_and_bytes(sqlite_store: Store) -> None:
    create_key(sqlite_store, "short", {"query"}, _models(1000, 30))
    for models in (_models(1001, 6), _models(1000, 40)):
        with pytest.raises(InvalidRequest) as caught:
            create_key(sqlite_store, "long", {"query"}, models)
        assert [(fault.field, fault.code) for fault in caught.value.faults] == [("models", "too_long")]


def test_a_tenant_makes_only_so_many_keys_in_a_day(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keys, "KEYS_PER_DAY", 3)
    settings = Settings()
    for number in range(3):
        revoke_key(store, create_key(store, f"k{number}", {"query"}, settings=settings)[0].id)
    with refused_as(Overloaded, "keys_per_day"):
        create_key(store, "more", {"query"}, settings=settings)
    create_key(store.of_tenant("other"), "theirs", {"query"}, settings=settings)
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 86_500.0)
    create_key(store, "tomorrow", {"query"}, settings=settings)


def test_the_bytes_of_keys_count_until_the_keys_are_deleted(store: Store) -> None:
    def stored() -> int:
        with store.read() as uow:
            return uow.quotas.used(store.tenant).stored_bytes

    before = stored()
    key, _ = create_key(store, "long", {"query"}, _models(300, 99))
    size = stored() - before
    assert size > 300 * 99
    revoke_key(store, key.id)
    assert stored() == before + size
    with pytest.raises(TooLarge):
        create_key(
            store, "more", {"query"}, _models(300, 99), settings=Settings(quota_stored_bytes=size + 100)
        )
    newer, _ = create_key(store, "newer", {"query"})
    with store.begin() as uow:
        assert uow.keys.delete_ended(time.time()) == 1
    assert stored() == before + row_bytes(newer)


def test_a_page_of_keys_is_bounded_in_bytes(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.store.paging.PAGE_BYTES", 70_000)
    made = [create_key(store, f"k{number}", {"query"}, _models(300, 99))[0] for number in range(5)]
    found, after, has_more = [], None, True
    while has_more:
        page, has_more = list_keys(store, limit=1000, after=after)
        assert 1 <= len(page) <= 2
        found, after = [*found, *page], page[-1].id
    assert found == made
    assert list_keys(store, limit=1000, after=made[-1].id) == ([], False)


def test_every_key_in_use_has_a_cell_of_its_own(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.store.repositories.keys.CELLS", 64)
    made = [create_key(store.of_tenant(f"t{number % 5}"), "k", {"query"})[0] for number in range(64)]
    assert sorted(key.cell for key in made if key.cell is not None) == list(range(64))
    assert create_key(store, "without", {"query"})[0].cell is None
    revoke_key(store.of_all_tenants(), made[7].id)
    with store.begin() as uow:
        uow.keys.release_cells()
    assert create_key(store, "too soon", {"query"})[0].cell is None
    _age(store.of_all_tenants(), made[7].id, revoked_at=time.time() - 200_000.0)
    with store.begin() as uow:
        uow.keys.release_cells()
    assert create_key(store, "later", {"query"})[0].cell == made[7].cell
