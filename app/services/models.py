"""Use cases of the registry: published versions, their aliases, and the packed students behind them."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from math import fsum
from typing import Final, TypeVar

from app.domain.entities import Alias, Job, Json, ModelSummary, ModelVersion, StudentRow, StudentState
from app.domain.errors import (
    Conflict,
    NotFound,
    PreconditionRequired,
    Unavailable,
)
from app.domain.names import check_alias
from app.store.blob_cache import BlobCache, open_blob
from app.store.unit_of_work import Store, UnitOfWork
from core.errors import InvalidPackage
from core.packed import PackedHead, PackedLabels

DEFAULT_ALIAS = "latest"

LISTED_CLASSES = 1000
"""Versions with at most this many labels list them; those of others are in a table, read on demand."""

Result = TypeVar("Result")

_SCORES: Final = ("accuracy", "f1", "auc")


def list_models(store: Store, *, limit: int, after: str | None = None) -> tuple[Sequence[ModelSummary], bool]:
    """Models with names after ``after``, in order of name; and whether more follow."""
    with store.read() as uow:
        return uow.models.summaries(limit=limit, after=after)


def get_model(store: Store, model: str) -> tuple[Sequence[ModelVersion], Sequence[Alias]]:
    """All versions of a model, newest first, and its aliases. Raises NotFound."""
    with store.read() as uow:
        return uow.models.versions(model), uow.models.aliases_of(model)


def get_version(store: Store, model: str, version: int | str) -> ModelVersion:
    """One version by its number or an alias. Raises NotFound."""
    with store.read() as uow:
        return _named(uow, model, str(version))


def get_alias(store: Store, model: str, alias: str) -> Alias:
    """One alias. Raises NotFound."""
    with store.read() as uow:
        return uow.models.alias(model, alias)


def resolve(uow: UnitOfWork, reference: str) -> ModelVersion:
    """The version that ``name``, ``name@alias`` or ``name@3`` refers to.

    A bare name means its alias "latest" or, without that alias, its newest version. Raises NotFound.
    """
    model, at, suffix = reference.partition("@")
    if at:
        return _named(uow, model, suffix)
    try:
        return _named(uow, model, DEFAULT_ALIAS)
    except NotFound:
        newest = uow.models.newest(model)
        if newest is None:
            raise NotFound(f"There is no model {model!r}.", code="model_not_found") from None
        return uow.models.version(model, newest)


def _named(uow: UnitOfWork, model: str, name: str) -> ModelVersion:
    if name.isascii() and name.isdigit() and len(name) < 10:
        return uow.models.version(model, int(name))
    return uow.models.version(model, uow.models.alias(model, name).version)


def point_alias(
    store: Store, model: str, alias: str, version: int, expected_revision: int | None = None
) -> Alias:
    """Create an alias, or move it to another version of its model.

    expected_revision: the revision that the caller read; 0 to create a new alias; None for either, which an
    existing alias does not allow. Raises InvalidRequest (bad name), NotFound, PreconditionFailed, and
    PreconditionRequired when the alias exists and no revision is expected.
    """
    check_alias(alias)
    with store.begin() as uow:
        uow.models.version(model, version)
        if expected_revision is None and any(known.alias == alias for known in uow.models.aliases_of(model)):
            raise PreconditionRequired(
                f"Alias {alias!r} exists: the revision you read is required.", code="if_match_required"
            )
        uow.audit.append("alias.move", f"{model}@{alias}", details={"version": version})
        return uow.models.point(model, alias, version, expected_revision=expected_revision or 0)


def delete_alias(store: Store, model: str, alias: str, expected_revision: int | None) -> None:
    """Delete an alias.

    expected_revision: the revision that the caller read. Raises NotFound, PreconditionFailed, and
    PreconditionRequired when it is None.
    """
    if expected_revision is None:
        raise PreconditionRequired(
            "The revision of the alias that you read is required.", code="if_match_required"
        )
    with store.begin() as uow:
        uow.models.delete_alias(model, alias, expected_revision=expected_revision)
        uow.audit.append("alias.delete", f"{model}@{alias}")


def delete_version(store: Store, model: str, version: int) -> None:
    """Delete a version. Its job and data set stay, and its number is not used again.

    Raises NotFound, and Conflict while an alias points to it or an unfinished job uses it as its teacher.
    """
    with store.begin() as uow:
        if uow.retention.is_teacher_in_use(f"{model}@{version}"):
            text = (
                f"A training job that has not ended uses version {version} of model {model!r} as its teacher."
            )
            raise Conflict(text, code="version_in_use")
        deleted = uow.models.delete(model, version)
        if deleted.job_id is not None:
            uow.jobs.change(deleted.job_id, version=None)
        uow.audit.append("version.delete", f"{model}@{version}")


def publish(
    uow: UnitOfWork,
    job: Job,
    *,
    dataset_digest: str,
    method: str,
    classes: Sequence[str],
    columns: int,
    teacher_digest: str,
    metrics: Json,
    alias: str | None = DEFAULT_ALIAS,
) -> ModelVersion:
    """Publish the results of a job as the next version of its model, and move the alias to it.

    A job has at most one version. Another call, for example after a crash or a retry, returns the existing
    one and moves no alias. The number of the version is stored in the job.
    """
    number = uow.models.next_version(job.model)
    known = uow.models.of_job(job.id)
    if known is not None:
        return known
    class_table = None
    if len(classes) > LISTED_CLASSES:
        class_table, _ = uow.blobs.put([PackedLabels.of(classes).to_bytes()])
    version = ModelVersion(
        model=job.model,
        version=number,
        job_id=job.id,
        dataset_digest=dataset_digest,
        method=method,
        classes=() if class_table else tuple(classes),
        columns=columns,
        teacher_digest=teacher_digest,
        metrics=metrics,
        created_at=time.time(),
        class_count=len(classes),
        class_table=class_table,
    )
    uow.models.publish(version)
    uow.audit.append("model.publish", f"{version.model}@{number}", details={"job": job.id, "alias": alias})
    if alias is not None:
        uow.models.point(job.model, alias, version.version)
    uow.jobs.change(job.id, version=version.version)
    return version


def version_metrics(rows: Sequence[StudentRow], served_method: str) -> Json:
    """Metrics of a version: mean scores by method, and the number of calibrated students by kind."""
    calibrations = Counter(
        row.metrics["calibration"]
        for row in rows
        if row.method == served_method and "calibration" in row.metrics
    )
    return {"means": _mean_scores(rows)} | ({"calibration": dict(calibrations)} if calibrations else {})


def student_digest(store: Store, files: BlobCache, version: ModelVersion, label: str) -> str:
    """Digest of the packed student of a class of a trained version.

    Raises NotFound: code ``class_not_found`` if the version has no such class, ``student_not_found`` if the
    class has no trained student.
    """
    with store.read() as uow:
        row = uow.students.served(str(version.job_id), label, version.method)
        if row is not None and row.digest is not None:
            return row.digest
    if not _has_class(store, files, version, label):
        raise unknown_class(version, label)
    raise NotFound(f"{_where(version)} has no trained student for class {label!r}.", code="student_not_found")


def labels_of(store: Store, files: BlobCache, version: ModelVersion) -> PackedLabels:
    """The class table of a version that has one; labels are read on demand.

    Raises InvalidPackage and Unavailable.
    """
    file = open_blob(store, files, str(version.class_table))
    return PackedLabels.from_bytes(file.data, read=file.view)


def open_head(store: Store, files: BlobCache, version: ModelVersion) -> PackedHead:
    """The head of an imported version, read on demand. Raises InvalidPackage and Unavailable."""
    labels = labels_of(store, files, version)
    file = open_blob(store, files, version.teacher_digest)
    return PackedHead.from_bytes(file.data, labels, read=file.read)


def list_classes(
    store: Store, files: BlobCache, version: ModelVersion, *, limit: int, after: int = -1
) -> tuple[Sequence[tuple[int, str]], bool]:
    """(number, label) of the first ``limit`` classes after number ``after``; and whether more follow."""
    rows = range(after + 1, min(after + 1 + limit, version.class_count))

    def named(labels: Sequence[str]) -> list[tuple[int, str]]:
        return [(row, labels[row]) for row in rows]

    listed = (
        named(version.classes) if version.class_table is None else _from_table(store, files, version, named)
    )
    return listed, rows.stop < version.class_count


def _has_class(store: Store, files: BlobCache, version: ModelVersion, label: str) -> bool:
    if version.class_table is None:
        return label in version.classes
    return _from_table(store, files, version, lambda labels: labels.find(label) is not None)


def unknown_classes(
    store: Store, files: BlobCache, version: ModelVersion, labels: Sequence[str]
) -> list[str]:
    """Those of ``labels`` that a version with a class table does not have."""

    def missing(known: PackedLabels) -> list[str]:
        return [label for label in labels if known.find(label) is None]

    return _from_table(store, files, version, missing)


def _from_table(
    store: Store, files: BlobCache, version: ModelVersion, use: Callable[[PackedLabels], Result]
) -> Result:
    """The result of ``use`` on the class table. Raises Unavailable."""
    try:
        return files.with_refetch(lambda: use(labels_of(store, files, version)), str(version.class_table))
    except InvalidPackage as error:
        text = f"The class table of {_where(version)} is damaged in the database."
        raise Unavailable(text, code="blob_damaged") from error


def unknown_class(version: ModelVersion, label: str) -> NotFound:
    """The error for a class that a version does not have."""
    return NotFound(f"{_where(version)} has no class {label!r}.", code="class_not_found")


def _where(version: ModelVersion) -> str:
    return f"Version {version.version} of model {version.model!r}"


def _mean_scores(rows: Sequence[StudentRow]) -> dict[str, dict[str, float | int | None]]:
    """Mean of each score by method, over the classes where it is defined, with the number of classes."""
    by_method: dict[str, list[StudentRow]] = defaultdict(list)
    for row in rows:
        if row.state is StudentState.SUCCEEDED and any(name in row.metrics for name in _SCORES):
            by_method[row.method].append(row)
    means = {}
    for method, group in by_method.items():
        scores = {name: _mean(row.metrics.get(name) for row in group) for name in _SCORES}
        brier = _mean(row.metrics.get("brier") for row in group)
        means[method] = scores | ({} if brier is None else {"brier": brier}) | {"classes": len(group)}
    return means


def _mean(values: Iterable[float | None]) -> float | None:
    defined = [value for value in values if value is not None]
    return fsum(defined) / len(defined) if defined else None
