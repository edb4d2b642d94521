"""The schema of a model is a contract: the next version under its alias answers all that a version answers.

Two versions are compared when an alias is about to move, in the transaction that moves it. Versions do not
change, so the comparison stays valid until then.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

from app.domain.entities import Json, ModelVersion
from app.domain.errors import Conflict, InputFault
from app.store.unit_of_work import Store, UnitOfWork
from core.packed import PackedLabels
from core.packed.encoder import Encoder
from core.packed.row_schema import RowSchema, SchemaChange, schema_changes

SCHEMA_CHANGE: Final = "schema_change"
"""The code of a move, of a warning and of a reason."""
_MOST_CLASSES: Final = 20
"""Most classes that are listed as vanished."""
_MOST_FAULTS: Final = 20
_SHOWN: Final = 3
_FIELDS: Final = {"class_removed": "classes.", "form_refused": ""}


def row_schema(uow: UnitOfWork, version: ModelVersion) -> RowSchema:
    """The rows that a version answers. Raises Unavailable if its encoder is damaged."""
    if version.encoder_digest is not None:
        return RowSchema.of_encoder(Encoder.from_bytes(uow.blobs.read(version.encoder_digest)))
    inputs = version.inputs
    names: Sequence[str] | None = inputs.get("columns")
    if names is not None and len({*names}) != version.columns:
        names = None
    return RowSchema.of_numbers(version.columns, names, inputs.get("label_column"), inputs.get("index_base"))


def changes_between(uow: UnitOfWork, before: ModelVersion, after: ModelVersion) -> list[SchemaChange]:
    """What ``before`` answers and ``after`` refuses: forms of rows, columns, then the first classes."""
    if before.version == after.version:
        return []
    lost = (
        SchemaChange("class_removed", label, f"Class {label!r:.100} is not found any more.")
        for label in _lost_classes(uow, before, after)
    )
    same_rows = before.encoder_digest is not None and before.encoder_digest == after.encoder_digest
    rows = [] if same_rows else schema_changes(row_schema(uow, before), row_schema(uow, after))
    return [*rows, *lost]


@dataclass(frozen=True, slots=True)
class ComparedSchemas:
    """The queries of two versions, compared. before, after: number of columns that they use.

    lines: differences, each with whether the second version refuses something that the first one answers.
    """

    before: int | None
    after: int | None
    lines: Sequence[tuple[str, bool]]


def compare_schemas(store: Store, before: ModelVersion, after: ModelVersion) -> ComparedSchemas:
    """The differences between the queries that two versions answer."""
    with store.read() as uow:
        old, new = row_schema(uow, before), row_schema(uow, after)
        changes = changes_between(uow, before, after)
    lines = [(_line(change), True) for change in changes]
    named = {change.name for change in changes}
    names = old.columns or {}, new.columns or {}
    lines += [(f"+ {name} (may be missing)", False) for name in names[1] if name not in {*names[0], *named}]
    lines += [
        (f"− {name} (not used any more)", False) for name in names[0] if name not in {*names[1], *named}
    ]
    return ComparedSchemas(old.used, new.used, lines)


def _line(change: SchemaChange) -> str:
    match change.code:
        case "column_required":
            return f"+ {change.name} (required)"
        case "column_removed":
            return f"− {change.name} (refused)"
        case _:
            return change.message


def require_same_schema(uow: UnitOfWork, before: ModelVersion, after: ModelVersion) -> None:
    """Raise Conflict listing what ``before`` answers and ``after`` refuses, if there is anything."""
    changes = changes_between(uow, before, after)
    if not changes:
        return
    text = (
        f"{refusals(before, after, changes)} Nothing was moved. Train a version that takes them (a job for"
        " the model keeps its columns unless it says like=none), or move the alias nevertheless:"
        " allow_schema_change=true (--allow-schema-change)."
    )
    faults = [
        InputFault(
            f"{_FIELDS.get(change.code, 'columns.')}{change.name}"[:200],
            change.code,
            change.message,
            name=change.name if change.code not in _FIELDS else None,
        )
        for change in changes[:_MOST_FAULTS]
    ]
    raise Conflict(text, code=SCHEMA_CHANGE, faults=faults)


def refusals(before: ModelVersion, after: ModelVersion, changes: Sequence[SchemaChange]) -> str:
    """Sentences about what a version refuses that another one answers."""
    shown = " ".join(change.message for change in changes[:_SHOWN])
    more = f" And {len(changes) - _SHOWN} more." if len(changes) > _SHOWN else ""
    return (
        f"Version {after.version} of model {after.model!r} refuses questions that version {before.version}"
        f" answers. {shown}{more}"
    )


def noted(changes: Sequence[SchemaChange]) -> Json:
    """Changes as records of jobs and of the audit log have them."""
    listed = [{"code": one.code, "name": one.name, "message": one.message} for one in changes[:_MOST_FAULTS]]
    return {"changes": listed, "count": len(changes)}


def _lost_classes(uow: UnitOfWork, before: ModelVersion, after: ModelVersion) -> Sequence[str]:
    """The first classes that one version answers for and another one does not."""
    if before.job_id is not None and after.job_id is not None:
        sides = (before.job_id, before.method), (after.job_id, after.method)
        return uow.students.lost_labels(*sides, limit=_MOST_CLASSES)
    if before.class_table is not None and before.class_table == after.class_table:
        return ()
    kept = {*_classes(uow, after)}
    return [*islice((label for label in _classes(uow, before) if label not in kept), _MOST_CLASSES)]


def _classes(uow: UnitOfWork, version: ModelVersion) -> Collection[str]:
    """The classes that a version lists."""
    if version.class_table is None:
        return version.classes
    return PackedLabels.from_bytes(uow.blobs.read(version.class_table))
