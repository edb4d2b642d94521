"""Counts of the inputs of queries, one row for each version and hour."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

import sqlalchemy as sa
from sqlalchemy import Connection

from app.domain.figures import InputRow
from app.store.dialect import insert_once
from app.store.live_tables import input_counts
from app.store.repositories.hourly import delete_hours, of_version
from app.store.row_bytes import rows_size
from app.store.tables import model_versions

_LARGEST: Final = 2**32 - 1


class InputCounts:
    """Queries on counts of inputs."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def add(self, tenant: str, model: str, version: int, row: InputRow) -> None:
        """Add to the counts of a version in an hour, as other processes do; nothing if it was deleted.

        A new row counts in the bytes of the version.
        """
        known = of_version(model_versions, tenant, model, version)
        if self._connection.execute(sa.select(model_versions.c.version).where(known)).first() is None:
            return
        names = {"tenant": tenant, "model": model, "version": version}
        values = names | row._asdict()
        if insert_once(self._connection, input_counts, values):
            grown_bytes = model_versions.c.input_bytes + rows_size([values], input_counts)
            self._connection.execute(sa.update(model_versions).where(known).values(input_bytes=grown_bytes))
            return
        where = of_version(input_counts, tenant, model, version) & (input_counts.c.hour == row.hour)
        query = sa.select(input_counts.c.counts).where(where).with_for_update()
        present = self._connection.execute(query).scalar_one()
        grown = {
            "records": input_counts.c.records + row.records,
            "sampled": input_counts.c.sampled + row.sampled,
            "counts": total((present, row.counts)),
        }
        self._connection.execute(sa.update(input_counts).where(where).values(grown))

    def since(self, tenant: str, model: str, version: int, hour: int) -> Sequence[InputRow]:
        """The rows of a version from an hour on, in order."""
        columns = [input_counts.c[name] for name in InputRow._fields]
        query = sa.select(*columns).where(of_version(input_counts, tenant, model, version))
        query = query.where(input_counts.c.hour >= hour).order_by(input_counts.c.hour)
        return [InputRow(*row) for row in self._connection.execute(query)]

    def count_before(self, hour: int) -> int:
        """Number of rows that `delete_before` would delete."""
        query = sa.select(sa.func.count()).select_from(input_counts).where(input_counts.c.hour < hour)
        return int(self._connection.execute(query).scalar_one())

    def delete_before(self, hour: int) -> int:
        """Delete the rows of all versions before an hour; returns how many were deleted."""
        return delete_hours(self._connection, input_counts, hour)


def total(counts: Sequence[bytes]) -> bytes:
    """The sum of counts of one version, each at most 2^32 - 1."""
    layout = struct.Struct(f"<{len(counts[0]) // 4}I")
    columns = zip(*map(layout.unpack, counts), strict=True)
    return layout.pack(*(min(sum(column), _LARGEST) for column in columns))
