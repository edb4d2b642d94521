"""Worker processes and their heartbeats."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy import Connection

from app.domain.entities import Worker
from app.store.dialect import clock, clock_expression, upsert
from app.store.live_tables import workers


@dataclass(frozen=True, slots=True)
class PeerSummary:
    """The other workers. late: number of workers whose heartbeat is late. lost: number of those marked lost.

    is_first: whether no live worker's name comes before this worker's name, which means that it is elected.
    """

    late: int
    lost: int
    is_first: bool


class Workers:
    """Queries on workers."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def beat(self, worker: Worker) -> None:
        """Register a worker, or register it again if it was marked lost, with all values of ``worker``."""
        values = _values(worker)
        statement = upsert(self._connection, workers).values(values)
        statement = statement.on_conflict_do_update(index_elements=["executor_id"], set_=values)
        self._connection.execute(statement)

    def renew(self, worker: Worker, *, late: float, dead: float) -> PeerSummary | None:
        """Store a heartbeat at the database's time, and summarise the other workers in the same statement.

        late, dead: ages in seconds of the last heartbeat of a late and of a dead worker. Returns None, and
        stores nothing, if the worker is not registered or was marked lost.
        """
        now = clock_expression(self._connection)
        peers = workers.alias("peers")
        is_listed = sa.and_(peers.c.executor_id != worker.executor_id, peers.c.lost_at.is_(None))
        is_before = sa.and_(
            is_listed, peers.c.executor_id < worker.executor_id, peers.c.beat_at >= now - dead
        )
        count = sa.select(sa.func.count()).select_from(peers)
        renewed = (
            sa.update(workers)
            .where(workers.c.executor_id == worker.executor_id, workers.c.lost_at.is_(None))
            .values(_values(worker) | {"beat_at": now})
            .returning(
                count.where(is_listed, peers.c.beat_at < now - late).scalar_subquery(),
                count.where(peers.c.lost_at.is_not(None)).scalar_subquery(),
                ~sa.exists().where(is_before),
            )
        )
        row = self._connection.execute(renewed).first()
        return None if row is None else PeerSummary(row[0], row[1], bool(row[2]))

    def clock(self) -> float:
        """The database's time, to which all heartbeats refer; seconds since the epoch."""
        return clock(self._connection)

    def mark_lost(self, executor_id: str, beat_at: float | None = None) -> bool:
        """Mark a worker as lost at the database's time; returns False if it already was.

        beat_at: mark it only if this is still the time of its last heartbeat.
        """
        lost = sa.update(workers).where(workers.c.executor_id == executor_id, workers.c.lost_at.is_(None))
        if beat_at is not None:
            lost = lost.where(workers.c.beat_at == beat_at)
        values = {"lost_at": clock_expression(self._connection), "units": []}
        return self._connection.execute(lost.values(values)).rowcount > 0

    def all(self) -> Sequence[Worker]:
        query = sa.select(workers).order_by(workers.c.executor_id)
        return [_entity(row) for row in self._connection.execute(query)]

    def alive(self, seconds: float) -> Sequence[Worker]:
        """Workers that are not lost and whose last heartbeat is at most ``seconds`` old."""
        query = sa.select(workers).order_by(workers.c.executor_id)
        is_recent = workers.c.beat_at >= clock_expression(self._connection) - seconds
        rows = self._connection.execute(query.where(workers.c.lost_at.is_(None), is_recent))
        return [_entity(row) for row in rows]

    def forget(self, executor_id: str) -> None:
        self._connection.execute(sa.delete(workers).where(workers.c.executor_id == executor_id))


def _values(worker: Worker) -> dict[str, object]:
    return dataclasses.asdict(worker) | {"units": list(worker.units)}


def _entity(row: sa.Row[tuple[object, ...]]) -> Worker:
    values = dict(row._mapping)
    return Worker(**values | {"units": tuple(values["units"])})
