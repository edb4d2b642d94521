"""The durable steps of a training job: each is one transaction, committed with its checkpoint by DBOS.

Every step takes the unit of work, the job's id and attempt, and plain values. It returns JSON and may run
again after a crash before its commit. It locks the job's row until its end and writes nothing if the job no
longer belongs to this attempt, so that a late worker, after a freeze or a takeover, changes nothing.

DBOS stores the names given to `durable_step` and the results; neither may change between releases.
"""

from __future__ import annotations

import hashlib
import platform
import time
from collections.abc import Collection, Mapping, Sequence
from functools import cache
from importlib import metadata
from typing import Final

from app.domain.curves import pack
from app.domain.entities import ACTIVE_STATES, STAGES, STARVES, Job, JobState, Json, StudentRow, StudentState
from app.jobs.engine.config import priority_level, queue_priority
from app.jobs.engine.step_runner import durable_step
from app.jobs.errors import JobStopped
from app.jobs.solver.messages import (
    AdditionResult,
    LabellingResult,
    PreparationResult,
    ScoredRows,
    StudentKey,
    StudentResult,
)
from app.jobs.workflow.work_units import Capacity, is_one_chunk
from app.services.training import queue_again
from app.services.version_metrics import MAX_WARNINGS, warnings_of
from app.store.unit_of_work import UnitOfWork

_MAX_RESTARTS: Final = 3
_LIBRARIES: Final = ("numpy", "scipy", "numba", "scikit-learn", "stms")
_REPORTED: Final = (
    "threads",
    "features",
    "encoders",
    "search",
    "test_part",
    "test_rows_left_out",
    "test_rows_in_training",
    "suspects",
)
_MEASURES: Final = ("objective", "gap", "iterations", "seconds", "status", "threshold")
_SCORES: Final = ("accuracy", "f1", "auc")


def lock_job(
    uow: UnitOfWork, job_id: str, attempt: int, states: Collection[JobState] = (JobState.RUNNING,)
) -> Job:
    """The job, locked until the end of the transaction. Raises JobStopped."""
    job = uow.jobs.lock(job_id)
    if job.attempt != attempt or job.state not in states:
        raise JobStopped(f"it is {job.state}, attempt {job.attempt}")
    return job


@durable_step("plan_job")
def plan_job(
    uow: UnitOfWork, job_id: str, attempt: int, targets: int, capacity: Capacity, max_classes: int
) -> Json:
    """Number of classes to train, and whether they are one chunk."""
    lock_job(uow, job_id, attempt, ACTIVE_STATES)
    return {"targets": targets, "one_chunk": is_one_chunk(targets, capacity, max_classes)}


@durable_step("cut_job")
def record_capacity(uow: UnitOfWork, job_id: str, attempt: int, capacity: Capacity, max_classes: int) -> Json:
    """Record the inputs of `chunk_ranges`, so that the chunks are the same after a crash."""
    lock_job(uow, job_id, attempt)
    return {"slots": capacity.slots, "threads": capacity.threads, "most": max_classes}


@durable_step("take_turn")
def queue_unit(uow: UnitOfWork, job_id: str, attempt: int, number: int, limit: int | None) -> Json:
    """Register a waiting unit. ``priority``: in the queue; None if its key already has ``limit`` units."""
    job = lock_job(uow, job_id, attempt, ACTIVE_STATES)
    if limit is not None:
        uow.units.lock_owner(job.tenant, job.created_by)
        if uow.units.count_of_owner(job.tenant, job.created_by) >= limit:
            return {"priority": None}
    level = priority_level(job.priority)
    turn = uow.units.add(job_id, attempt, number, tenant=job.tenant, owner=job.created_by, level=level)
    return {"priority": queue_priority(level, turn)}


@durable_step("begin_job")
def begin_job(uow: UnitOfWork, job_id: str, attempt: int, executor: str) -> Json:
    """Set the job running."""
    job = lock_job(uow, job_id, attempt, ACTIVE_STATES)
    if job.state is JobState.QUEUED:
        started = {"executor": executor, "versions": versions(), STAGES: {}, STARVES: False}
        since = {} if job.started_at is None else {"started_at": job.started_at}
        uow.jobs.move(job_id, JobState.RUNNING, provenance={**job.provenance, **started}, **since)
        uow.events.append(job_id, "job_started", {"attempt": attempt, "executor": executor})
    return {}


