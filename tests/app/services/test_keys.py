from __future__ import annotations

import dataclasses

import pytest

from app.domain.entities import ApiKey
from app.domain.errors import InvalidRequest, NotAuthenticated, NotFound
from app.services.keys import KeyRing, create_key, list_keys, revoke_key
from app.store.unit_of_work import Store


def test_a_key_is_recognised_by_its_text_which_is_stored_nowhere(store: Store) -> None:
    key, text = create_key(store, "camera", {"query"}, {"faces"})
    ring = KeyRing()
    ring.reload(store)
    assert ring.authenticate(text) == key
    assert list_keys(store) == [key]
    assert text.rsplit("_", 1)[1] not in repr(key)
    assert text.startswith(f"stms_{key.id}_")


def test_two_keys_never_share_a_secret(store: Store) -> None:
    (one, first), (two, second) = (create_key(store, "a", {"train"}) for _ in range(2))
    ring = KeyRing(list_keys(store))
    assert ring.authenticate(first) == one
    assert ring.authenticate(second) == two
    mixed = first[: -len(second.split(two.id + "_")[1])] + second.split(two.id + "_")[1]
    with pytest.raises(NotAuthenticated):
        ring.authenticate(mixed)


def test_a_revoked_key_opens_nothing_but_keeps_the_doors_shut(store: Store) -> None:
    key, text = create_key(store, "camera", {"admin"})
    revoke_key(store, key.id)
    ring = KeyRing(list_keys(store))
    with pytest.raises(NotAuthenticated) as caught:
        ring.authenticate(text)
    assert caught.value.reason == "revoked_key"
    assert not ring.empty
    assert KeyRing().empty


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
def test_what_is_no_key_is_refused(sqlite_store: Store, text: str) -> None:
    create_key(sqlite_store, "camera", {"query"})
    ring = KeyRing(list_keys(sqlite_store))
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
def test_a_key_that_makes_no_sense_is_refused(
    sqlite_store: Store, name: str, scopes: set[str], models: set[str], field: str
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        create_key(sqlite_store, name, scopes, models)
    assert [fault.field for fault in caught.value.faults] == [field]
    assert list_keys(sqlite_store) == []


@pytest.mark.parametrize(
    ("scopes", "models", "allowed"),
    [
        ({"admin"}, set(), {"admin", "train", "query a", "query b"}),
        ({"train"}, set(), {"train", "query a", "query b"}),
        ({"query"}, set(), {"query a", "query b"}),
        ({"query"}, {"a"}, {"query a"}),
    ],
)
def test_scopes_contain_each_other(scopes: set[str], models: set[str], allowed: set[str]) -> None:
    key = ApiKey("key_1", "k", "0" * 64, frozenset(scopes), frozenset(models), 1.0)
    asked = {
        "admin": ("admin", None),
        "train": ("train", None),
        "query a": ("query", "a"),
        "query b": ("query", "b"),
    }
    assert {what for what, (scope, model) in asked.items() if key.allows(scope, model)} == allowed
    assert dataclasses.replace(key, models=frozenset()).allows("query")
