"""Versions that are made from another one without their own training, and the jobs that are their records.

A record has rows of the students that differ, and refers to the job that trained the others
(``base_job_id``). If classes have other numbers, it has rows, curves and searches of all students instead.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from app.domain.entities import Job, JobState, Json, ModelVersion, StudentRow, StudentState, new_id
from app.domain.errors import Conflict
from app.services.models import get_version, publish
from app.services.quotas import require_room
from app.services.version_metrics import StudentTotals
from app.settings import Settings
from app.store.repositories.students import StudentKey
from app.store.unit_of_work import Store, UnitOfWork

_CLASSES_PER_PAGE: Final = 2000
_NOT_INHERITED: Final = (
    "warnings",
    "schema_warnings",
    "not_repeated",
    "alias_not_moved",
    "addition",
    "renamed",
    "removed",
)
"""Entries in the provenance of a job that only apply to its own version."""
_INHERITED: Final = ("inputs", "test_part")
"""Entries in the metrics of a version that also apply to versions made from it."""


@dataclass(frozen=True, slots=True)
class Change:
    """The differences of a version that is made from another one.

    students: rows with their new packages, None for a package that is stored already. labels: of all classes,
    in their order. metrics: of the version. said: the event about the change, with its data, which the
    provenance also contains. audited: data of the audit record. teacher: its package, or the digest of one
    that is stored already; None for a version without teacher. kept: further entries of the provenance, which
    versions made from this one also have. is_whole: whether ``students`` are all students of the version;
    curves and traces are then theirs.
    """

    students: Sequence[tuple[StudentRow, bytes | None]]
    labels: Sequence[str]
    metrics: Json
    said: tuple[str, Json]
    audited: Json
    teacher: bytes | str | None
    kept: Json = field(default_factory=dict)
    is_whole: bool = False
    curves: Mapping[StudentKey, bytes] = field(default_factory=dict)
    traces: Mapping[StudentKey, bytes] = field(default_factory=dict)


def trained_version(store: Store, model: str, base: int | str, what: str) -> ModelVersion:
    """The version of a model that ``base`` names. what: the part that cannot be changed in imported versions.

    Raises NotFound, and Conflict for an imported version.
    """
    version = get_version(store, model, base)
    if version.job_id is None:
        where = f"Version {version.version} of model {version.model!r}"
        text = f"{where} was imported; its {what} cannot be changed."
        raise Conflict(text, code="imported_version")
    return version


def publish_change(
    store: Store, settings: Settings, version: ModelVersion, change: Change, created_by: str
) -> ModelVersion:
    """Publish the next version of a model: ``version`` with a change. No alias is moved.

    A succeeded job is stored as its record. Raises NotFound for a version that was deleted meanwhile, and
    Conflict beyond the quota of versions.
    """
    with store.begin() as uow:
        uow.quotas.lock(store.tenant)
        source = uow.jobs.lock(str(version.job_id))
        size = _bytes_of(uow, change)
        teacher = change.teacher
        if isinstance(teacher, bytes):
            teacher, _ = uow.blobs.put([teacher])
        job = dataclasses.replace(
            record_job(source, version, change.said[1] | change.kept, created_by),
            student_bytes=size,
            teacher_digest=teacher,
        )
        if change.is_whole:
            job = dataclasses.replace(job, base_job_id=None)
        uow.jobs.add(job)
        store_changed_students(uow, source, job, change)
        require_room(uow, settings, store.tenant, "versions", size)
        name, said = change.said
        uow.events.append(job.id, name, {"base": version.version, **said})
        return publish_record(uow, job, version, change, alias=None)


def publish_record(
    uow: UnitOfWork, job: Job, version: ModelVersion, change: Change, *, alias: str | None
) -> ModelVersion:
    """Publish the version of a record. version: that it is made of."""
    return publish(
        uow,
        job,
        dataset_digest=version.dataset_digest or "",
        method=version.method,
        classes=change.labels,
        columns=version.columns,
        teacher_digest=job.teacher_digest,
        encoder_digest=version.encoder_digest,
        profile_digest=version.profile_digest,
        metrics=change.metrics
        | {name: version.metrics[name] for name in _INHERITED if name in version.metrics},
        alias=alias,
        facts={"base": version.version, **change.audited},
    )


def record_job(source: Job, version: ModelVersion, said: Json, created_by: str) -> Job:
    """The succeeded job that is the record of a version made from ``version``, whose job is ``source``."""
    now = time.time()
    provenance: Json = {
        name: value for name, value in source.provenance.items() if name not in _NOT_INHERITED
    }
    base: Json = {"model": version.model, "version": version.version, "job_id": source.id}
    return dataclasses.replace(
        source,
        id=new_id("job"),
        state=JobState.SUCCEEDED,
        attempt=0,
        created_at=now,
        created_by=created_by,
        started_at=now,
        finished_at=now,
        error_code=None,
        error_message=None,
        provenance=provenance | {"base": base, **said},
        version=None,
        revision=0,
        student_bytes=0,
        base_job_id=source.base_job_id or source.id,
        addition_digest=None,
        examples_digest=None,
    )


def store_changed_students(uow: UnitOfWork, source: Job, job: Job, change: Change) -> None:
    """Store the students of a record, with their curves: those that differ, and those in which its source
    differs from the job that both refer to.
    """
    rows: dict[StudentKey, StudentRow] = {}
    curves: dict[StudentKey, bytes] = {}
    if job.base_job_id is not None and source.base_job_id is not None:
        rows = {(row.class_index, row.method): row for row in uow.students.own(source.id)}
        curves = uow.students.own_curves(source.id)
    for row, packed in change.students:
        digest = row.digest if packed is None else uow.blobs.put([packed])[0]
        rows[row.class_index, row.method] = dataclasses.replace(row, digest=digest)
    uow.students.save_all([dataclasses.replace(row, job_id=job.id) for row in rows.values()])
    uow.students.keep_curves([*(curves | dict(change.curves)).items()], job.id)
    for (class_index, method), trace in change.traces.items():
        uow.students.keep_trace(job.id, class_index, method, trace)


def totals_of(store: Store, version: ModelVersion, changed: Sequence[StudentRow]) -> StudentTotals:
    """Totals of the students of ``version``, some of them changed or new."""
    new = {(row.class_index, row.method): row for row in changed}
    totals = StudentTotals(version.method)
    for rows in _pages(store, str(version.job_id), version.class_count):
        totals.add([new.pop((row.class_index, row.method), row) for row in rows])
    totals.add(list(new.values()))
    return totals


def _pages(store: Store, job_id: str, count: int) -> Iterator[Sequence[StudentRow]]:
    ended = (StudentState.SUCCEEDED, StudentState.FAILED)
    for first in range(0, count, _CLASSES_PER_PAGE):
        with store.read() as uow:
            yield uow.students.results(job_id, first, first + _CLASSES_PER_PAGE - 1, ended)


def _bytes_of(uow: UnitOfWork, change: Change) -> int:
    stored = {row.digest for row, packed in change.students if packed is None and row.digest is not None}
    sizes = uow.blobs.sizes(sorted(stored))
    return sum(sizes.values()) + sum(len(packed) for _, packed in change.students if packed is not None)
