"""The store of a simulated process: `app.store.unit_of_work.Store` on the simulated database.

It has the methods that the code under test calls, with the meaning of the repositories' SQL. ``bugs`` are the
names of planted bugs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from app.domain.entities import (
    TRANSITIONS,
    WAITING,
    Caller,
    Event,
    Job,
    JobState,
    Json,
    StudentRow,
    StudentState,
    Worker,
)
from app.domain.errors import Conflict, NotFound
from app.store.repositories.admission import AdmittedJob
from app.store.repositories.jobs import JobStatus
from app.store.repositories.workers import PeerSummary
from lab.verification.simulated.database import Database, Transaction


class SimulatedStore:
    """Opens transactions of the process whose code runs. objects: there is no object store."""

    objects = None

    def __init__(self, database: Database, bugs: Collection[str]) -> None:
        self._database = database
        self._bugs = bugs

    @contextmanager
    def begin(self) -> Iterator[SimulatedUnitOfWork]:
        database = self._database
        transaction = database.begin()
        try:
            yield SimulatedUnitOfWork(database, transaction, self._bugs)
            database.commit(transaction)
        except BaseException:
            database.rollback(transaction)
            raise

    read = peek = single = begin


class SimulatedUnitOfWork:
    def __init__(self, database: Database, transaction: Transaction, bugs: Collection[str]) -> None:
        self.database = database
        self.transaction = transaction
        self.workers: Any = _Workers(database, transaction, bugs)
        self.jobs: Any = _Jobs(database, transaction)
        self.students: Any = _Students(database, transaction)
        self.units: Any = _Units(database, transaction)
        self.events: Any = _Events(database, transaction)
        self.admission: Any = _Admission(database, transaction)
        self.blobs: Any = _Blobs()
        self.evaluations: Any = _Evaluations(database, transaction)


class _Repository:
    def __init__(self, database: Database, transaction: Transaction) -> None:
        self._database = database
        self._transaction = transaction

    def _statement(self) -> None:
        self._database.statement(self._transaction)

    def _get(self, table: str, key: Any) -> Any:
        return self._database.get(self._transaction, table, key)

    def _lock(self, table: str, key: Any) -> Any:
        """The row after waiting for its lock, as an UPDATE of READ COMMITTED sees it."""
        self._database.lock(self._transaction, table, key)
        return self._get(table, key)

    def _put(self, table: str, key: Any, row: Any) -> None:
        self._database.put(self._transaction, table, key, row)

    def _rows(self, table: str) -> Iterator[tuple[Any, Any]]:
        return self._database.rows(self._transaction, table)


class _Evaluations(_Repository):
    def unfinished(self, *, limit: int) -> Sequence[Any]:
        """The simulated cluster trains only."""
        self._statement()
        return ()[:limit]


class _Workers(_Repository):
    def __init__(self, database: Database, transaction: Transaction, bugs: Collection[str]) -> None:
        super().__init__(database, transaction)
        self._bugs = bugs

    def beat(self, worker: Worker) -> None:
        self._statement()
        self._put("workers", worker.executor_id, worker)

    def renew(self, worker: Worker, *, late: float, dead: float) -> PeerSummary | None:
        self._statement()
        row = self._lock("workers", worker.executor_id)
        if row is None or (row.lost_at is not None and "lost_goes_on" not in self._bugs):
            return None
        now = self._database.clock()
        self._put(
            "workers", worker.executor_id, dataclasses.replace(worker, beat_at=now, lost_at=row.lost_at)
        )
        others = [other for name, other in self._rows("workers") if name != worker.executor_id]
        listed = [other for other in others if other.lost_at is None]
        return PeerSummary(
            late=sum(other.beat_at < now - late for other in listed),
            lost=len(others) - len(listed),
            is_first=not any(
                other.beat_at >= now - dead and other.executor_id < worker.executor_id for other in listed
            ),
        )

    def clock(self) -> float:
        self._statement()
        return self._database.clock()

    def mark_lost(self, executor_id: str, beat_at: float | None = None) -> bool:
        self._statement()
        row = self._lock("workers", executor_id)
        if row is None or row.lost_at is not None:
            return False
        if beat_at is not None and row.beat_at != beat_at and "mark_without_check" not in self._bugs:
            return False
        self._put("workers", executor_id, dataclasses.replace(row, lost_at=self._database.clock(), units=()))
        return True

    def all(self) -> Sequence[Worker]:
        self._statement()
        return [row for _, row in self._rows("workers")]

    def alive(self, seconds: float) -> Sequence[Worker]:
        since = self._database.clock() - seconds
        return [row for row in self.all() if row.lost_at is None and row.beat_at >= since]

    def forget(self, executor_id: str) -> None:
        self._statement()
        self._put("workers", executor_id, None)


class _Jobs(_Repository):
    def add(self, job: Job) -> None:
        self._statement()
        self._put("jobs", job.id, job)

    def get(self, job_id: str) -> Job:
        self._statement()
        return self._present(self._get("jobs", job_id), job_id)

    def lock(self, job_id: str) -> Job:
        self._statement()
        return self._present(self._lock("jobs", job_id), job_id)

    def status(self, job_id: str, *, lock: bool = False) -> JobStatus:
        job = self.lock(job_id) if lock else self.get(job_id)
        return JobStatus(*(getattr(job, name) for name in JobStatus._fields))

    def change(self, job_id: str, **values: Any) -> Job:
        self._statement()
        job = self._present(self._lock("jobs", job_id), job_id)
        job = dataclasses.replace(job, **values, revision=job.revision + 1)
        self._put("jobs", job_id, job)
        return job

    def advance(self, job_id: str, done: int = 1, **_sizes: int) -> Job:
        self._statement()
        job = self._present(self._lock("jobs", job_id), job_id)
        return self.change(job_id, progress_done=job.progress_done + done)

    def move(self, job_id: str, state: JobState, **values: Any) -> Job:
        self._statement()
        job = self._present(self._lock("jobs", job_id), job_id)
        if state not in TRANSITIONS[job.state]:
            raise Conflict(f"Job {job_id} is {job.state}; it cannot become {state}.", code="job_state")
        return self.change(job_id, state=state, **values)

    @staticmethod
    def _present(job: Job | None, job_id: str) -> Job:
        if job is None:
            raise NotFound(f"There is no training job {job_id!r}.", code="job_not_found")
        return job


class _Admission(_Repository):
    def lock(self) -> None:
        self._statement()
        self._lock("locks", "admission")

    def any_unfinished(self) -> bool:
        self._statement()
        return any(not job.state.ended for _, job in self._rows("jobs"))

    def any_waiting(self) -> bool:
        return bool(self.waiting())

    def waiting(self) -> Sequence[tuple[str, str, Caller]]:
        self._statement()
        return [
            (job.id, job.priority.value, Caller(job.tenant, job.created_by))
            for _, job in self._rows("jobs")
            if job.state is JobState.QUEUED and job.stage == WAITING
        ]

    def admitted(self) -> dict[Caller, int]:
        self._statement()
        return {}

    def admitted_jobs(self, *, limit: int, after: str = "") -> Sequence[AdmittedJob]:
        self._statement()
        jobs = [
            AdmittedJob(job.id, job.tenant, job.state, job.attempt)
            for key, job in self._rows("jobs")
            if key > after and not job.state.ended
            if job.state is not JobState.QUEUED or job.stage != WAITING
        ]
        return sorted(jobs)[:limit]

    def admit(self, job_ids: Collection[str]) -> Sequence[tuple[str, int]]:
        self._statement()
        admitted = []
        for job_id in job_ids:
            job = self._lock("jobs", job_id)
            if job.state is JobState.QUEUED and job.stage == WAITING:
                self._put("jobs", job_id, dataclasses.replace(job, stage="queued", revision=job.revision + 1))
                admitted.append((job_id, job.attempt))
        return admitted


class _Students(_Repository):
    def maps_among(self, _job_id: str, _digests: Collection[str]) -> set[str]:
        """None: the simulated solvers share no map."""
        self._statement()
        return set()

    def save_all(self, rows: Sequence[StudentRow]) -> set[tuple[int, str]]:
        self._statement()
        stored = set()
        for row in rows:
            key = (row.job_id, row.class_index, row.method)
            before = self._lock("students", key)
            if before is None or before.state is not StudentState.SUCCEEDED:
                self._put("students", key, row)
                stored.add((row.class_index, row.method))
        return stored

    def keep_curves(self, curves: Sequence[object], _job_id: str) -> None:
        if curves:
            self._statement()

    def results(
        self, job_id: str, first: int, last: int, states: Collection[StudentState]
    ) -> list[StudentRow]:
        self._statement()
        return [
            row
            for (of, index, _), row in self._rows("students")
            if of == job_id and first <= index <= last and row.state in states
        ]


class _Units(_Repository):
    def forget(self, _job_id: str, _attempt: int, _numbers: Sequence[int] | None = None) -> None:
        self._statement()


class _Events(_Repository):
    def append(self, job_id: str, event_type: str, data: Json | None = None) -> Event:
        return self.append_all(job_id, [(event_type, data or {})])[0]

    def append_all(self, job_id: str, events: Sequence[tuple[str, Json]]) -> Sequence[Event]:
        if not events:
            return []
        self._statement()
        self._lock("jobs", job_id)
        last = max((seq for (of, seq), _ in self._rows("events") if of == job_id), default=0)
        stored = [
            Event(job_id, seq, self._database.clock(), kind, data)
            for seq, (kind, data) in enumerate(events, last + 1)
        ]
        for event in stored:
            self._put("events", (job_id, event.seq), event)
        return stored


class _Blobs:
    def put(self, _chunks: Sequence[bytes]) -> tuple[str, int]:
        return "", 0
