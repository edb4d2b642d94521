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
    """Every query on workers."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def beat(self, worker: Worker) -> None:
        """Say that the worker is alive at ``worker.beat_at``."""
        values = dataclasses.asdict(worker)
        statement = upsert(self._connection, workers).values(values)
        statement = statement.on_conflict_do_update(index_elements=["executor_id"], set_=values)
        self._connection.execute(statement)

    def all(self) -> Sequence[Worker]:
        return [Worker(**row._mapping) for row in self._connection.execute(sa.select(workers))]

    def forget(self, executor_id: str) -> None:
        self._connection.execute(sa.delete(workers).where(workers.c.executor_id == executor_id))
