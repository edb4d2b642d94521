"""Use cases of thresholds: read curves, choose thresholds, publish a version with others."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from app.domain.curves import Curve
from app.domain.entities import Job, JobState, Json, ModelVersion, StudentRow, StudentState, new_id
from app.domain.errors import Conflict, InputFault, InvalidRequest, NotFound
from app.domain.threshold_rules import (
    ALL_OTHERS,
    ChosenThreshold,
    ChosenThresholds,
    ThresholdRule,
    VersionThreshold,
    chosen,
)
from app.services.models import (
    find_unknown_class,
    get_model,
    get_version,
    list_classes,
    open_student,
    publish,
)
from app.services.quotas import require_room
from app.services.version_metrics import StudentTotals
from app.settings import Settings
from app.store.blob_cache import BlobCache
from app.store.unit_of_work import Store, UnitOfWork
from core.errors import InvalidProblem

MAX_THRESHOLDS: Final = 1000
"""Most thresholds that one publication changes."""
_AUDITED: Final = 20
"""Thresholds that the audit record names; the provenance of the new version's job has all."""
_CLASSES_PER_PAGE: Final = 2000
_BY_THRESHOLD: Final = ("guard", "false_positives", "own_rows", "weak", "yes_by_class", "beside_teacher")
"""Metrics that were found at another threshold and are not known at a new one."""
_UNKNOWN: Final = "It was not measured at this threshold, which is not a point of the curve."


def student_curve(store: Store, job_id: str, class_index: int, method: str) -> Curve:
    """What a student, or the teacher, would answer at other thresholds.

    Raises NotFound if the job does not exist or has no curve of this student: it may have no test part, have
    very many classes, or be of a bundle.
    """
    curve = find_curve(store, job_id, class_index, method)
    if curve is None:
        message = f"Job {job_id} has no curve of {method!r} for class number {class_index}."
        raise NotFound(message, code="curve_not_found")
    return curve


def find_curve(store: Store, job_id: str, class_index: int, method: str) -> Curve | None:
    """As `student_curve`; None without a curve."""
    with store.read() as uow:
        uow.jobs.get(job_id)
        stored = uow.students.curve(job_id, class_index, method)
    return None if stored is None else Curve.unpack(stored)


def publish_thresholds(
    store: Store,
    files: BlobCache,
    settings: Settings,
    model: str,
    base: int | str,
    thresholds: Mapping[str, float],
    created_by: str,
    *,
    choose: Mapping[str, ThresholdRule] | None = None,
) -> ModelVersion:
    """Publish the next version of a model: ``base`` with other thresholds, by class. No alias is moved.

    choose: the rules that choose the thresholds of further classes, see `choose_thresholds`.

    A succeeded job is stored as the record of the new version. It has rows of the students whose thresholds
    are not those of the job that trained them, and refers to that job for all others. Metrics that depend on
    the threshold are those of the curve, and undefined between its points.

    Raises NotFound, also for unknown classes and without a curve, InvalidRequest for a threshold that is not
    finite and a rule that no threshold obeys, and Conflict for an imported version or beyond the quota of
    versions.
    """
    version = _trained_version(store, model, base)
    by_rule = _chosen(store, files, version, choose or {}, thresholds)
    thresholds = {**thresholds, **{one.label: one.threshold for one in by_rule}}
    changed = _changed_students(store, files, version, thresholds)
    totals = _totals(store, version, changed)
    labels = [label for _, label in list_classes(store, files, version, limit=version.class_count)[0]]
    size = sum(len(packed) for _, packed in changed)
    with store.begin() as uow:
        uow.quotas.lock(store.tenant)
        source = uow.jobs.lock(str(version.job_id))
        job = _record(source, version, thresholds, created_by, size)
        uow.jobs.add(job)
        _store_students(uow, source, job.id, changed)
        require_room(uow, settings, store.tenant, "versions", size)
        facts = {"base": version.version, "thresholds": dict(thresholds)}
        uow.events.append(job.id, "thresholds_changed", facts)
        return publish(
            uow,
            job,
            dataset_digest=version.dataset_digest or "",
            method=version.method,
            classes=labels,
            columns=version.columns,
            teacher_digest=version.teacher_digest,
            encoder_digest=version.encoder_digest,
            profile_digest=version.profile_digest,
            metrics=totals.metrics()
            | {name: version.metrics[name] for name in ("inputs", "test_part") if name in version.metrics},
            alias=None,
            facts={"base": version.version, "thresholds": dict(list(thresholds.items())[:_AUDITED])},
        )


