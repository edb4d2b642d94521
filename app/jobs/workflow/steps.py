"""What a training job writes, one function a transaction. The engine commits each with its own checkpoint.

Every function takes the unit of work first, then job and attempt, then plain values; it gives back JSON, and
may be run again after a crash before its commit. Each holds the job's row to its end and does nothing for a
job that is not in the attempt's hands any more: whoever comes late, after a freeze or a takeover, changes
nothing.
"""

from __future__ import annotations

import hashlib
import platform
import time
from collections.abc import Collection, Sequence
from importlib import metadata

from app.domain.entities import Job, JobState, Json, StudentRow, StudentState
from app.domain.training_spec import TrainingSpec
from app.jobs.solver.process import Pair, Prepared, StudentResult
from app.jobs.workflow.work_units import Crew, is_one_chunk, level_of, queue_priority
from app.services.training_plan import targets_of
from app.store.unit_of_work import UnitOfWork

_LIBRARIES = ("numpy", "scipy", "numba", "scikit-learn", "stms")
_RUNNING = (JobState.RUNNING,)
_UNDER_WAY = (JobState.QUEUED, JobState.RUNNING)
DONE = (StudentState.SUCCEEDED, StudentState.FAILED)


class Refused(Exception):
    """The job is not this attempt's to work on any more."""


def held(uow: UnitOfWork, job_id: str, attempt: int, states: Collection[JobState] = _RUNNING) -> Job:
    """The job, nobody else's until the end of the transaction. Raises Refused."""
    job = uow.jobs.lock(job_id)
    if job.attempt != attempt or job.state not in states:
        raise Refused(f"it is {job.state}, attempt {job.attempt}")
    return job


def plan_job(uow: UnitOfWork, job_id: str, attempt: int, crew: Crew, most: int) -> Json:
    """How many classes there are to train, and whether they are one chunk."""
    job = held(uow, job_id, attempt, _UNDER_WAY)
    targets = len(targets_of(TrainingSpec.model_validate(job.spec), uow.datasets.get(job.dataset_id).classes))
    return {"targets": targets, "one_chunk": is_one_chunk(targets, crew, most)}


def cut_job(uow: UnitOfWork, job_id: str, attempt: int, crew: Crew, most: int) -> Json:
    """Write down by what the classes are cut into chunks, so that they are cut the same after a crash."""
    held(uow, job_id, attempt)
    return {"slots": crew.slots, "threads": crew.threads, "most": most}


def take_turn(uow: UnitOfWork, job_id: str, attempt: int, number: int, limit: int | None) -> Json:
    """Note a unit as waiting; returns its priority in the queue, or None: its tenant has ``limit`` units."""
    job = held(uow, job_id, attempt, _UNDER_WAY)
    if limit is not None:
        uow.units.lock_tenant(job.created_by)
        if uow.units.count_of_tenant(job.created_by) >= limit:
            return {"priority": None}
    level = level_of(job.priority)
    turn = uow.units.add(job_id, attempt, number, tenant=job.created_by, level=level)
    return {"priority": queue_priority(level, turn)}


def begin_job(uow: UnitOfWork, job_id: str, attempt: int, executor: str) -> Json:
    """Set the job running."""
    job = held(uow, job_id, attempt, _UNDER_WAY)
    if job.state is JobState.QUEUED:
        started = {"executor": executor, "versions": versions(), "students_since": None}
        uow.jobs.move(job_id, JobState.RUNNING, provenance={**job.provenance, **started})
        uow.events.append(job_id, "job_started", {"attempt": attempt, "executor": executor})
    return {}


def keep_preparation(uow: UnitOfWork, job_id: str, attempt: int, prepared: Prepared | None) -> Json:
    """Store the preparation, the teacher and how it does on every target class; None: it is there."""
    job = held(uow, job_id, attempt)
    if prepared is None or job.preparation_digest is not None:
        return {}
    preparation, teacher = prepared.preparation.keep(uow), prepared.teacher.keep(uow)
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
            for measured in prepared.report["metrics"]
        ]
    )
    digests = {"preparation_digest": preparation, "teacher_digest": teacher}
    provenance = {**job.provenance, **digests, "threads": prepared.report["threads"]}
    uow.jobs.change(job_id, **digests, provenance=provenance)
    uow.jobs.advance(job_id)
    summary = prepared.report["summary"]
    told = {name: summary.get(name) for name in ("objective", "iterations", "seconds", "status")}
    uow.events.append(
        job_id,
        "teacher_finished",
        {**told, "gap": summary.get("relative_gap"), "stage_seconds": prepared.report["seconds"]},
    )
    return digests


