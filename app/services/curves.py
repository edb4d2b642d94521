"""Use cases of thresholds: read curves, choose thresholds, publish a version with others."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Final

from app.domain.curves import Curve
from app.domain.entities import ModelVersion, StudentRow
from app.domain.errors import InputFault, InvalidRequest, NotFound
from app.domain.names import ALL_OTHERS
from app.domain.threshold_rules import (
    ChosenThreshold,
    ChosenThresholds,
    ThresholdRule,
    VersionThreshold,
    chosen,
)
from app.services.derived_versions import Change, publish_change, totals_of, trained_version
from app.services.models import find_unknown_class, get_model, list_classes, open_student
from app.settings import Settings
from app.store.blob_cache import BlobCache
from app.store.unit_of_work import Store
from core.errors import InvalidProblem

MAX_THRESHOLDS: Final = 1000
"""Most thresholds that one publication changes."""
_AUDITED: Final = 20
"""Thresholds that the audit record names; the provenance of the new version's job has all."""
_BY_THRESHOLD: Final = ("guard", "false_positives", "own_rows", "weak", "yes_by_class", "beside_teacher")
"""Metrics that were measured at another threshold and are unknown at a new one."""
_UNKNOWN: Final = "It was not measured at this threshold, which is not a point of the curve."


def student_curve(store: Store, job_id: str, class_index: int, method: str) -> Curve:
    """The answers that a student, or the teacher, would give at other thresholds.

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

    choose: rules that choose the thresholds of further classes, see `choose_thresholds`.

    A succeeded job is stored as the record of the new version. It has rows of the students whose thresholds
    differ from those of the job that trained them, and refers to that job for all others. Metrics that depend
    on the threshold are those of the curve, and undefined between its points.

    Raises NotFound, also for unknown classes and without a curve, InvalidRequest for a threshold that is not
    finite and a rule that no threshold satisfies, and Conflict for an imported version or beyond the quota of
    versions.
    """
    version = trained_version(store, model, base, "thresholds")
    by_rule = _chosen(store, files, version, choose or {}, thresholds)
    thresholds = {**thresholds, **{one.label: one.threshold for one in by_rule}}
    rules = {one.label: one.rule for one in by_rule}
    changed = _changed_students(store, files, version, thresholds, rules)
    change = Change(
        students=changed,
        labels=[label for _, label in list_classes(store, files, version, limit=version.class_count)[0]],
        metrics=totals_of(store, version, [row for row, _ in changed]).metrics(),
        said=("thresholds_changed", {"thresholds": dict(thresholds)}),
        audited={"thresholds": dict(list(thresholds.items())[:_AUDITED])},
        teacher=version.teacher_digest,
    )
    return publish_change(store, settings, version, change, created_by)


def choose_thresholds(
    store: Store, files: BlobCache, model: str, base: int | str, choose: Mapping[str, ThresholdRule]
) -> ChosenThresholds:
    """The thresholds that rules choose for classes of the version that ``base`` names. Nothing changes.

    choose: a rule for each class; the rule of `ALL_OTHERS` is for all classes without one. Raises as
    `publish_thresholds` does.
    """
    version = trained_version(store, model, base, "thresholds")
    return ChosenThresholds(version.version, _chosen(store, files, version, choose, {}))


def version_thresholds(
    store: Store, files: BlobCache, model: str, label: str, *, limit: int, before: int | None = None
) -> tuple[list[VersionThreshold], int | None]:
    """The threshold of a class in the versions of a model, newest first, and the last version that was read.

    limit: number of versions to read. before: those below this number. The last is None if no older one
    follows.
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


def _chosen(
    store: Store,
    files: BlobCache,
    version: ModelVersion,
    choose: Mapping[str, ThresholdRule],
    thresholds: Mapping[str, float],
) -> list[ChosenThreshold]:
    """The thresholds that the rules choose. thresholds: those given for other classes."""
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
    store: Store,
    files: BlobCache,
    version: ModelVersion,
    thresholds: Mapping[str, float],
    rules: Mapping[str, str],
) -> list[tuple[StudentRow, bytes]]:
    """The rows of the students whose thresholds change, with their new packages.

    rules: the rules that chose the thresholds that were not given.
    """
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
            rule = rules.get(label, "given")
            changed.append(_with_threshold(store, files, row, threshold, rule))
    if faults:
        raise NotFound(faults[0].message, code="student_not_found", faults=faults)
    return changed


def _wrong_number() -> InvalidRequest:
    message = f"Give 1 to {MAX_THRESHOLDS} thresholds, by class."
    return InvalidRequest(message, faults=[InputFault("thresholds", "wrong_number", message)])


def _with_threshold(
    store: Store, files: BlobCache, row: StudentRow, threshold: float, rule: str
) -> tuple[StudentRow, bytes]:
    packed = dataclasses.replace(open_student(store, files, row), threshold=threshold).to_bytes()
    metrics = {name: value for name, value in row.metrics.items() if name not in _BY_THRESHOLD}
    metrics["threshold_rule"] = rule
    curve = find_curve(store, row.job_id, row.class_index, row.method)
    if curve is not None and curve.is_point(threshold):
        metrics |= curve.confusion(curve.point_at(threshold)).metrics()
    elif "tp" in metrics:
        unknown = dict.fromkeys(("tp", "fp", "tn", "fn", "f1", "accuracy"))
        metrics |= unknown | {"reason": _UNKNOWN}
    return dataclasses.replace(row, threshold=threshold, metrics=metrics), packed
