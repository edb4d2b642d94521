"""Training jobs and their idempotency keys."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa

from app.domain.entities import TRANSITIONS, Job, JobState, Json, Priority
from app.domain.errors import Conflict, NotFound
from app.domain.figures import JOB_ERRORS, JOB_SECONDS_BUCKET, JOB_SECONDS_SUM, bucket_label, error_label
from app.store.dialect import clock_expression, on_postgresql
from app.store.paging import bounded_page
from app.store.repositories.scoped import Scoped
from app.store.repositories.tallies import Tallies
from app.store.row_bytes import count_for_job, growth, row_size, rows_size, set_row_bytes
from app.store.tables import idempotency_keys, is_unfinished, jobs

_UNFINISHED = {state for state in JobState if not state.ended}
_COLUMNS = [jobs.c[field.name] for field in dataclasses.fields(Job)]


class JobStatus(NamedTuple):
    """The fields that are read repeatedly while a job is unfinished; none of them is long."""

    state: JobState
    attempt: int
    started_at: float | None
    tenant: str
    created_by: str
    preparation_digest: str | None


class Jobs(Scoped):
    """Queries on jobs. All updates go through `change`, `advance` and `move`, which bump the revision."""

    def add(self, job: Job) -> None:
        self._check_owner(job.tenant)
        values = dataclasses.asdict(job) | {"state": job.state.value, "priority": job.priority.value}
        self._connection.execute(sa.insert(jobs), values | _named_in(job.spec))
        set_row_bytes(self._connection, jobs, jobs.c.id == job.id)

    def get(self, job_id: str) -> Job:
        row = self._connection.execute(sa.select(*_COLUMNS).where(self._is(job_id))).first()
        if row is None:
            raise _missing(job_id)
        return _entity(row)

    def lock(self, job_id: str) -> Job:
        """Like `get`, with an exclusive row lock until the end of the transaction. Raises NotFound."""
        self._lock(job_id)
        return self.get(job_id)

    def status(self, job_id: str, *, lock: bool = False) -> JobStatus:
        """The status of a job, for callers that read it often. lock: as in `lock`. Raises NotFound."""
        if lock:
            self._lock(job_id)
        columns = (jobs.c[name] for name in JobStatus._fields)
        row = self._connection.execute(sa.select(*columns).where(self._is(job_id))).first()
        if row is None:
            raise _missing(job_id)
        return JobStatus(JobState(row[0]), *row[1:])

    def _lock(self, job_id: str) -> None:
        if on_postgresql(self._connection):
            # FOR NO KEY UPDATE, so that other transactions can still insert rows that reference the job.
            lock = sa.select(jobs.c.id).where(self._is(job_id)).with_for_update(key_share=True)
            self._connection.execute(lock)

    def page(
        self,
        *,
        limit: int,
        after: str | None = None,
        states: Sequence[JobState] = (),
        since: float | None = None,
        **equal: str | None,
    ) -> tuple[Sequence[Job], bool]:
        """One page of jobs older than ``after`` in any of ``states``, newest first; and if there are more.

        It is bounded in bytes, too, see `bounded_page`.
        since: earliest submission, seconds since the epoch. equal: required values of model and created_by.
        """
        query = sa.select(*_COLUMNS).where(
            self._owns(jobs), *(jobs.c[name] == value for name, value in equal.items() if value is not None)
        )
        query = query.order_by(jobs.c.id.desc())
        if after is not None:
            query = query.where(jobs.c.id < after)
        if since is not None:
            query = query.where(jobs.c.created_at >= since)
        if set(states) == _UNFINISHED:
            query = query.where(is_unfinished)
        elif states:
            query = query.where(jobs.c.state.in_([state.value for state in states]))
        rows, has_more = bounded_page(self._connection, query, row_size(jobs), limit)
        return [_entity(row) for row in rows], has_more

    def change(self, job_id: str, **values: Any) -> Job:
        """Set columns other than the state; returns the updated job."""
        self._connection.execute(sa.update(jobs).where(self._is(job_id)).values(**_changed(values)))
        return self.get(job_id)

    def advance(self, job_id: str, done: int = 1, *, student_bytes: int = 0) -> Job:
        """Add to the number of finished students and their bytes, atomically; returns the updated job."""
        self._connection.execute(
            sa.update(jobs)
            .where(self._is(job_id))
            .values(
                progress_done=jobs.c.progress_done + done,
                student_bytes=jobs.c.student_bytes + student_bytes,
                revision=jobs.c.revision + 1,
            )
        )
        return self.get(job_id)

    def move(self, job_id: str, state: JobState, **values: Any) -> Job:
        """Change the state atomically. Raises Conflict if the current state cannot become ``state``."""
        allowed = [source.value for source, targets in TRANSITIONS.items() if state in targets]
        if state is JobState.QUEUED:
            values.setdefault("queued_at", clock_expression(self._connection))
        if state is JobState.RUNNING:
            values.setdefault("started_at", clock_expression(self._connection))
        if state.ended:
            values.setdefault("finished_at", clock_expression(self._connection))
        result = self._connection.execute(
            sa.update(jobs)
            .where(self._is(job_id), jobs.c.state.in_(allowed))
            .values(state=state.value, **_changed(values))
        )
        job = self.get(job_id)
        if result.rowcount == 0:
            raise Conflict(f"Job {job_id} is {job.state}; it cannot become {state}.", code="job_state")
        if state.ended:
            self._count_ended(job)
        return job

    def _count_ended(self, job: Job) -> None:
        seconds = 0.0
        if job.started_at is not None and job.finished_at is not None:
            seconds = max(0.0, job.finished_at - job.started_at)
        tallies = Tallies(self._connection)
        tallies.add(JOB_SECONDS_SUM, job.state.value, seconds)
        tallies.add(JOB_SECONDS_BUCKET, bucket_label(job.state.value, seconds))
        if job.error_code is not None:
            tallies.add(JOB_ERRORS, error_label(job.error_code))

    def oldest_queued_seconds(self) -> float:
        """Seconds that the oldest queued job has waited, by the database's clock; 0 without one."""
        query = sa.select(sa.func.min(jobs.c.queued_at), clock_expression(self._connection))
        query = query.where(is_unfinished, self._owns(jobs))
        oldest, now = self._connection.execute(query.where(jobs.c.state == JobState.QUEUED.value)).one()
        return 0.0 if oldest is None else max(0.0, now - oldest)

    def unfinished_progress(self) -> tuple[int, int]:
        """Sums of finished and of all units of the unfinished jobs."""
        sums = [
            sa.func.coalesce(sa.func.sum(column), 0)
            for column in (jobs.c.progress_done, jobs.c.progress_total)
        ]
        query = sa.select(*sums).where(is_unfinished, self._owns(jobs))
        done, total = self._connection.execute(query).one()
        return int(done), int(total)

    def newest_on(self, dataset_id: str, limit: int) -> Sequence[Job]:
        """The newest succeeded jobs that were trained on a data set, newest first."""
        query = sa.select(*_COLUMNS).where(
            self._owns(jobs), jobs.c.dataset_id == dataset_id, jobs.c.state == JobState.SUCCEEDED.value
        )
        rows, _ = bounded_page(self._connection, query.order_by(jobs.c.id.desc()), row_size(jobs), limit)
        return [_entity(row) for row in rows]

    def unfinished_for_dataset(self, dataset_id: str) -> bool:
        """Whether an unfinished job trains or tests on the data set."""
        names_it = sa.or_(jobs.c.dataset_id == dataset_id, jobs.c.test_dataset_id == dataset_id)
        return self._has_unfinished(names_it)

    def unfinished_with_teacher(self, reference: str) -> bool:
        """Whether an unfinished job uses the imported head ``model@version`` as its teacher."""
        return self._has_unfinished(jobs.c.teacher_model == reference)

    def _has_unfinished(self, condition: sa.ColumnElement[bool]) -> bool:
        query = sa.select(jobs.c.id).where(is_unfinished, self._owns(jobs), condition).limit(1)
        return self._connection.execute(query).first() is not None

    def count_by_state(self) -> dict[JobState, int]:
        """Number of jobs in each state."""
        query = sa.select(jobs.c.state, sa.func.count()).where(self._owns(jobs)).group_by(jobs.c.state)
        counts = {row[0]: row[1] for row in self._connection.execute(query)}
        return {state: counts.get(state.value, 0) for state in JobState}

    def add_idempotency_key(self, owner: str, key: str, body_digest: str, job_id: str) -> None:
        """Store the job that an Idempotency-Key created. A second insert violates the primary key."""
        values: dict[str, Any] = {"tenant": self.tenant, "owner": owner, "key": key}
        values |= {"body_digest": body_digest, "job_id": job_id}
        values |= {"created_at": time.time()}
        self._connection.execute(sa.insert(idempotency_keys), values)
        count_for_job(self._connection, job_id, rows_size([values], idempotency_keys))

    def find_idempotency_key(self, owner: str, key: str) -> tuple[str, str] | None:
        """(body digest, job id) of a stored Idempotency-Key, or None."""
        query = sa.select(idempotency_keys.c.body_digest, idempotency_keys.c.job_id).where(
            idempotency_keys.c.tenant == self.tenant,
            idempotency_keys.c.owner == owner,
            idempotency_keys.c.key == key,
        )
        row = self._connection.execute(query).first()
        return None if row is None else (row[0], row[1])

    def _is(self, job_id: str) -> sa.ColumnElement[bool]:
        return sa.and_(jobs.c.id == job_id, self._owns(jobs))


def _changed(values: Mapping[str, Any]) -> dict[str, Any]:
    """Columns to set, with the next revision and the bytes by which the row grows."""
    grown = growth(jobs, values)
    counted = {} if grown is None else {"row_bytes": jobs.c.row_bytes + grown}
    return {**values, **counted, "revision": jobs.c.revision + 1}


def _named_in(spec: Json) -> dict[str, str | None]:
    """The objects that a specification names and that must not be deleted while its job is unfinished.

    The teacher is the reference of a version; the name of a model on another server has no ``@``.
    """
    teacher = (spec.get("teacher") or {}).get("model")
    return {
        "test_dataset_id": (spec.get("evaluation") or {}).get("dataset_id"),
        "teacher_model": teacher if teacher and "@" in teacher else None,
    }


def _missing(job_id: str) -> NotFound:
    return NotFound(f"There is no training job {job_id!r}.", code="job_not_found")


def _entity(row: sa.Row[tuple[object, ...]]) -> Job:
    values = dict(row._mapping)
    return Job(**values | {"state": JobState(values["state"]), "priority": Priority(values["priority"])})
