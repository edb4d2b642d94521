"""Stored events of jobs."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence

import sqlalchemy as sa
from sqlalchemy import Connection

from app.domain.entities import Event, Json
from app.store.dialect import on_postgresql
from app.store.tables import job_events, jobs


class Events:
    """Append and read; nothing changes an event."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def append(self, job_id: str, event_type: str, data: Json | None = None) -> Event:
        """Store an event under the job's next number. Writers of one job wait for each other on its row."""
        return self.append_all(job_id, [(event_type, data or {})])[0]

    def append_all(self, job_id: str, told: Sequence[tuple[str, Json]]) -> Sequence[Event]:
        """As `append` for several events (type, data) in their order."""
        if not told:
            return []
        if on_postgresql(self._connection):
            # FOR NO KEY UPDATE: FOR UPDATE would deadlock with others who stored a student of the job.
            lock = sa.select(jobs.c.id).where(jobs.c.id == job_id).with_for_update(key_share=True)
            self._connection.execute(lock)
        newest = sa.select(sa.func.coalesce(sa.func.max(job_events.c.seq), 0))
        last = int(self._connection.execute(newest.where(job_events.c.job_id == job_id)).scalar_one())
        now = time.time()
        events = [
            Event(job_id=job_id, seq=seq, at=now, type=event_type, data=data)
            for seq, (event_type, data) in enumerate(told, last + 1)
        ]
        self._connection.execute(sa.insert(job_events), [dataclasses.asdict(event) for event in events])
        return events

    def after(self, job_id: str, seq: int, *, limit: int) -> Sequence[Event]:
        """Events numbered above ``seq``, oldest first."""
        query = (
            sa.select(job_events)
            .where(job_events.c.job_id == job_id, job_events.c.seq > seq)
            .order_by(job_events.c.seq)
            .limit(limit)
        )
        return [Event(**row._mapping) for row in self._connection.execute(query)]
