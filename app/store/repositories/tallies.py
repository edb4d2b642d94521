"""Counters that stay when the counted objects are deleted, because jobs are deleted and workers end."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy import Connection

from app.store.dialect import upsert
from app.store.live_tables import tallies


class Tallies:
    """Queries on tallies."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def add(self, name: str, label: str, amount: float = 1.0) -> None:
        """Add to a counter. Its row is locked until the transaction ends, so call it late in one."""
        statement = upsert(self._connection, tallies).values(name=name, label=label, value=amount)
        grown = {"value": tallies.c.value + amount}
        self._connection.execute(
            statement.on_conflict_do_update(index_elements=["name", "label"], set_=grown)
        )

    def all(self) -> dict[tuple[str, str], float]:
        """Every counter by name and label."""
        return {(row.name, row.label): row.value for row in self._connection.execute(sa.select(tallies))}
