"""Use cases of training jobs: submit, cancel, retry and read."""

from __future__ import annotations

import dataclasses
import json
import logging
import time
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy.exc import IntegrityError

from app.domain.entities import (
    WAITING,
    WORKER_ALIVE_SECONDS,
    Caller,
    Dataset,
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
from app.domain.names import LATEST_SUFFIX, check_model_name
from app.domain.ports import JobQueue
from app.domain.training_spec import TrainingSpec
from app.services import quotas
from app.services.admission import admit_jobs, enqueue_jobs
from app.services.imported_teacher import pin_teacher_version
from app.services.kept_columns import keep_columns
from app.services.training_plan import (
    check_data,
    check_memory,
    check_remote_teacher,
    check_size,
    lock_teacher,
    methods_of,
    target_count,
    targets_of,
    trained_classes,
    units_of,
)
from app.settings import Settings
from app.store.blob_cache import BlobCache
from app.store.unit_of_work import Store, UnitOfWork
from app.tracing import traceparent

logger = logging.getLogger(__name__)

RETRIABLE = frozenset({JobState.FAILED, JobState.CANCELLED, JobState.PARTIALLY_SUCCEEDED})


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
    noted: Json | None = None,
    audited: Json | None = None,
    encoder: tuple[str | None, str | None] | None = None,
) -> tuple[Job, bool]:
    """Store a job and enqueue it; returns it and whether it is new.

    noted, audited: what its provenance and its audit record say beside what they say of every job. encoder:
    digests of the encoder of another job, which this one takes, and of its profile; None to fit one.

    A repeated idempotency key of the same caller returns the existing job. When the queue cannot be reached,
    the job stays stored as queued, and a worker enqueues it later.

    Raises NotFound, InvalidRequest (unknown class, unsuitable test data, bad model name), Overloaded, and
    Unprocessable when an idempotency key is reused with another body or the hyper-parameters do not suit the
    data set.
    """
    check_model_name(model)
    check_size(spec)
    dataset_id, spec = _pin_datasets(store, dataset_id, spec)
    spec = _pin_encoders(store, _pin_teacher(store, dataset_id, spec, settings))

    admitted: list[tuple[str, int]] = []

    def attempt() -> tuple[Job, bool]:
        admitted.clear()
        with store.begin() as uow:
            if idempotency_key is not None:
                known = uow.jobs.find_idempotency_key(created_by, idempotency_key)
                if known is not None:
                    return _existing_job(uow, known, body_digest), False
            job = _new_job(uow, dataset_id, model, spec, created_by, settings, priority)
            job = dataclasses.replace(job, provenance=job.provenance | (noted or {}))
            if encoder is not None:
                job = dataclasses.replace(job, encoder_digest=encoder[0], profile_digest=encoder[1])
            uow.jobs.add(job)
            if idempotency_key is not None:
                uow.jobs.add_idempotency_key(created_by, idempotency_key, body_digest, job.id)
            uow.events.append(job.id, "job_queued", {"model": model, "dataset_id": dataset_id})
            details = {"model": model, "dataset_id": dataset_id} | (audited or {})
            uow.audit.append("job.submit", job.id, details=details)
            admitted[:] = admit_jobs(uow)
            return uow.jobs.get(job.id), True

    try:
        job, created = attempt()
    except IntegrityError:
        # A request with the same idempotency key was committed between our read and our insert.
        if idempotency_key is None:
            raise
        job, created = attempt()
    enqueue_jobs(queue, admitted)
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


def retry_job(store: Store, queue: JobQueue, job_id: str, settings: Settings) -> Job:
    """Queue an ended job again. Its teacher and finished students are kept, and the missing ones are trained.

    Raises NotFound (also for a deleted data set), Conflict when the job is unfinished or succeeded, and
    Overloaded, Conflict and TooLarge beyond the limits of jobs.
    """
    with store.begin() as uow:
        job = uow.jobs.lock(job_id)
        if job.state not in RETRIABLE:
            raise Conflict(
                f"Job {job_id} is {job.state}; only failed, cancelled or partial jobs can be retried.",
                code="job_not_retriable",
            )
        uow.datasets.lock(job.dataset_id)
        spec = TrainingSpec.model_validate(job.spec)
        if spec.evaluation.dataset_id is not None:
            uow.datasets.lock(spec.evaluation.dataset_id)
        require_room_for(uow, Caller(job.tenant, job.created_by), settings)
        provenance = {name: value for name, value in job.provenance.items() if name != "restarts"}
        alias_revision = _alias_revision(uow, job.model, spec)
        job = queue_again(uow, job, started_at=None, provenance=provenance, alias_revision=alias_revision)
        done = job.progress_done - (job.preparation_digest is not None)
        uow.events.append(job_id, "job_retried", {"attempt": job.attempt, "kept_students": done})
        uow.audit.append("job.retry", job_id, details={"attempt": job.attempt})
        admitted = admit_jobs(uow)
        job = uow.jobs.get(job_id)
    enqueue_jobs(queue, admitted)
    return job


