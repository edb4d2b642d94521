"""A new job for a model keeps the used columns of its version in production, and their kinds.

They are added to the job's own settings of columns, as far as its data set has other ones, so that the job
can be repeated from its hyper-parameters alone. Differences to the data set alone are in the warnings of the
job.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from app.domain.entities import Dataset, Json, ModelVersion
from app.domain.errors import InputFault, InvalidRequest, NotFound
from app.domain.input_parameters import ColumnParameters, InputParameters
from app.domain.near_names import listed
from app.domain.remote_teacher import RemoteScores
from app.domain.training_spec import LIKE_NOTHING, TrainingSpec
from app.services.schema_changes import SCHEMA_CHANGE, row_schema
from app.store.repositories.models import Models
from app.store.unit_of_work import UnitOfWork
from core.data.schema import Kind, KindSpec
from core.packed.row_schema import RowSchema

PRODUCTION: Final = "production"
"""The alias of the version whose columns a job keeps; without it that is the newest version."""
_MOST_WARNINGS: Final = 20


@dataclass(frozen=True, slots=True)
class _Column:
    """A column of a data set. spec: how its cells are read. gaps: whether there are any."""

    name: str
    spec: KindSpec
    gaps: bool


def keep_columns(
    uow: UnitOfWork, dataset: Dataset, model: str, spec: TrainingSpec
) -> tuple[TrainingSpec, Json]:
    """The specification of a job with the columns of the version that it is like, and the entries of its
    provenance: ``like``, the version, and ``schema_warnings``. The job's own settings of a column take
    precedence.

    Raises InvalidRequest if ``like`` names no version.
    """
    version = _version(uow.models, model, spec)
    if version is None:
        return spec, {}
    reference = f"{version.model}@{version.version}"
    columns, schema = _columns(dataset), row_schema(uow, version)
    noted: Json = {"like": reference}
    spec = spec.model_copy(update={"like": reference})
    is_from_outside = spec.teacher.model is not None or isinstance(spec.teacher.spec, RemoteScores)
    if schema.columns is None or not columns or is_from_outside:
        return spec, noted
    if not any(column.name in schema.columns for column in columns):
        text = f"The data set has no column of {_words(reference)}, so none is kept."
        return spec, noted | {"schema_warnings": [_warning(text)]}
    inputs = spec.inputs or InputParameters()
    said = {name: one.model_copy() for name, one in inputs.columns.items()}
    warnings: list[Json] = []
    for column in columns:
        # Settings for one column turn rows of numbers into records, and these may lack any column.
        refuses = inputs.on_missing == "refuse" or ("schema" not in dataset.summary and not said)
        kept = _kept(column, schema, refuses_gaps=refuses)
        given = said.get(column.name, ColumnParameters())
        if kept.kind not in (None, str(column.spec)) and given.kind is None:
            warnings.append(_warning(_difference(column, str(kept.kind), reference)))
        changes = {
            name: value
            for name, value in kept.model_dump(exclude_unset=True).items()
            if name not in given.model_fields_set
        }
        if changes:
            said[column.name] = given.model_copy(update=changes)
    missing = [name for name in schema.columns if name not in {column.name for column in columns}]
    if missing:
        text = f"The data set lacks columns of {_words(reference)}: {listed(missing)}."
        warnings.insert(0, _warning(text))
    changed: Json = {"columns": said} if said else {}
    if schema.takes_others and "extra" not in inputs.model_fields_set:
        changed["extra"] = "ignore"
    if changed:
        spec = spec.model_copy(update={"inputs": inputs.model_copy(update=changed)})
    return spec, noted | ({"schema_warnings": warnings[:_MOST_WARNINGS]} if warnings else {})


def _version(registry: Models, model: str, spec: TrainingSpec) -> ModelVersion | None:
    """The version that a job is like, or None."""
    if spec.like == LIKE_NOTHING:
        return None
    name, at, wanted = (model if spec.like is None else spec.like).partition("@")
    try:
        if at and wanted.isdigit():
            return registry.version(name, int(wanted))
        if at:
            return registry.version(name, registry.alias(name, wanted).version)
    except NotFound as error:
        raise _unknown(error.message) from error
    present = registry.find_alias(name, PRODUCTION)
    number = registry.newest(name) if present is None else present.version
    if number is None and spec.like is not None:
        raise _unknown(f"There is no model {name!r}.")
    return None if number is None else registry.version(name, number)


def _unknown(text: str) -> InvalidRequest:
    field = "hyperparameters.like"
    return InvalidRequest(text, code="unknown_model", faults=[InputFault(field, "unknown_model", text)])


def _columns(dataset: Dataset) -> list[_Column]:
    """The columns of a data set; empty if they are not all listed by name."""
    summary = dataset.summary
    if "schema" in summary:
        return [
            _Column(one["name"], KindSpec(Kind(one["kind"]), one.get("pattern")), bool(one["gaps"]))
            for one in summary["schema"]
        ]
    names = [one.get("name") for one in summary.get("features", ())]
    if summary.get("sparse") or not all(names) or len({*names}) != dataset.columns:
        return []
    return [_Column(str(name), KindSpec(Kind.NUMBER), gaps=False) for name in names]


def _kept(column: _Column, schema: RowSchema, *, refuses_gaps: bool) -> ColumnParameters:
    """The settings of a column of a data set with which it is as in a schema.

    refuses_gaps: whether a column without gaps would otherwise refuse gaps.
    """
    old = None if schema.columns is None else schema.columns.get(column.name)
    if old is None:
        is_used = column.spec.kind is not Kind.IGNORE
        return ColumnParameters(kind=str(Kind.IGNORE)) if is_used else ColumnParameters()
    said: Json = {}
    if str(old.spec) != str(column.spec) or old.nulls:
        said |= {"kind": str(old.spec)} | ({"nulls": old.nulls} if old.nulls else {})
    if refuses_gaps and not old.required and not column.gaps:
        said["missing"] = "accept"
    return ColumnParameters(**said)


def _difference(column: _Column, kind: str, reference: str) -> str:
    name, alone = f"{column.name!r:.100}", f"by the data set alone it would be {column.spec}"
    if kind == Kind.IGNORE:
        return f"Column {name} is not used, as in {_words(reference)}; {alone}."
    return f"Column {name} is of kind {kind}, as in {_words(reference)}; {alone}."


def _words(reference: str) -> str:
    model, _, number = reference.partition("@")
    return f"version {number} of {model}"


def _warning(text: str) -> Json:
    more = " To train by the data set alone, set like=none (stms train --like none)."
    return {"code": SCHEMA_CHANGE, "message": text + more}