@durable_step("keep_labels")
def store_labels(
    uow: UnitOfWork, job_id: str, attempt: int, result: LabellingResult | None, *, unit: int | None = None
) -> Json:
    """Store the labels that the job found for its rows. None: they are already stored.

    unit: number of the work unit that made them.
    """
    job = lock_job(uow, job_id, attempt)
    if result is None or job.labels_digest is not None:
        return {}
    if unit is not None:
        uow.units.stored_result(job_id, attempt, unit)
    digest = result.labels.finish(uow)
    provenance = {**job.provenance, "labels_digest": digest, "labelling": result.report}
    uow.jobs.change(job_id, labels_digest=digest, provenance=provenance)
    uow.events.append(job_id, "labels_stored", result.report)
    return {"labels_digest": digest}


@durable_step("keep_preparation")
def store_preparation(
    uow: UnitOfWork, job_id: str, attempt: int, result: PreparationResult | None, *, unit: int | None = None
) -> Json:
    """Store preparation, teacher and the teacher's metrics by class. None: they are already stored.

    unit: number of the work unit that made them.
    """
    job = lock_job(uow, job_id, attempt)
    if result is None or job.preparation_digest is not None:
        return {}
    if unit is not None:
        uow.units.stored_result(job_id, attempt, unit)
    preparation, teacher = result.preparation.finish(uow), result.teacher.finish(uow)
    store_teacher_metrics(uow, job_id, attempt, result.report["metrics"])
    digests = {"preparation_digest": preparation, "teacher_digest": teacher}
    if result.rows is not None:
        digests["rows_digest"] = result.rows.finish(uow)
    if result.encoder is not None:
        digests["encoder_digest"] = result.encoder.finish(uow)
    if result.profile is not None:
        digests["profile_digest"] = result.profile.finish(uow)
    if result.suspects is not None:
        digests["suspects_digest"] = result.suspects.finish(uow)
    provenance = {**job.provenance, **digests} | {
        name: result.report[name] for name in _REPORTED if name in result.report
    }
    uow.jobs.change(job_id, **digests, provenance=provenance)
    uow.jobs.advance(job_id)
    if "test_part" in result.report:
        uow.events.append(job_id, "test_part", result.report["test_part"])
    if "search" in result.report:
        uow.events.append(job_id, "setting_chosen", _chosen(result.report["search"]))
    if "test_rows_in_training" in result.report:
        uow.events.append(job_id, "test_rows_in_training", {"rows": result.report["test_rows_in_training"]})
    summary = result.report["summary"]
    data = {name: summary.get(name) for name in ("objective", "iterations", "seconds", "status")}
    data |= {"gap": summary.get("relative_gap"), "stage_seconds": result.report["seconds"]}
    data["features"] = result.report["features"]
    uow.events.append(job_id, "teacher_finished", data)
    return digests


def _chosen(search: Json) -> Json:
    """What a search chose, with the number of candidates instead of the candidates."""
    return {**search, "tried": sum(len(candidates) for candidates in search["tried"].values())}


def store_teacher_metrics(uow: UnitOfWork, job_id: str, attempt: int, metrics: Sequence[Json]) -> None:
    """Store the teacher's metrics of some classes. This is no step; a repetition stores the same."""
    lock_job(uow, job_id, attempt)
    uow.students.save_all(
        [
            StudentRow(
                job_id=job_id,
                class_index=measured["class_index"],
                label=measured["label"],
                method="teacher",
                state=StudentState.SUCCEEDED,
                metrics=measured["metrics"],
            )
            for measured in metrics
        ]
    )
    curves = [
        ((measured["class_index"], "teacher"), pack(measured["curve"]))
        for measured in metrics
        if "curve" in measured
    ]
    uow.students.keep_curves(curves, job_id)


@durable_step("keep_addition")
def store_addition(
    uow: UnitOfWork,
    job_id: str,
    attempt: int,
    result: AdditionResult | None,
    key: StudentKey,
    *,
    unit: int | None = None,
) -> Json:
    """Store the student of the class that the job adds, and the shared base. None: they are already stored.

    key: of the student. unit: number of the work unit that trained it.
    """
    job = lock_job(uow, job_id, attempt)
    if result is None or uow.students.finished(job_id, [StudentState.SUCCEEDED], first=key[0], last=key[0]):
        return {}
    if unit is not None:
        uow.units.stored_result(job_id, attempt, unit)
    said = job.addition or {}
    digest = result.student.finish(uow)
    row = StudentRow(
        job_id=job_id,
        class_index=key[0],
        label=said["class"],
        method=key[1],
        state=StudentState.SUCCEEDED,
        digest=digest,
        **result.row,
    )
    uow.students.save_all([row])
    if result.base is not None:
        base = uow.jobs.lock(str(job.base_job_id))
        if base.addition_digest is None:
            uow.jobs.change(base.id, addition_digest=result.base.finish(uow))
    warnings = _addition_warnings(said["class"], key[0], result.report)
    provenance = job.provenance | {"addition": said | result.report}
    uow.jobs.change(job_id, provenance=provenance | ({"warnings": warnings} if warnings else {}))
    size = uow.blobs.sizes([digest])[digest]
    uow.jobs.advance(job_id, student_bytes=size)
    measures = {name: result.report[name] for name in ("accepted", "of", "threshold", "seconds")}
    uow.events.append(job_id, "class_added", {"label": said["class"], **measures})
    return {"student": digest}


