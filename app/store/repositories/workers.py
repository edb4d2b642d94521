"""Worker processes and their heartbeats."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import sqlalchemy as sa
from sqlalchemy import Connection

from app.domain.entities import Worker
from app.store.dialect import upsert
from app.store.tables import workers


class Workers:
    """Queries on workers."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def beat(self, worker: Worker) -> None:
        """Register a heartbeat at ``worker.beat_at``; inserts the worker, also if it was marked lost."""
        values = _values(worker)
        statement = upsert(self._connection, workers).values(values)
        statement = statement.on_conflict_do_update(index_elements=["executor_id"], set_=values)
        self._connection.execute(statement)

    def renew(self, worker: Worker) -> bool:
        """As `beat`, but only for a registered worker that is not lost; returns whether it is one."""
        renewed = sa.update(workers).where(
            workers.c.executor_id == worker.executor_id, workers.c.lost_at.is_(None)
        )
        return self._connection.execute(renewed.values(_values(worker))).rowcount > 0

    def mark_lost(self, executor_id: str, at: float, beat_at: float | None = None) -> bool:
        """Mark a worker as lost; returns False if it already was.

        beat_at: mark it only if this is still the time of its last heartbeat.
        """
        lost = sa.update(workers).where(workers.c.executor_id == executor_id, workers.c.lost_at.is_(None))
        if beat_at is not None:
            lost = lost.where(workers.c.beat_at == beat_at)
        return self._connection.execute(lost.values(lost_at=at, units=[])).rowcount > 0

    def all(self) -> Sequence[Worker]:
        query = sa.select(workers).order_by(workers.c.executor_id)
        return [_entity(row) for row in self._connection.execute(query)]

    def alive(self, since: float) -> Sequence[Worker]:
        """Workers that are not lost and whose last heartbeat is later than ``since``."""
        return [worker for worker in self.all() if worker.lost_at is None and worker.beat_at > since]

    def forget(self, executor_id: str) -> None:
        self._connection.execute(sa.delete(workers).where(workers.c.executor_id == executor_id))


def _values(worker: Worker) -> dict[str, object]:
    return dataclasses.asdict(worker) | {"units": list(worker.units)}


def _entity(row: sa.Row[tuple[object, ...]]) -> Worker:
    values = dict(row._mapping)
    return Worker(**values | {"units": tuple(values["units"])})
