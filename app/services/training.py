"""Use cases of training jobs: submit, cancel, retry, look."""

from __future__ import annotations

import dataclasses
import json
import logging
import time
import zlib
from collections.abc import Sequence

from sqlalchemy.exc import IntegrityError

from app.domain.entities import (
    WORKER_ALIVE_SECONDS,
    Event,
    Job,
    JobState,
    Json,
    Priority,
    StudentRow,
    StudentState,
    new_id,
)
from app.domain.errors import (
    Conflict,
    NotFound,
    Overloaded,
    Unavailable,
    Unprocessable,
)
from app.domain.names import check_model_name
from app.domain.ports import JobQueue
from app.domain.training_spec import TrainingSpec
from app.services.imported_teacher import fixed_teacher
from app.services.training_plan import check_data, methods_of, targets_of, units_of
from app.settings import Settings
from app.store.blob_cache import BlobCache
from app.store.unit_of_work import Store, UnitOfWork

logger = logging.getLogger(__name__)

RETRIABLE = frozenset({JobState.FAILED, JobState.CANCELLED, JobState.PARTIALLY_SUCCEEDED})
"""Seconds without any worker's heartbeat after which a running job is cancelled without waiting for one."""


def submit_job(
    store: Store,
    queue: JobQueue,
    *,
    dataset_id: str,
    model: str,
    spec: TrainingSpec,
    created_by: str,
    idempotency_key: str | None,
    body_digest: str,
    settings: Settings,
    priority: Priority = Priority.NORMAL,
) -> tuple[Job, bool]:
    """Store a job and put it in the queue; returns it and whether it is new.

    The same idempotency key of the same caller gives the job it made before. When the queue cannot be reached
    the job stays stored as queued, and the next worker that looks puts it in.

    Raises NotFound, InvalidRequest (unknown class, unfit test data, bad model name), Overloaded, and
    Unprocessable when an idempotency key comes back with another body, or hyper-parameters do not suit the
    data set.
    """
    check_model_name(model)
    spec = _with_fixed_teacher(store, dataset_id, spec, settings)

    def attempt() -> tuple[Job, bool]:
        with store.begin() as uow:
            if idempotency_key is not None:
                known = uow.jobs.find_idempotency_key(created_by, idempotency_key)
                if known is not None:
                    return _remembered_job(uow, known, body_digest), False
            job = _new_job(uow, dataset_id, model, spec, created_by, settings, priority)
            uow.jobs.add(job)
            if idempotency_key is not None:
                uow.jobs.add_idempotency_key(created_by, idempotency_key, body_digest, job.id)
            uow.events.append(job.id, "job_queued", {"model": model, "dataset_id": dataset_id})
            uow.audit.append("job.submit", job.id, details={"model": model, "dataset_id": dataset_id})
        return job, True

    try:
        job, created = attempt()
    except IntegrityError:
        # A twin request with the same idempotency key was committed between our look and our insert.
        if idempotency_key is None:
            raise
        job, created = attempt()
    if created:
        _enqueue(queue, job)
    return job, created


def cancel_job(store: Store, queue: JobQueue, job_id: str) -> Job:
    """Ask a job to stop. A queued one is cancelled at once, a running one when its solver has ended.

    Cancelling twice is the same as once. Raises NotFound, and Conflict when the job has already ended.
    """
    try:
        job = _request_cancel(store, job_id)
    except Conflict as conflict:
        if conflict.reason != "job_state":
            raise
        # The job moved (queued to running, or to its end) between reading and writing: judge its new state.
        job = _request_cancel(store, job_id)
    try:
        queue.cancel(job.workflow_id)
    except Unavailable:
        logger.warning("job %s: the queue cannot be reached; its worker will see the job's own state", job_id)
    return job


