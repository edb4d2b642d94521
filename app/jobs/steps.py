"""What a training job writes, one function a transaction. The engine commits each with its own checkpoint.

Every function takes the unit of work first and plain values, gives back JSON, and may be run again after a
crash before its commit. Results of a solver come as arguments; None for one says that it is stored already.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Sequence
from importlib import metadata
from math import ceil

from app.domain.entities import Job, JobState, Json, StudentRow, StudentState
from app.domain.spec import TrainingSpec
from app.jobs.solver_process import Pair, Prepared, StudentResult
from app.services.training_plan import pairs_of, targets_of
from app.store.unit_of_work import UnitOfWork

_LIBRARIES = ("numpy", "scipy", "numba", "scikit-learn", "stms")


def begin_job(uow: UnitOfWork, job_id: str, attempt: int, classes_per_chunk: int, executor: str) -> Json:
    """Set the job running; returns how its classes are cut into chunks, ``{"run": False}`` if not wanted."""
    job = uow.jobs.get(job_id)
    if job.attempt != attempt or job.state not in {JobState.QUEUED, JobState.RUNNING}:
        return {"run": False}
    if job.state is JobState.QUEUED:
        started = {"executor": executor, "versions": versions(), "students_since": None}
        uow.jobs.move(job_id, JobState.RUNNING, provenance={**job.provenance, **started})
        uow.events.append(job_id, "job_started", {"attempt": attempt, "executor": executor})
    spec = TrainingSpec.model_validate(job.spec)
    targets = targets_of(spec, uow.datasets.get(job.dataset_id).classes)
    return {"run": True, "chunk_size": classes_per_chunk, "chunks": ceil(len(targets) / classes_per_chunk)}


def keep_preparation(uow: UnitOfWork, job_id: str, prepared: Prepared | None) -> Json:
    """Store the preparation, the teacher and how it does on every target class."""
    job = uow.jobs.get(job_id)
    if prepared is None or job.preparation_digest is not None:
        return {}
    preparation, _ = uow.blobs.put([prepared.preparation])
    teacher, _ = uow.blobs.put([prepared.teacher])
    for measured in prepared.report["metrics"]:
        uow.students.save(
            StudentRow(
                job_id=job_id,
                class_index=measured["class_index"],
                label=measured["label"],
                method="teacher",
                state=StudentState.SUCCEEDED,
                metrics=measured["metrics"],
            )
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


def plan_chunk(uow: UnitOfWork, job_id: str, chunk: int, chunk_size: int) -> list[list[int | str]]:
    """[class index, method] of every student of the chunk that is still to be trained."""
    job = uow.jobs.get(job_id)
    finished = uow.students.succeeded(job_id)
    todo = [pair for pair in chunk_pairs(uow, job, chunk, chunk_size) if pair not in finished]
    if todo and job.stage != "students":
        provenance = job.provenance
        if provenance.get("students_since") is None:
            provenance = provenance | {"students_since": time.time(), "done_before": job.progress_done}
        uow.jobs.change(job_id, stage="students", provenance=provenance)
        uow.events.append(job_id, "stage_started", {"stage": "students"})
    return [list(pair) for pair in todo]


def keep_student(uow: UnitOfWork, job_id: str, result: StudentResult | None) -> Json:
    """Store one finished student, or one that failed."""
    if result is None:
        return {}
    index, method = result.pair
    about = {"label": result.label, "class_index": index, "method": method}
    if result.packed is None:
        row = _failed(job_id, result.pair, result.label, result.row["message"])
        if uow.students.save(row):
            failure = {"code": result.row["code"], "message": result.row["message"]}
            uow.events.append(job_id, "student_failed", about | failure)
            uow.jobs.advance(job_id)
        return about
    digest, _ = uow.blobs.put([result.packed])
    measures = {
        name: result.row[name]
        for name in ("objective", "gap", "iterations", "seconds", "status", "threshold")
    }
    row = StudentRow(
        job_id=job_id,
        class_index=index,
        label=result.label,
        method=method,
        state=StudentState.SUCCEEDED,
        metrics=result.row["metrics"],
        digest=digest,
        chosen=result.row.get("chosen"),
        **measures,
    )
    if uow.students.save(row):
        if result.trace is not None:
            uow.students.keep_trace(job_id, index, method, result.trace)
            uow.events.append(job_id, "student_tuned", about | result.row["chosen"])
        scores = {name: result.row["metrics"].get(name) for name in ("accuracy", "f1", "auc")}
        uow.events.append(job_id, "student_finished", about | measures | scores)
        uow.jobs.advance(job_id)
    return about


def fail_job(uow: UnitOfWork, job_id: str, attempt: int, code: str, message: str) -> Json:
    """End the job as failed, or as cancelled when that was asked for; one that has ended stays as it is."""
    job = uow.jobs.get(job_id)
    if job.attempt != attempt or job.state.ended:
        return {"state": job.state.value}
    if job.state is JobState.CANCELLING:
        return settle_cancelled(uow, job_id, attempt)
    job = uow.jobs.move(job_id, JobState.FAILED, error_code=code, error_message=message)
    uow.events.append(job_id, "job_failed", {"code": code, "message": message})
    return {"state": job.state.value}


def settle_cancelled(uow: UnitOfWork, job_id: str, attempt: int) -> Json:
    """End a job that is to be cancelled, its solver being gone."""
    job = uow.jobs.get(job_id)
    if job.attempt == attempt and job.state is JobState.CANCELLING:
        job = uow.jobs.move(job_id, JobState.CANCELLED)
        uow.events.append(job_id, "job_cancelled", {})
    return {"state": job.state.value}


def chunk_pairs(uow: UnitOfWork, job: Job, chunk: int, chunk_size: int) -> list[Pair]:
    """Every (class index, method) of a chunk, finished or not."""
    spec = TrainingSpec.model_validate(job.spec)
    targets = targets_of(spec, uow.datasets.get(job.dataset_id).classes)
    return list(pairs_of(spec, targets[chunk * chunk_size : (chunk + 1) * chunk_size]))


def finished_pairs(uow: UnitOfWork, job_id: str, among: Sequence[Pair]) -> set[Pair]:
    """Which of some pairs, ascending by class, have a row that says succeeded or failed."""
    if not among:
        return set()
    first, last = among[0][0], among[-1][0]
    rows = uow.students.of_job(job_id, after=first - 1, limit=last - first + 1)
    done = {StudentState.SUCCEEDED, StudentState.FAILED}
    return {(row.class_index, row.method) for row in rows if row.state in done} & set(among)


def versions() -> dict[str, str]:
    """Of everything that the numbers of a run depend on."""
    return {"python": platform.python_version()} | {name: metadata.version(name) for name in _LIBRARIES}


def _failed(job_id: str, pair: Pair, label: str, why: str) -> StudentRow:
    return StudentRow(
        job_id=job_id,
        class_index=pair[0],
        label=label,
        method=pair[1],
        state=StudentState.FAILED,
        error=why,
    )
