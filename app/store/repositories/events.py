"""Stored events of jobs."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence

import sqlalchemy as sa
from sqlalchemy import Connection

from app.domain.entities import Event, JobState, Json
from app.domain.figures import COUNTED_EVENTS, JOB_EVENTS
from app.domain.webhook import JOB_EVENTS as ENDS
from app.store.dialect import on_postgresql
from app.store.paging import bounded_page
from app.store.repositories.outbox import Outbox
from app.store.repositories.tallies import Tallies
from app.store.row_bytes import count_for_job, row_size, rows_size
from app.store.tables import job_events, jobs


class Events:
    """Queries on events: append and read. Events are never changed."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def append(self, job_id: str, event_type: str, data: Json | None = None) -> Event:
        """Store an event under the job's next number. Concurrent writers of a job wait on its row lock."""
        return self.append_all(job_id, [(event_type, data or {})])[0]

    def append_all(self, job_id: str, events: Sequence[tuple[str, Json]]) -> Sequence[Event]:
        """Like `append`, for several (type, data) pairs in order. The end of a job also goes to webhooks."""
        if not events:
            return []
        if on_postgresql(self._connection):
            # FOR NO KEY UPDATE, because FOR UPDATE would deadlock with transactions that insert students.
            lock = sa.select(jobs.c.id).where(jobs.c.id == job_id).with_for_update(key_share=True)
            self._connection.execute(lock)
        newest = sa.select(sa.func.coalesce(sa.func.max(job_events.c.seq), 0))
        last = int(self._connection.execute(newest.where(job_events.c.job_id == job_id)).scalar_one())
        now = time.time()
        stored = [
            Event(job_id=job_id, seq=seq, at=now, type=event_type, data=data)
            for seq, (event_type, data) in enumerate(events, last + 1)
        ]
        rows = [dataclasses.asdict(event) for event in stored]
        self._connection.execute(sa.insert(job_events), rows)
        count_for_job(self._connection, job_id, rows_size(rows, job_events))
        for event in stored:
            if event.type in COUNTED_EVENTS:
                Tallies(self._connection).add(JOB_EVENTS, event.type)
            if event.type in ENDS:
                Outbox(self._connection).job_ended(job_id, event.type, event.data)
        return stored

    def newest(self, job_ids: Sequence[str]) -> dict[str, tuple[bool, int]]:
        """By job id, whether the job has ended, and the number of its newest event, in one statement.

        A job that has ended stores no further events. Jobs that do not exist are left out.
        """
        of_job = sa.select(sa.func.max(job_events.c.seq)).where(job_events.c.job_id == jobs.c.id)
        query = sa.select(jobs.c.id, jobs.c.state, of_job.scalar_subquery()).where(jobs.c.id.in_(job_ids))
        return {
            job_id: (JobState(state).ended, seq or 0)
            for job_id, state, seq in self._connection.execute(query)
        }

    def after(self, job_id: str, seq: int, *, limit: int) -> Sequence[Event]:
        """Events with numbers above ``seq``, oldest first."""
        return self.page(job_id, seq, limit=limit)[0]

    def page(self, job_id: str, seq: int, *, limit: int) -> tuple[Sequence[Event], bool]:
        """As `after`, and whether more follow. A page is bounded in bytes, too."""
        query = sa.select(job_events).where(job_events.c.job_id == job_id, job_events.c.seq > seq)
        query = query.order_by(job_events.c.seq)
        rows, has_more = bounded_page(self._connection, query, row_size(job_events), limit)
        return [Event(**row._mapping) for row in rows], has_more

    def last(self, job_id: str, *, limit: int) -> Sequence[Event]:
        """The newest events, newest first."""
        query = sa.select(job_events).where(job_events.c.job_id == job_id)
        query = query.order_by(job_events.c.seq.desc()).limit(limit)
        return [Event(**row._mapping) for row in self._connection.execute(query)]