def queue_again(uow: UnitOfWork, job: Job, **changes: Any) -> Job:
    """Set a job queued for its next attempt. Teacher and finished students are kept. It waits for admission.

    The caller has locked the job; a running one also becomes queued, when its attempt cannot continue.
    changes: columns of the job to set, including ``started_at``, from which its time limit is counted.
    """
    spec = TrainingSpec.model_validate(job.spec)
    dataset = uow.datasets.get(job.dataset_id)
    uow.students.reset_failures(job.id)
    done = uow.students.count_succeeded(job.id, excluding="teacher")
    total = units_of(spec, target_count(spec, dataset))
    if job.addition is not None:
        total = 1
    elif job.preparation_digest is not None:
        done += 1
    return uow.jobs.move(
        job.id,
        JobState.QUEUED,
        attempt=job.attempt + 1,
        stage=WAITING,
        progress_done=done,
        progress_total=total,
        finished_at=None,
        error_code=None,
        error_message=None,
        **changes,
    )


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
    store: Store,
    *,
    limit: int,
    after: str | None = None,
    states: Sequence[JobState] = (),
    model: str | None = None,
    created_by: str | None = None,
    since: float | None = None,
) -> tuple[Sequence[Job], bool]:
    """Jobs older than job ``after``, newest first; and whether more follow.

    states, model, created_by: only these. since: earliest submission, seconds since the epoch.
    """
    with store.read() as uow:
        return uow.jobs.page(
            limit=limit, after=after, states=states, since=since, model=model, created_by=created_by
        )


def count_jobs(store: Store) -> dict[JobState, int]:
    """Number of jobs in each state."""
    with store.read() as uow:
        return uow.jobs.count_by_state()


def job_events(
    store: Store, job_id: str, *, after: int = 0, limit: int = 1000
) -> tuple[Sequence[Event], bool]:
    """Events with numbers above ``after``, oldest first; and whether more follow. Raises NotFound."""
    with store.read() as uow:
        uow.jobs.status(job_id)
        return uow.events.page(job_id, after, limit=limit)


def last_events(store: Store, job_id: str, *, limit: int) -> Sequence[Event]:
    """The newest events of a job, newest first."""
    with store.read() as uow:
        return uow.events.last(job_id, limit=limit)


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
        coming, classes = _coming(uow, spec, dataset, after=after, limit=limit)
        stored, is_cut = uow.students.page(job_id, after=after, limit=limit, method=method)
    # Pending rows are short, so a page ends where that of the stored rows ends.
    within = coming if not is_cut else [target for target in coming if target <= stored[-1].class_index]
    rows = {(row.class_index, row.method): row for row in stored}
    methods = [name for name in methods_of(spec) if method in {None, name}]
    for target in within[:limit]:
        for name in methods:
            pending = StudentRow(job_id, target, classes[target], name, StudentState.PENDING)
            rows.setdefault((target, name), pending)
    shown = set(within[:limit])
    page = [rows[pair] for pair in sorted(rows) if pair[0] in shown]
    # No row at all means that the job does not train this method, for any class.
    return page, bool(page) and len(coming) > len(shown)


def _coming(
    uow: UnitOfWork, spec: TrainingSpec, dataset: Dataset, *, after: int, limit: int
) -> tuple[Sequence[int], Mapping[int, str]]:
    """The targets of a job above ``after``, and the names of the first ``limit`` of them."""
    if spec.classes is None and (spec.labelling is None or spec.labelling.uses_labels):
        coming: Sequence[int] = range(after + 1, dataset.class_count)
        return coming, uow.datasets.class_names(dataset.id, coming[:limit])
    classes = trained_classes(uow, spec, dataset)
    coming = [target for target in targets_of(spec, classes) if target > after]
    return coming, {target: classes[target] for target in coming[:limit]}


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