def choose_thresholds(
    store: Store, files: BlobCache, model: str, base: int | str, choose: Mapping[str, ThresholdRule]
) -> ChosenThresholds:
    """The thresholds that rules choose for classes of the version that ``base`` names. Nothing changes.

    choose: a rule for each class; that of `ALL_OTHERS` is for all classes without one. Raises as
    `publish_thresholds` does.
    """
    version = _trained_version(store, model, base)
    return ChosenThresholds(version.version, _chosen(store, files, version, choose, {}))


def version_thresholds(
    store: Store, files: BlobCache, model: str, label: str, *, limit: int, before: int | None = None
) -> tuple[list[VersionThreshold], int | None]:
    """The threshold of a class in the versions of a model, newest first, and the last version looked at.

    limit: versions to look at. before: those below this number. The last is None if no older one follows.
    Raises NotFound if there is no such model, and if the newest version does not have the class.
    """
    page = get_model(store, model, limit=limit, before=before)
    if before is None:
        unknown = find_unknown_class(store, files, page.versions[0], label)
        if unknown is not None:
            raise unknown
    thresholds = []
    with store.read() as uow:
        for version in page.versions:
            row = uow.students.served(str(version.job_id), label, version.method)
            if row is not None:
                job = uow.jobs.get(str(version.job_id))
                aliases = [alias.alias for alias in page.aliases if alias.version == version.version]
                rule = row.metrics.get("threshold_rule")
                thresholds.append(
                    VersionThreshold(
                        version.version, row.threshold, rule, version.created_at, job.created_by, aliases
                    )
                )
    return thresholds, page.versions[-1].version if page.has_more else None


def _trained_version(store: Store, model: str, base: int | str) -> ModelVersion:
    version = get_version(store, model, base)
    if version.job_id is None:
        text = f"Version {version.version} of model {model!r} was imported; its thresholds cannot be changed."
        raise Conflict(text, code="imported_version")
    return version


def _chosen(
    store: Store,
    files: BlobCache,
    version: ModelVersion,
    choose: Mapping[str, ThresholdRule],
    thresholds: Mapping[str, float],
) -> list[ChosenThreshold]:
    """What the rules choose. thresholds: those given for other classes."""
    rules = dict(choose)
    if ALL_OTHERS in rules and find_unknown_class(store, files, version, ALL_OTHERS) is not None:
        rule = rules.pop(ALL_OTHERS)
        labels, _ = list_classes(store, files, version, limit=MAX_THRESHOLDS + 1)
        others = [label for _, label in labels if label not in rules and label not in thresholds]
        rules |= dict.fromkeys((label for label in others if _served(store, version, label)), rule)
        if len(labels) > MAX_THRESHOLDS:
            raise _wrong_number()
    results = []
    for label, rule in rules.items():
        if label in thresholds:
            text = f"Class {label!r:.100} has a threshold and a rule: give one of them."
            raise InvalidRequest(text, faults=[InputFault(label, "given_twice", text)])
        row = _served(store, version, label)
        if row is None:
            text = _no_student(store, files, version, label)
            raise NotFound(
                text, code="student_not_found", faults=[InputFault(label, "student_not_found", text)]
            )
        curve = student_curve(store, row.job_id, row.class_index, row.method)
        try:
            results.append(chosen(label, row.threshold or 0.0, curve, rule))
        except InvalidProblem as error:
            text = f"No threshold of class {label!r:.100} obeys its rule: {error}"
            raise InvalidRequest(text, faults=[InputFault(label, "rule_not_obeyed", text)]) from error
    return results


def _served(store: Store, version: ModelVersion, label: str) -> StudentRow | None:
    with store.read() as uow:
        return uow.students.served(str(version.job_id), label, version.method)


def _no_student(store: Store, files: BlobCache, version: ModelVersion, label: str) -> str:
    """Why a class of a version has no threshold."""
    unknown = find_unknown_class(store, files, version, label)
    if unknown is not None:
        return unknown.message
    return f"Version {version.version} has no trained student of class {label!r:.100}."


