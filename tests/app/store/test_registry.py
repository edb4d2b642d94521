"""The log of registry changes: complete, ordered, bounded, and honest about what it does not have."""

from __future__ import annotations

import threading

import pytest
import sqlalchemy as sa

from app.domain.errors import NotFound
from app.services.models import resolve, resolve_all
from app.store.repositories import registry as registry_module
from app.store.repositories.registry import Changed
from app.store.tables import registry_changes, registry_clock
from app.store.unit_of_work import Store
from tests.system.published import linear_student, linear_teacher, publish


def _changes(store: Store, after: int, until: int) -> Changed | None:
    with store.read() as uow:
        return uow.registry.changes(after, until)


def _change(store: Store, *models: str, keys: tuple[str, ...] = ()) -> int:
    with store.begin() as uow:
        for model in models:
            uow.registry.model_changed("default", model)
        for key in keys:
            uow.registry.key_changed(key)
        return uow.registry.revision()


def _named(models: str) -> frozenset[str]:
    return frozenset(f"default/{model}" for model in models)


def test_the_log_names_what_changed_after_a_revision(store: Store) -> None:
    assert _change(store, "a", "b", "a", keys=("key_1",)) == 4
    assert _change(store, "c") == 5
    assert _changes(store, 0, 5) == Changed(_named("abc"), frozenset({"key_1"}))
    assert _changes(store, 3, 4) == Changed(frozenset(), frozenset({"key_1"}))
    assert _changes(store, 5, 5) == Changed(frozenset(), frozenset())


def test_a_log_with_gaps_is_not_believed(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry_module, "KEPT_CHANGES", 3)
    assert _change(store, "a", "b", "c", "d", "e") == 5
    with store.read() as uow:
        kept = uow.connection.execute(sa.select(registry_changes.c.revision)).scalars().all()
    assert sorted(kept) == [3, 4, 5]
    assert _changes(store, 2, 5) == Changed(_named("cde"), frozenset())
    assert _changes(store, 1, 5) is None, "it was shortened"
    assert _changes(store, 7, 5) is None, "the database was restored"
    with store.begin() as uow:
        uow.connection.execute(sa.update(registry_clock).values(revision=6))
    _change(store, "f")
    assert _changes(store, 5, 7) is None
    assert _changes(store, 6, 7) == Changed(_named("f"), frozenset())


def test_an_alias_that_is_deleted_is_a_change_of_its_model(store: Store) -> None:
    publish(store, "a", {"cat": linear_student("cat", [1.0])}, linear_teacher(["cat"], [[1.0]]))
    with store.begin() as uow:
        before = uow.registry.revision()
        uow.models.delete_alias("a", "latest", expected_revision=uow.models.alias_revision("a", "latest"))
        until = uow.registry.revision()
    assert _changes(store, before, until) == Changed(_named("a"), frozenset())


def test_a_reader_beside_writers_misses_no_change(store: Store) -> None:
    names, seen, after = [f"m{number}" for number in range(30)], set[str](), 0
    threads = [threading.Thread(target=_change, args=(store, name)) for name in names]
    for thread in threads:
        thread.start()
    while after < len(names):
        with store.read() as uow:
            until = uow.registry.revision()
            changed = uow.registry.changes(after, until)
        assert changed is not None
        seen |= changed.models
        after = until
    for thread in threads:
        thread.join()
    assert seen == {f"default/{name}" for name in names}


def test_many_references_resolve_as_each_alone(store: Store) -> None:
    students, teacher = {"cat": linear_student("cat", [1.0])}, linear_teacher(["cat"], [[1.0]])
    for model, alias in (("a", "latest"), ("a", None), ("b", None), ("b", None)):
        publish(store, model, students, teacher, alias=alias)
    with store.begin() as uow:
        uow.models.point("a", "old", 1)
    suffixes = ("", "@latest", "@old", "@1", "@2", "@3", "@", "@١", "@0000000001", "@none")
    references = [f"{model}{suffix}" for model in "abc" for suffix in suffixes]
    alone = {}
    with store.read() as uow:
        for reference in references:
            try:
                alone[reference] = resolve(uow.models, reference)
            except NotFound:
                continue
        assert resolve_all(uow.models, references) == alone
    assert [alone[name].version for name in ("a", "a@old", "a@2", "b")] == [1, 1, 2, 2]