def plan_chunk(uow: UnitOfWork, job_id: str, attempt: int, pairs: Sequence[Pair]) -> Json:
    """``todo``: [class index, method] of the chunk's students that are still to be trained."""
    job = held(uow, job_id, attempt)
    first, last = (pairs[0][0], pairs[-1][0]) if pairs else (0, 0)
    finished = uow.students.finished(job_id, [StudentState.SUCCEEDED], first=first, last=last)
    todo = [pair for pair in pairs if pair not in finished]
    if todo and job.stage != "students":
        provenance = job.provenance
        if provenance.get("students_since") is None:
            provenance = provenance | {"students_since": time.time(), "done_before": job.progress_done}
        uow.jobs.change(job_id, stage="students", provenance=provenance)
        uow.events.append(job_id, "stage_started", {"stage": "students"})
    return {"todo": [list(pair) for pair in todo]}


def keep_students(uow: UnitOfWork, job_id: str, attempt: int, results: Sequence[StudentResult]) -> Json:
    """Store students that are finished or failed; ``kept``: [class index, method] of each."""
    held(uow, job_id, attempt)
    if not results:
        return {"kept": []}
    rows = _rows(uow, job_id, results)
    stored = uow.students.save_all(rows)
    told: list[tuple[str, Json]] = []
    for result, row in zip(results, rows, strict=True):
        if result.pair in stored:
            if result.trace is not None:
                uow.students.keep_trace(job_id, *result.pair, result.trace)
            told += _told(result, row)
    uow.events.append_all(job_id, told)
    if stored:
        uow.jobs.advance(job_id, len(stored))
    return {"kept": [list(result.pair) for result in results]}


def fail_job(uow: UnitOfWork, job_id: str, attempt: int, code: str, message: str) -> Json:
    """End the job as failed, or as cancelled when that was asked for; one that has ended stays as it is."""
    job = uow.jobs.lock(job_id)
    if job.attempt != attempt or job.state.ended:
        return {"state": job.state.value}
    if job.state is JobState.CANCELLING:
        return settle_cancelled(uow, job_id, attempt)
    job = uow.jobs.move(job_id, JobState.FAILED, error_code=code, error_message=message)
    uow.units.forget(job_id, attempt)
    uow.events.append(job_id, "job_failed", {"code": code, "message": message})
    return {"state": job.state.value}


def settle_cancelled(uow: UnitOfWork, job_id: str, attempt: int) -> Json:
    """End a job that is to be cancelled, its solvers being gone."""
    job = uow.jobs.lock(job_id)
    if job.attempt == attempt and job.state is JobState.CANCELLING:
        job = uow.jobs.move(job_id, JobState.CANCELLED)
        uow.units.forget(job_id, attempt)
        uow.events.append(job_id, "job_cancelled", {})
    return {"state": job.state.value}


def finished_pairs(uow: UnitOfWork, job_id: str, among: Sequence[Pair]) -> set[Pair]:
    """Which of some pairs, ascending by class, have a row that says succeeded or failed."""
    if not among:
        return set()
    return uow.students.finished(job_id, DONE, first=among[0][0], last=among[-1][0]) & set(among)


def versions() -> dict[str, str]:
    """Of everything that the numbers of a run depend on."""
    return {"python": platform.python_version()} | {name: metadata.version(name) for name in _LIBRARIES}


_MEASURES = ("objective", "gap", "iterations", "seconds", "status", "threshold")


def _rows(uow: UnitOfWork, job_id: str, results: Sequence[StudentResult]) -> list[StudentRow]:
    """The rows of results, their packed bytes stored."""
    packed = {hashlib.sha256(result.packed).hexdigest(): result.packed for result in results if result.packed}
    # In one order everywhere: two transactions that store the same students must not wait for each other.
    for digest in sorted(packed):
        uow.blobs.put([packed[digest]])
    return [_row(job_id, result) for result in results]


def _row(job_id: str, result: StudentResult) -> StudentRow:
    index, method = result.pair
    if result.packed is None:
        why = result.row["message"]
        return StudentRow(job_id, index, result.label, method, StudentState.FAILED, error=why)
    return StudentRow(
        job_id=job_id,
        class_index=index,
        label=result.label,
        method=method,
        state=StudentState.SUCCEEDED,
        metrics=result.row["metrics"],
        digest=hashlib.sha256(result.packed).hexdigest(),
        chosen=result.row.get("chosen"),
        **{name: result.row[name] for name in _MEASURES},
    )


def _told(result: StudentResult, row: StudentRow) -> list[tuple[str, Json]]:
    """The events of a student that was just stored."""
    about = {"label": row.label, "class_index": row.class_index, "method": row.method}
    if row.state is StudentState.FAILED:
        return [("student_failed", about | {name: result.row[name] for name in ("code", "message")})]
    scores = {name: row.metrics.get(name) for name in ("accuracy", "f1", "auc")}
    measures = {name: result.row[name] for name in _MEASURES}
    finished = ("student_finished", about | measures | scores)
    if result.trace is None:
        return [finished]
    return [("student_tuned", about | result.row["chosen"]), finished]
