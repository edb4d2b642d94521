"""Counts of the answers of queries, one row for each class of a version and hour."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import sqlalchemy as sa
from sqlalchemy import Connection

from app.domain.answer_counts import AnswerHour, ClassCounts
from app.store.dialect import insert_once
from app.store.live_tables import ANSWER_BINS, answer_counts
from app.store.repositories.hourly import delete_hours, of_version
from app.store.row_bytes import rows_size
from app.store.tables import model_versions

_SUMS: Final = ("asked", "yes", "p", "p_yes", *ANSWER_BINS)


class AnswerCounts:
    """Queries on counts of answers."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def add(self, tenant: str, model: str, version: int, row: AnswerHour) -> None:
        """Add to the counts of a version in an hour, as other processes do; nothing if it was deleted.

        New rows count in the bytes of the version.
        """
        known = of_version(model_versions, tenant, model, version)
        if self._connection.execute(sa.select(model_versions.c.version).where(known)).first() is None:
            return
        table, size = answer_counts, 0
        # In one order, so that no two processes wait for each other's rows.
        for counts in sorted(row.classes):
            numbers = dict(zip(_SUMS, (*counts[1:5], *counts.bins), strict=True))
            names = {"tenant": tenant, "model": model, "version": version}
            values = {**names, "label": counts.label, "hour": row.hour, **numbers}
            if insert_once(self._connection, table, values):
                size += rows_size([values], table)
                continue
            where = of_version(table, tenant, model, version) & (table.c.label == counts.label)
            grown = {name: table.c[name] + number for name, number in numbers.items()}
            self._connection.execute(sa.update(table).where(where, table.c.hour == row.hour).values(grown))
        if size:
            grown_bytes = model_versions.c.input_bytes + size
            self._connection.execute(sa.update(model_versions).where(known).values(input_bytes=grown_bytes))

    def since(
        self, tenant: str, model: str, version: int, hour: int, label: str | None = None
    ) -> Sequence[ClassCounts]:
        """The sums of a version from an hour on, by class in the order of their labels. label: only this."""
        table = answer_counts
        where = of_version(table, tenant, model, version) & (table.c.hour >= hour)
        if label is not None:
            where &= table.c.label == label
        sums = [sa.func.sum(table.c[name]) for name in _SUMS]
        query = sa.select(table.c.label, *sums).where(where).group_by(table.c.label).order_by(table.c.label)
        return [
            ClassCounts(label, int(asked), int(yes), p, p_yes, tuple(map(int, bins)))
            for label, asked, yes, p, p_yes, *bins in self._connection.execute(query)
        ]

    def count_before(self, hour: int) -> int:
        """Number of rows that `delete_before` would delete."""
        query = sa.select(sa.func.count()).select_from(answer_counts).where(answer_counts.c.hour < hour)
        return int(self._connection.execute(query).scalar_one())

    def delete_before(self, hour: int) -> int:
        """Delete the rows of all versions before an hour; returns how many were deleted."""
        return delete_hours(self._connection, answer_counts, hour)
