"""Live figures of groups of server processes, one row for each."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import sqlalchemy as sa
from sqlalchemy import Connection

from app.domain.figures import ServerRow
from app.store.dialect import clock_expression, upsert
from app.store.live_tables import servers


class Servers:
    """Queries on servers."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def beat(self, row: ServerRow) -> None:
        """Store a row with the database's time as `beat_at`."""
        values = dataclasses.asdict(row) | {"beat_at": clock_expression(self._connection)}
        statement = upsert(self._connection, servers).values(values)
        self._connection.execute(statement.on_conflict_do_update(index_elements=["id"], set_=values))

    def all(self) -> Sequence[ServerRow]:
        """All rows, by host and start."""
        query = sa.select(servers).order_by(servers.c.host, servers.c.started_at)
        return [ServerRow(**row._mapping) for row in self._connection.execute(query)]

    def forget(self, server_id: str) -> None:
        """Delete one row."""
        self._connection.execute(sa.delete(servers).where(servers.c.id == server_id))

    def forget_silent(self, seconds: float) -> None:
        """Delete rows whose last beat is older."""
        is_old = servers.c.beat_at < clock_expression(self._connection) - seconds
        self._connection.execute(sa.delete(servers).where(is_old))