def retry_job(store: Store, queue: JobQueue, job_id: str) -> Job:
    """Queue an ended job again: its teacher and finished students are kept, what is missing is trained.

    Raises NotFound (also when the data set is gone), Conflict when the job is unfinished or wholly succeeded.
    """
    with store.begin() as uow:
        job = uow.jobs.get(job_id)
        if job.state not in RETRIABLE:
            raise Conflict(
                f"Job {job_id} is {job.state}; only one that failed, was cancelled or is partial is retried.",
                code="job_not_retriable",
            )
        dataset = uow.datasets.lock(job.dataset_id)
        spec = TrainingSpec.model_validate(job.spec)
        if spec.evaluation.dataset_id is not None:
            uow.datasets.lock(spec.evaluation.dataset_id)
        _forget_failures(uow, job_id)
        done = sum(method != "teacher" for _, method in uow.students.succeeded(job_id))
        job = uow.jobs.move(
            job_id,
            JobState.QUEUED,
            attempt=job.attempt + 1,
            stage="queued",
            progress_done=done + (job.preparation_digest is not None),
            progress_total=units_of(spec, targets_of(spec, dataset.classes)),
            started_at=None,
            finished_at=None,
            error_code=None,
            error_message=None,
        )
        uow.events.append(job_id, "job_retried", {"attempt": job.attempt, "kept_students": done})
        uow.audit.append("job.retry", job_id, details={"attempt": job.attempt})
    _enqueue(queue, job)
    return job


def get_job(store: Store, job_id: str) -> Job:
    """One job. Raises NotFound."""
    with store.read() as uow:
        return uow.jobs.get(job_id)


def workers_of(store: Store, jobs: Sequence[Job]) -> dict[str, Sequence[str]]:
    """Names of the workers that have work of each job under way."""
    running = [job.id for job in jobs if job.state in {JobState.RUNNING, JobState.CANCELLING}]
    with store.read() as uow:
        found = uow.units.workers_of(running) if running else {}
    return {job.id: found.get(job.id, ()) for job in jobs}


def list_jobs(
    store: Store, *, limit: int, after: str | None = None, states: Sequence[JobState] = ()
) -> tuple[Sequence[Job], bool]:
    """Jobs newest first, those older than job ``after``, in the given states; and whether there are more."""
    with store.read() as uow:
        return uow.jobs.page(limit=limit, after=after, states=states)


def job_events(
    store: Store, job_id: str, *, after: int = 0, limit: int = 1000
) -> tuple[Sequence[Event], bool]:
    """Events numbered above ``after``, oldest first; and whether there are more. Raises NotFound."""
    with store.read() as uow:
        uow.jobs.get(job_id)
        found = uow.events.after(job_id, after, limit=limit + 1)
    return found[:limit], len(found) > limit


def job_students(
    store: Store, job_id: str, *, after: int = -1, limit: int = 100, method: str | None = None
) -> tuple[Sequence[StudentRow], bool]:
    """Rows of the first ``limit`` classes numbered above ``after``, by class and method; whether more follow.

    While the job is unfinished, students that are still to come are listed as pending. Raises NotFound.
    """
    with store.read() as uow:
        job = uow.jobs.get(job_id)
        if job.state.ended:
            return uow.students.page(job_id, after=after, limit=limit, method=method)
        dataset = uow.datasets.get(job.dataset_id)
        spec = TrainingSpec.model_validate(job.spec)
        coming = [target for target in targets_of(spec, dataset.classes) if target > after]
        stored = uow.students.of_job(job_id, after=after, limit=limit, method=method)
    rows = {(row.class_index, row.method): row for row in stored}
    methods = [name for name in methods_of(spec) if method in {None, name}]
    for target in coming[:limit]:
        for name in methods:
            pending = StudentRow(job_id, target, dataset.classes[target], name, StudentState.PENDING)
            rows.setdefault((target, name), pending)
    shown = set(coming[:limit])
    found = [rows[pair] for pair in sorted(rows) if pair[0] in shown]
    # No row of many classes: the method is none of this job's, and there are none further on.
    return found, bool(found) and len(coming) > limit


def student_trace(store: Store, job_id: str, class_index: int, method: str) -> Json:
    """How one student was searched for: ``chosen`` and ``points``, every point that was tried.

    Raises NotFound: no such job; no such student, or not yet; a student that was not searched for.
    """
    with store.read() as uow:
        uow.jobs.get(job_id)
        rows = uow.students.of_job(job_id, after=class_index - 1, limit=1, method=method)
        stored = uow.students.trace(job_id, class_index, method)
    row = next((row for row in rows if row.class_index == class_index), None)
    if row is None:
        message = f"Job {job_id} has no student {method!r} of class number {class_index}, or not yet."
        raise NotFound(message, code="student_not_found")
    if stored is None:
        message = f"The student {method!r} of class {row.label!r} was not searched for: it has no trace."
        raise NotFound(message, code="trace_not_found")
    found: Json = json.loads(zlib.decompress(stored))
    about = {"job_id": job_id, "class_index": class_index, "label": row.label, "method": method}
    return about | found