def _addition_warnings(label: str, index: int, report: Json) -> list[Json]:
    """Warnings of the job about doubts in the added class."""
    texts = {
        "few_examples": f"With {report['of']} examples recall is known only within a wide interval.",
        "repeated_rows": "Some examples are equal, so that recall looks better than it is.",
    }
    found = [(code, texts[code]) for code in report["warnings"]]
    found += [
        (
            "class_conflict",
            (
                f"The student of class {one['class']!r:.100} accepts {one['accepts']} of the {one['of']}"
                " examples: it does not know the new class. Train again with the examples to tell them apart."
            ),
        )
        for one in (report["conflicts"] or ())[:MAX_WARNINGS]
    ]
    return [
        {"label": label, "class_index": index, "code": code, "message": message} for code, message in found
    ]


def store_remote_scores(uow: UnitOfWork, job_id: str, attempt: int, unit: int, scores: ScoredRows) -> None:
    """Store a batch of a remote teacher's scores. This is no step; a repetition stores the same."""
    lock_job(uow, job_id, attempt)
    uow.units.stored_result(job_id, attempt, unit)
    uow.remote_scores.save(job_id, scores.part, scores.first, scores.data)


@durable_step("plan_chunk")
def plan_chunk(uow: UnitOfWork, job_id: str, attempt: int, keys: Sequence[StudentKey]) -> Json:
    """``todo``: [class index, method] of the chunk's students that are still to be trained."""
    job = lock_job(uow, job_id, attempt)
    first, last = (keys[0][0], keys[-1][0]) if keys else (0, 0)
    finished = uow.students.finished(job_id, [StudentState.SUCCEEDED], first=first, last=last)
    todo = [key for key in keys if key not in finished]
    if todo and job.stage != "students":
        provenance = job.provenance
        stages = provenance.get(STAGES, {})
        if "students" not in stages:
            stages = {**stages, "students": time.time()}
            provenance = provenance | {STAGES: stages, "done_before": job.progress_done}
        uow.jobs.change(job_id, stage="students", provenance=provenance)
        uow.events.append(job_id, "stage_started", {"stage": "students"})
    return {"todo": [list(key) for key in todo]}


@durable_step("keep_students")
def store_students(
    uow: UnitOfWork, job_id: str, attempt: int, results: Sequence[StudentResult], *, unit: int | None = None
) -> Json:
    """Store students that have finished or failed. ``kept``: [class index, method] of each.

    unit: number of the work unit that trained them.
    """
    lock_job(uow, job_id, attempt)
    if unit is not None:
        uow.units.stored_result(job_id, attempt, unit)
    rows = _student_rows(uow, job_id, results)
    maps = {
        str(row.map_digest): len(result.map)
        for result, row in zip(results, rows, strict=True)
        if result.map is not None
    }
    known = uow.students.maps_among(job_id, maps)
    stored = uow.students.save_all(rows)
    events: list[tuple[str, Json]] = []
    for result, row in zip(results, rows, strict=True):
        if result.key in stored:
            if result.trace is not None:
                uow.students.keep_trace(job_id, *result.key, result.trace)
            events += _student_events(result, row)
    curves = [
        (result.key, pack(result.row["curve"]))
        for result in results
        if result.key in stored and "curve" in result.row
    ]
    uow.students.keep_curves(curves, job_id)
    uow.events.append_all(job_id, events)
    if stored:
        size = sum(len(result.packed or b"") for result in results if result.key in stored)
        size += sum(maps[digest] for digest in uow.students.maps_among(job_id, maps) - known)
        uow.jobs.advance(job_id, len(stored), student_bytes=size)
    return {"kept": [list(result.key) for result in results]}


