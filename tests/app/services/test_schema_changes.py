"""An alias moves to a version that refuses what the present one answers only where that is said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.domain.entities import ModelVersion
from app.domain.errors import Conflict
from app.domain.event_text import describe_event
from app.services import models
from app.services.audit import list_records
from app.services.head_import import import_head
from app.services.schema_changes import compare_schemas
from app.settings import Settings
from app.store.blob_cache import BlobCache
from app.store.unit_of_work import Store
from core.data.column_kinds import infer_schema
from core.data.schema import Kind, KindSpec
from core.data.table import NumberCells, Table
from core.encoding.fit import fit_encoder
from core.packed.encoder import Encoder
from tests.refusals import refused_as
from tests.system.published import linear_student, linear_teacher, publish


def passengers(*, with_id: bool) -> Encoder:
    """Of the columns PassengerId and Age, of which the first one may not be used. Age has gaps."""
    numbers = np.arange(40.0)
    ages = np.where(numbers % 4, numbers**2, np.nan)
    table = Table(("PassengerId", "Age"), (NumberCells(numbers**2 + 0.5), NumberCells(ages)))
    said = {} if with_id else {"PassengerId": KindSpec(Kind.IGNORE)}
    return fit_encoder(table, infer_schema(table, said), answers_gaps=False)


def release(
    store: Store, *, with_id: bool = False, classes: str = "ab", alias: str | None = "latest"
) -> ModelVersion:
    encoder = passengers(with_id=with_id)
    rows = np.ones((len(classes), encoder.layout.columns))
    students = {label: linear_student(label, row) for label, row in zip(classes, rows, strict=True)}
    return publish(store, "m", students, linear_teacher(classes, rows), encoder=encoder, alias=alias)


def names(error: Any) -> list[tuple[str, str | None]]:
    return [(fault.code, fault.name) for fault in error.value.faults]


def test_a_move_that_would_refuse_questions_is_refused_by_the_names_of_columns(store: Store):
    release(store)
    release(store, with_id=True, classes="ac", alias=None)
    made = models.point_alias(store, Settings(), "m", "production", 1)
    match = "Column 'PassengerId' is required, and was not used.*'b' is not found.*--allow-schema-change"
    with refused_as(Conflict, "schema_change", match=match) as error:
        models.point_alias(store, Settings(), "m", "production", 2, made.revision)
    assert names(error) == [("column_required", "PassengerId"), ("class_removed", None)]
    assert [fault.field for fault in error.value.faults] == ["columns.PassengerId", "classes.b"]
    assert models.get_alias(store, "m", "production") == made
    moved = models.point_alias(
        store, Settings(), "m", "production", 2, made.revision, allow_schema_change=True
    )
    assert moved.version == 2
    [record, *_] = list_records(store, limit=1, action="alias.move")[0]
    assert [one["name"] for one in record.details["allow_schema_change"]["changes"]] == ["PassengerId", "b"]


def test_the_way_back_is_refused_only_where_it_loses_something(store: Store):
    release(store, with_id=True)
    release(store, alias=None)
    first = models.get_alias(store, "m", "latest")
    moved = models.point_alias(store, Settings(), "m", "latest", 2, first.revision)
    with refused_as(Conflict, "schema_change"):
        models.point_alias(store, Settings(), "m", "latest", 1, moved.revision)
    [record, *_] = list_records(store, limit=1, action="alias.move")[0]
    assert "allow_schema_change" not in record.details


def test_a_publication_that_would_refuse_questions_leaves_its_alias_and_says_why(store: Store):
    release(store)
    version = release(store, with_id=True)
    assert version.version == 2
    assert models.get_alias(store, "m", "latest").version == 1
    with store.read() as uow:
        job = uow.jobs.get(str(version.job_id))
    unmoved = job.provenance["alias_not_moved"]
    assert (unmoved["alias"], unmoved["version"], unmoved["reason"]) == ("latest", 1, "schema_change")
    assert [change["name"] for change in unmoved["changes"]] == ["PassengerId"]
    line = describe_event("alias_not_moved", unmoved)
    assert line == (
        "alias latest stays at version 1: the new version refuses questions that this one answers. Column"
        " 'PassengerId' is required, and was not used."
    )
    [warning] = job.warnings
    assert warning["code"] == "schema_change"
    assert "allow_schema_change=true" in warning["message"]


@pytest.mark.parametrize("alias", [None, "staging"])
def test_without_the_alias_latest_the_version_that_answers_gets_it(store: Store, alias: str | None):
    release(store, alias=alias)
    assert release(store, alias=alias).version == 2
    with store.read() as uow:
        assert models.resolve(uow.models, "m").version == 2
    release(store, with_id=True, alias=alias)
    with store.read() as uow:
        assert models.resolve(uow.models, "m").version == 2
        if alias is not None:
            assert models.resolve(uow.models, "m@staging").version == 2


def test_the_alias_latest_is_deleted_only_where_the_newest_version_answers_the_same(store: Store):
    release(store)
    release(store, with_id=True, alias=None)
    with refused_as(Conflict, "schema_change"):
        models.delete_alias(store, "m", "latest", 1)
    assert models.get_alias(store, "m", "latest").version == 1
    made = models.point_alias(store, Settings(), "m", "other", 1)
    models.delete_alias(store, "m", "other", made.revision)
    models.delete_alias(store, "m", "latest", 1, allow_schema_change=True)
    with store.read() as uow:
        assert models.resolve(uow.models, "m").version == 2


def test_an_import_that_would_refuse_questions_is_refused_before_anything_is_stored(
    store: Store, tmp_path: Path
):
    files = BlobCache(tmp_path / "cache", 2**30)

    def import_(columns: int, classes: list[str], *, allow: bool = False) -> str | None:
        path = tmp_path / "head.npz"
        np.savez(path, weights=np.ones((len(classes), columns)), labels=np.array(classes))
        options: dict[str, Any] = {"limits": Settings(), "allow_schema_change": allow}
        return import_head(store, files, path, model="heads", **options).alias

    assert import_(2, ["a", "b"]) == "latest"
    with refused_as(Conflict, "schema_change", match="A list must have 3 numbers, and had 2") as error:
        import_(3, ["a", "c"])
    assert names(error) == [("form_refused", None), ("class_removed", None)]
    assert [fault.field for fault in error.value.faults] == ["x", "classes.b"]
    assert models.version_numbers(store, "heads") == {1}
    assert import_(3, ["a", "c"], allow=True) == "latest"
    assert import_(3, ["a", "c", "d"]) == "latest"


def test_versions_are_compared_by_the_columns_that_they_use(store: Store):
    old, new = release(store), release(store, with_id=True)
    found = compare_schemas(store, old, new)
    assert (found.before, found.after) == (1, 2)
    assert found.lines == [("+ PassengerId (required)", True)]
    back = compare_schemas(store, new, old)
    assert back.lines == [("− PassengerId (not used any more)", False)]
