"""Use cases of training jobs: submit, cancel, retry and read."""

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
from app.services.imported_teacher import pin_teacher_version
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
    """Store a job and enqueue it; returns it and whether it is new.

    A repeated idempotency key of the same caller returns the existing job. When the queue cannot be reached,
    the job stays stored as queued, and a worker enqueues it later.

    Raises NotFound, InvalidRequest (unknown class, unsuitable test data, bad model name), Overloaded, and
    Unprocessable when an idempotency key is reused with another body or the hyper-parameters do not suit the
    data set.
    """
    check_model_name(model)
    spec = _pin_teacher(store, dataset_id, spec, settings)

    def attempt() -> tuple[Job, bool]:
        with store.begin() as uow:
            if idempotency_key is not None:
                known = uow.jobs.find_idempotency_key(created_by, idempotency_key)
                if known is not None:
                    return _existing_job(uow, known, body_digest), False
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
        # A request with the same idempotency key was committed between our read and our insert.
        if idempotency_key is None:
            raise
        job, created = attempt()
    if created:
        _enqueue(queue, job)
    return job, created


def cancel_job(store: Store, queue: JobQueue, job_id: str) -> Job:
    """Cancel a job: a queued one immediately, a running one when its solver has stopped.

    A second call changes nothing. Raises NotFound, and Conflict when the job has already ended.
    """
    try:
        job = _request_cancel(store, job_id)
    except Conflict as conflict:
        if conflict.reason != "job_state":
            raise
        # The job changed its state between reading and writing: decide by its new state.
        job = _request_cancel(store, job_id)
    try:
        queue.cancel(job.workflow_id)
    except Unavailable:
        logger.warning(
            "job %s: the queue cannot be reached; its worker will read the state of the job", job_id
        )
    return job


def retry_job(store: Store, queue: JobQueue, job_id: str) -> Job:
    """Queue an ended job again. Its teacher and finished students are kept, and the missing ones are trained.

    Raises NotFound (also for a deleted data set), and Conflict when the job is unfinished or succeeded.
    """
    with store.begin() as uow:
        job = uow.jobs.get(job_id)
        if job.state not in RETRIABLE:
            raise Conflict(
                f"Job {job_id} is {job.state}; only failed, cancelled or partial jobs can be retried.",
                code="job_not_retriable",
            )
        dataset = uow.datasets.lock(job.dataset_id)
        spec = TrainingSpec.model_validate(job.spec)
        if spec.evaluation.dataset_id is not None:
            uow.datasets.lock(spec.evaluation.dataset_id)
        _reset_failures(uow, job_id)
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
    """Names of the workers that are working on each job."""
    running = [job.id for job in jobs if job.state in {JobState.RUNNING, JobState.CANCELLING}]
    with store.read() as uow:
        workers = uow.units.workers_of(running) if running else {}
    return {job.id: workers.get(job.id, ()) for job in jobs}


def list_jobs(
    store: Store, *, limit: int, after: str | None = None, states: Sequence[JobState] = ()
) -> tuple[Sequence[Job], bool]:
    """Jobs older than job ``after``, newest first, optionally only in ``states``; and whether more follow."""
    with store.read() as uow:
        return uow.jobs.page(limit=limit, after=after, states=states)


def job_events(
    store: Store, job_id: str, *, after: int = 0, limit: int = 1000
) -> tuple[Sequence[Event], bool]:
    """Events with numbers above ``after``, oldest first; and whether more follow. Raises NotFound."""
    with store.read() as uow:
        uow.jobs.get(job_id)
        events = uow.events.after(job_id, after, limit=limit + 1)
    return events[:limit], len(events) > limit


def job_students(
    store: Store, job_id: str, *, after: int = -1, limit: int = 100, method: str | None = None
) -> tuple[Sequence[StudentRow], bool]:
    """Students of the first ``limit`` classes with numbers above ``after``; and whether more follow.

    Students that an unfinished job has not trained yet are listed as pending. Raises NotFound.
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
    page = [rows[pair] for pair in sorted(rows) if pair[0] in shown]
    # No row at all means that the job does not train this method, for any class.
    return page, bool(page) and len(coming) > limit


def student_trace(store: Store, job_id: str, class_index: int, method: str) -> Json:
    """The search for one student: ``chosen``, and ``points`` with every point that was evaluated.

    Raises NotFound if the job or the student does not exist, or the student was trained without a search.
    """
    with store.read() as uow:
        uow.jobs.get(job_id)
        rows = uow.students.of_job(job_id, after=class_index - 1, limit=1, method=method)
        stored = uow.students.trace(job_id, class_index, method)
    row = next((row for row in rows if row.class_index == class_index), None)
    if row is None:
        message = f"Job {job_id} has no student {method!r} of class number {class_index}, at least not yet."
        raise NotFound(message, code="student_not_found")
    if stored is None:
        message = (
            f"The student {method!r} of class {row.label!r} was trained without a search: it has no trace."
        )
        raise NotFound(message, code="trace_not_found")
    trace: Json = json.loads(zlib.decompress(stored))
    student = {"job_id": job_id, "class_index": class_index, "label": row.label, "method": method}
    return student | trace


def estimated_finish(job: Job, now: float) -> float | None:
    """When a running job will end at its present pace, in seconds since the epoch; None without an estimate.

    The pace is that of the finished students of this attempt, without the time of the teacher.
    """
    since = job.provenance.get("students_since")
    if job.state is not JobState.RUNNING or since is None:
        return None
    done = job.progress_done - int(job.provenance.get("done_before", 0))
    if done < 1 or now <= since:
        return None
    return now + (now - float(since)) / done * (job.progress_total - job.progress_done)


def _pin_teacher(store: Store, dataset_id: str, spec: TrainingSpec, settings: Settings) -> TrainingSpec:
    """``spec`` with the reference of an imported teacher replaced by its version number, after validation."""
    if spec.teacher.model is None:
        return spec
    with store.read() as uow:
        dataset = uow.datasets.get(dataset_id)
    files = BlobCache(settings.cache_folder, settings.cache_disk_bytes)
    pinned = pin_teacher_version(store, files, spec.teacher.model, dataset)
    return spec.model_copy(update={"teacher": dataclasses.replace(spec.teacher, model=pinned)})


def _existing_job(uow: UnitOfWork, known: tuple[str, str], body_digest: str) -> Job:
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
        raise Overloaded(f"{settings.max_queued_jobs} training jobs are queued already.", retry_after=30.0)
    most = settings.max_queued_jobs_per_key
    if most is not None and uow.jobs.count(JobState.QUEUED, created_by=created_by) >= most:
        text = f"{most} training jobs of this key are queued already."
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
        logger.warning("job %s: the queue cannot be reached; a worker will enqueue the stored job", job.id)


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


def _reset_failures(uow: UnitOfWork, job_id: str) -> None:
    """Set all students that did not succeed to pending."""
    for row in uow.students.of_job(job_id):
        if row.state is not StudentState.SUCCEEDED:
            uow.students.save(
                dataclasses.replace(row, state=StudentState.PENDING, status=None, error=None, seconds=None)
            )