def _changed_students(
    store: Store, files: BlobCache, version: ModelVersion, thresholds: Mapping[str, float]
) -> list[tuple[StudentRow, bytes]]:
    """The rows of the students whose thresholds change, with their new packages."""
    if not 0 < len(thresholds) <= MAX_THRESHOLDS:
        raise _wrong_number()
    infinite = [label for label, threshold in thresholds.items() if not math.isfinite(threshold)]
    if infinite:
        message = f"The threshold of class {infinite[0]!r} is not finite."
        raise InvalidRequest(message, faults=[InputFault(infinite[0], "not_finite", message)])
    faults, changed = [], []
    for label, threshold in thresholds.items():
        row = _served(store, version, label)
        if row is None or row.digest is None:
            text = _no_student(store, files, version, label)
            faults.append(InputFault(label, "student_not_found", text))
        else:
            changed.append(_with_threshold(store, files, row, threshold))
    if faults:
        raise NotFound(faults[0].message, code="student_not_found", faults=faults)
    return changed


def _wrong_number() -> InvalidRequest:
    message = f"Give 1 to {MAX_THRESHOLDS} thresholds, by class."
    return InvalidRequest(message, faults=[InputFault("thresholds", "wrong_number", message)])


def _with_threshold(
    store: Store, files: BlobCache, row: StudentRow, threshold: float
) -> tuple[StudentRow, bytes]:
    packed = dataclasses.replace(open_student(store, files, row), threshold=threshold).to_bytes()
    metrics = {name: value for name, value in row.metrics.items() if name not in _BY_THRESHOLD}
    metrics["threshold_rule"] = "given"
    curve = find_curve(store, row.job_id, row.class_index, row.method)
    if curve is not None and curve.is_point(threshold):
        metrics |= curve.confusion(curve.point_at(threshold)).metrics()
    elif "tp" in metrics:
        unknown = dict.fromkeys(("tp", "fp", "tn", "fn", "f1", "accuracy"))
        metrics |= unknown | {"reason": _UNKNOWN}
    return dataclasses.replace(row, threshold=threshold, metrics=metrics), packed


def _totals(
    store: Store, version: ModelVersion, changed: Sequence[tuple[StudentRow, bytes]]
) -> StudentTotals:
    """Totals of the students of ``version``, some of them changed."""
    new = {(row.class_index, row.method): row for row, _ in changed}
    totals = StudentTotals(version.method)
    for rows in _pages(store, str(version.job_id), version.class_count):
        totals.add([new.get((row.class_index, row.method), row) for row in rows])
    return totals


def _pages(store: Store, job_id: str, count: int) -> Iterator[Sequence[StudentRow]]:
    ended = (StudentState.SUCCEEDED, StudentState.FAILED)
    for first in range(0, count, _CLASSES_PER_PAGE):
        with store.read() as uow:
            yield uow.students.results(job_id, first, first + _CLASSES_PER_PAGE - 1, ended)


def _record(
    source: Job, version: ModelVersion, thresholds: Mapping[str, float], created_by: str, size: int
) -> Job:
    """The job that stands for a version with other thresholds."""
    now = time.time()
    left_out = ("warnings", "schema_warnings")
    provenance: Json = {name: value for name, value in source.provenance.items() if name not in left_out}
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
        provenance=provenance | {"base": base, "thresholds": dict(thresholds)},
        version=None,
        revision=0,
        student_bytes=size,
        base_job_id=source.base_job_id or source.id,
    )


def _store_students(
    uow: UnitOfWork, source: Job, job_id: str, changed: Sequence[tuple[StudentRow, bytes]]
) -> None:
    """Store the changed students of a record, and those that a record as its source has changed before."""
    rows = {}
    if source.base_job_id is not None:
        rows = {(row.class_index, row.method): row for row in uow.students.own(source.id)}
    for row, packed in changed:
        digest, _ = uow.blobs.put([packed])
        rows[row.class_index, row.method] = dataclasses.replace(row, digest=digest)
    uow.students.save_all([dataclasses.replace(row, job_id=job_id) for row in rows.values()])