def _pin_datasets(store: Store, dataset_id: str, spec: TrainingSpec) -> tuple[str, TrainingSpec]:
    """The ids of the newest revisions in place of names that say so. Raises NotFound."""
    tested = spec.evaluation.dataset_id
    if not any(name and name.endswith(LATEST_SUFFIX) for name in (dataset_id, tested)):
        return dataset_id, spec
    with store.read() as uow:
        dataset_id = uow.datasets.get(dataset_id).id
        if tested is not None:
            pinned = spec.evaluation.model_copy(update={"dataset_id": uow.datasets.get(tested).id})
            spec = spec.model_copy(update={"evaluation": pinned})
    return dataset_id, spec


def _pin_teacher(store: Store, dataset_id: str, spec: TrainingSpec, settings: Settings) -> TrainingSpec:
    """``spec`` with the reference of an imported teacher replaced by its version number, after validation."""
    if spec.teacher.model is None:
        return spec
    with store.read() as uow:
        dataset = uow.datasets.get(dataset_id)
    files = BlobCache.of(settings)
    pinned = pin_teacher_version(store, files, spec.teacher.model, dataset)
    return spec.model_copy(update={"teacher": dataclasses.replace(spec.teacher, model=pinned)})


def _pin_encoders(store: Store, spec: TrainingSpec) -> TrainingSpec:
    """``spec`` with the identities of the encoders that it names. Raises NotFound."""
    if spec.inputs is None or not spec.inputs.encoders:
        return spec
    with store.read() as uow:

        def pinned(reference: str) -> str:
            encoder = uow.own_encoders.specification(reference)
            return f"{encoder.name}@{encoder.identity}"

        return spec.model_copy(update={"inputs": spec.inputs.with_encoders(pinned)})


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
    spec, kept = keep_columns(uow, dataset, model, spec)
    check_size(spec)
    if spec.classes is not None:
        # Raises InvalidRequest for a class that does not exist.
        targets_of(spec, trained_classes(uow, spec, dataset))
    check_data(uow, dataset, spec)
    check_memory(uow, dataset, spec)
    check_remote_teacher(uow, dataset, spec, settings)
    lock_teacher(uow, spec)
    require_room_for(uow, Caller(dataset.tenant, created_by), settings)
    return Job(
        id=new_id("job"),
        dataset_id=dataset_id,
        model=model,
        spec=spec.model_dump(mode="json"),
        state=JobState.QUEUED,
        attempt=0,
        stage=WAITING,
        progress_done=0,
        progress_total=units_of(spec, target_count(spec, dataset)),
        created_at=(now := time.time()),
        queued_at=now,
        traceparent=traceparent(),
        created_by=created_by,
        priority=priority,
        alias_revision=_alias_revision(uow, model, spec),
        provenance={"seed": spec.seed, "dataset_digest": dataset.digest, **kept},
        tenant=dataset.tenant,
    )


def _alias_revision(uow: UnitOfWork, model: str, spec: TrainingSpec) -> int:
    return uow.models.alias_revision(model, spec.alias) if spec.alias is not None else 0


def require_room_for(uow: UnitOfWork, owner: Caller, settings: Settings) -> None:
    """Raise Overloaded, Conflict and TooLarge if the queue is full, or the share of the key or the tenant."""
    uow.quotas.lock(owner.tenant)
    quotas.require_room_for_job(uow, settings, owner.tenant)
    if uow.admission.count_queued() >= settings.max_queued_jobs:
        raise Overloaded(f"{settings.max_queued_jobs} training jobs are queued already.", retry_after=30.0)
    most = settings.max_unfinished_jobs_per_key
    if most is not None and uow.admission.count_unfinished(owner) >= most:
        text = f"{most} training jobs of this key are unfinished already."
        raise Overloaded(text, code="too_many_unfinished_jobs", retry_after=30.0)


def _request_cancel(store: Store, job_id: str) -> Job:
    with store.begin() as uow:
        job = uow.jobs.lock(job_id)
        if job.state is JobState.CANCELLING:
            return job
        if job.state.ended:
            raise Conflict(f"Job {job_id} has already ended: it is {job.state}.", code="job_ended")
        if job.state is JobState.QUEUED or not _a_worker_is_alive(uow):
            job = uow.jobs.move(job_id, JobState.CANCELLED)
            uow.units.forget(job_id, job.attempt)
            uow.events.append(job_id, "job_cancelled", {})
        else:
            job = uow.jobs.move(job_id, JobState.CANCELLING)
            uow.events.append(job_id, "job_cancelling", {})
        uow.audit.append("job.cancel", job_id, details={"state": job.state.value})
        return job


def _a_worker_is_alive(uow: UnitOfWork) -> bool:
    return bool(uow.workers.alive(WORKER_ALIVE_SECONDS))