def estimated_finish(job: Job, now: float) -> float | None:
    """When a running job will end at its present pace, seconds since the epoch; None while nobody can tell.

    The pace is that of the students of this attempt: the time of teachers says nothing about it, nor does a
    student that is still being searched for.
    """
    since = job.provenance.get("students_since")
    if job.state is not JobState.RUNNING or since is None:
        return None
    done = job.progress_done - int(job.provenance.get("done_before", 0))
    if done < 1 or now <= since:
        return None
    return now + (now - float(since)) / done * (job.progress_total - job.progress_done)


def _with_fixed_teacher(
    store: Store, dataset_id: str, spec: TrainingSpec, settings: Settings
) -> TrainingSpec:
    """The same with the version of an imported teacher by its number, after a look whether it is fit."""
    if spec.teacher.model is None:
        return spec
    with store.read() as uow:
        dataset = uow.datasets.get(dataset_id)
    files = BlobCache(settings.cache_folder, settings.cache_disk_bytes)
    fixed = fixed_teacher(store, files, spec.teacher.model, dataset)
    return spec.model_copy(update={"teacher": spec.teacher.model_copy(update={"model": fixed})})


def _remembered_job(uow: UnitOfWork, known: tuple[str, str], body_digest: str) -> Job:
    digest, job_id = known
    if digest != body_digest:
        raise Unprocessable(
            f"This Idempotency-Key was used for job {job_id} with another body.",
            code="idempotency_key_reused",
        )
    return uow.jobs.get(job_id)


def _new_job(
    uow: UnitOfWork,
    dataset_id: str,
    model: str,
    spec: TrainingSpec,
    created_by: str,
    settings: Settings,
    priority: Priority,
) -> Job:
    dataset = uow.datasets.lock(dataset_id)
    targets = targets_of(spec, dataset.classes)
    check_data(uow, dataset, spec)
    if uow.jobs.count(JobState.QUEUED) >= settings.max_queued_jobs:
        raise Overloaded(f"{settings.max_queued_jobs} training jobs are waiting already.", retry_after=30.0)
    most = settings.max_queued_jobs_per_key
    if most is not None and uow.jobs.count(JobState.QUEUED, created_by=created_by) >= most:
        text = f"{most} training jobs of this key are waiting already."
        raise Overloaded(text, code="too_many_queued_jobs", retry_after=30.0)
    return Job(
        id=new_id("job"),
        dataset_id=dataset_id,
        model=model,
        spec=spec.model_dump(mode="json"),
        state=JobState.QUEUED,
        attempt=0,
        stage="queued",
        progress_done=0,
        progress_total=units_of(spec, targets),
        created_at=time.time(),
        created_by=created_by,
        priority=priority,
        provenance={"seed": spec.seed, "dataset_digest": dataset.digest},
    )


def _enqueue(queue: JobQueue, job: Job) -> None:
    try:
        queue.enqueue(job.id, job.workflow_id)
    except Unavailable:
        logger.warning("job %s: the queue cannot be reached; a worker will put the stored job in", job.id)


def _request_cancel(store: Store, job_id: str) -> Job:
    with store.begin() as uow:
        job = uow.jobs.get(job_id)
        if job.state is JobState.CANCELLING:
            return job
        if job.state.ended:
            raise Conflict(f"Job {job_id} has already ended: it is {job.state}.", code="job_ended")
        if job.state is JobState.QUEUED or not _a_worker_is_alive(uow):
            job = uow.jobs.move(job_id, JobState.CANCELLED)
            uow.events.append(job_id, "job_cancelled", {})
        else:
            job = uow.jobs.move(job_id, JobState.CANCELLING)
            uow.events.append(job_id, "job_cancelling", {})
        uow.audit.append("job.cancel", job_id, details={"state": job.state.value})
        return job


def _a_worker_is_alive(uow: UnitOfWork) -> bool:
    return bool(uow.workers.alive(time.time() - WORKER_ALIVE_SECONDS))


def _forget_failures(uow: UnitOfWork, job_id: str) -> None:
    """Failed rows are pending again; succeeded ones stay."""
    for row in uow.students.of_job(job_id):
        if row.state is not StudentState.SUCCEEDED:
            uow.students.save(
                dataclasses.replace(row, state=StudentState.PENDING, status=None, error=None, seconds=None)
            )