@durable_step("fail_job")
def fail_job(uow: UnitOfWork, job_id: str, attempt: int, code: str, message: str) -> Json:
    """End the job as failed, or as cancelled if that was requested. A job that has ended is not changed."""
    job = uow.jobs.lock(job_id)
    if job.attempt != attempt or job.state.ended:
        return {"state": job.state.value}
    if job.state is JobState.CANCELLING:
        return settle_cancelled(uow, job_id, attempt)
    job = uow.jobs.move(job_id, JobState.FAILED, error_code=code, error_message=message)
    uow.units.forget(job_id, attempt)
    uow.events.append(job_id, "job_failed", {"code": code, "message": message})
    return {"state": job.state.value}


def restart_job(uow: UnitOfWork, job_id: str, attempt: int, code: str, message: str) -> Json:
    """Queue the job as its next attempt, which keeps what is stored; after three restarts it has failed.

    It is no step, because the workflow of the lost attempt may have recorded other steps in its place. The
    reconciler enqueues the workflow of the new attempt. A job that has ended is not changed.
    """
    job = uow.jobs.lock(job_id)
    restarts = int(job.provenance.get("restarts", 0))
    if job.attempt != attempt or job.state not in ACTIVE_STATES or restarts >= _MAX_RESTARTS:
        return fail_job(uow, job_id, attempt, code, message)
    uow.units.forget(job_id, attempt)
    provenance = {**job.provenance, "restarts": restarts + 1}
    job = queue_again(uow, job, started_at=job.started_at, provenance=provenance)
    uow.events.append(job_id, "job_restarted", {"attempt": job.attempt, "code": code, "message": message})
    return {"state": job.state.value}


def settle_cancelled(uow: UnitOfWork, job_id: str, attempt: int) -> Json:
    """End a job that is being cancelled and whose solvers have ended."""
    job = uow.jobs.lock(job_id)
    if job.attempt == attempt and job.state is JobState.CANCELLING:
        job = uow.jobs.move(job_id, JobState.CANCELLED)
        uow.units.forget(job_id, attempt)
        uow.events.append(job_id, "job_cancelled", {})
    return {"state": job.state.value}


def finished_students(uow: UnitOfWork, job_id: str, among: Sequence[StudentKey]) -> set[StudentKey]:
    """Those of ``among``, ascending by class, that have succeeded or failed."""
    if not among:
        return set()
    ended = (StudentState.SUCCEEDED, StudentState.FAILED)
    return uow.students.finished(job_id, ended, first=among[0][0], last=among[-1][0]) & set(among)


@cache
def versions() -> dict[str, str]:
    """Versions of Python and of the libraries on which results depend."""
    return {"python": platform.python_version()} | {name: metadata.version(name) for name in _LIBRARIES}


def _student_rows(uow: UnitOfWork, job_id: str, results: Sequence[StudentResult]) -> list[StudentRow]:
    """Store the packages of results and return their rows."""
    packages = {part for result in results for part in (result.packed, result.map) if part is not None}
    digests = {package: hashlib.sha256(package).hexdigest() for package in packages}
    # The order is always the same, so that two transactions that store the same students cannot deadlock.
    for package in sorted(packages, key=digests.__getitem__):
        uow.blobs.put([package])
    return [_student_row(job_id, result, digests) for result in results]


def _student_row(job_id: str, result: StudentResult, digests: Mapping[bytes, str]) -> StudentRow:
    """The row of a result. digests: of its packages."""
    index, method = result.key
    if result.packed is None:
        error = result.row["message"]
        return StudentRow(job_id, index, result.label, method, StudentState.FAILED, error=error)
    return StudentRow(
        job_id=job_id,
        class_index=index,
        label=result.label,
        method=method,
        state=StudentState.SUCCEEDED,
        metrics=result.row["metrics"],
        digest=digests[result.packed],
        map_digest=None if result.map is None else digests[result.map],
        chosen=result.row.get("chosen"),
        **{name: result.row[name] for name in _MEASURES},
    )


def _student_events(result: StudentResult, row: StudentRow) -> list[tuple[str, Json]]:
    """The events of a student that was just stored."""
    student = {"label": row.label, "class_index": row.class_index, "method": row.method}
    if row.state is StudentState.FAILED:
        return [("student_failed", student | {name: result.row[name] for name in ("code", "message")})]
    scores = {name: row.metrics.get(name) for name in _SCORES}
    measures = {name: result.row[name] for name in _MEASURES}
    finished = ("student_finished", student | measures | scores)
    events = [] if result.trace is None else [("student_tuned", student | result.row["chosen"])]
    events.append(finished)
    guard = row.metrics.get("guard", {})
    if "replaced" in guard:
        events.append(("student_replaced", student | guard))
    return events + [("student_warning", student | warning) for warning in warnings_of(row)]
