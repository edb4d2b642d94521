"""Bytes of the rows of jobs and of versions of models, as the quota of a tenant counts them.

They are stored in columns, so that the use of a tenant is a few sums, and a deleted row frees its bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy import Connection, FromClause
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import GenericFunction

from app.store.engine import to_json
from app.store.tables import jobs

ROW_BYTES: Final = 200
"""Bytes of a row's numbers and short names, and of its entries in indices."""
_SHORT: Final = 100
"""Texts of at most this many characters are included in `ROW_BYTES`."""


class octets(GenericFunction[int]):  # noqa: N801 - the name of a function in SQL
    """Bytes of a text, a JSON text or a binary value."""

    type = sa.BigInteger()
    inherit_cache = True


@compiles(octets, "sqlite")
def _on_sqlite(element: octets, compiler: Any, **options: Any) -> str:
    return f"length(CAST({compiler.process(element.clauses, **options)} AS BLOB))"


@compiles(octets, "postgresql")
def _on_postgresql(element: octets, compiler: Any, **options: Any) -> str:
    [column] = element.clauses
    text = compiler.process(column, **options)
    return f"octet_length({text if isinstance(column.type, sa.LargeBinary) else f'CAST({text} AS TEXT)'})"


def row_size(table: FromClause) -> sa.ColumnElement[int]:
    """Bytes of a row of a table, or of a query of its columns."""
    size: sa.ColumnElement[int] = sa.literal_column(str(ROW_BYTES), sa.BigInteger)
    for column in table.c:
        if _may_be_long(column.type):
            size = size + sa.func.coalesce(octets(column), 0)
    return size


def set_row_bytes(connection: Connection, table: sa.Table, where: sa.ColumnElement[bool]) -> None:
    """Store the bytes of rows that were just inserted in their column ``row_bytes``."""
    connection.execute(sa.update(table).where(where).values(row_bytes=row_size(table)))


def growth(table: sa.Table, values: Mapping[str, Any]) -> sa.ColumnElement[int] | None:
    """Number of bytes by which a row grows when these columns are set; None if none of them may be long."""
    grown: sa.ColumnElement[int] | None = None
    for name, value in values.items():
        if _may_be_long(table.c[name].type):
            more = _value_size(value) - sa.func.coalesce(octets(table.c[name]), 0)
            grown = more if grown is None else grown + more
    return grown


def rows_size(rows: Sequence[Mapping[str, Any]], table: sa.Table) -> int:
    """Bytes of rows that are about to be inserted."""
    long = [column.name for column in table.c if _may_be_long(column.type)]
    return sum(ROW_BYTES + sum(_value_size(row.get(name)) for name in long) for row in rows)


def count_for_job(connection: Connection, job_id: str, size: int | sa.ColumnElement[int]) -> None:
    """Add to the bytes of a job's rows."""
    counted = sa.update(jobs).where(jobs.c.id == job_id)
    connection.execute(counted.values(row_bytes=jobs.c.row_bytes + size))


@contextmanager
def counted_for_job(
    connection: Connection, job_id: str, table: sa.Table, where: sa.ColumnElement[bool]
) -> Iterator[None]:
    """Count the bytes that the block adds to rows of a job's table. The caller has locked the job.

    where: condition on the job's rows to count.
    """
    total = sa.select(sa.func.coalesce(sa.func.sum(row_size(table)), 0)).where(
        table.c.job_id == job_id, where
    )
    before = int(connection.execute(total).scalar_one())
    yield
    count_for_job(connection, job_id, int(connection.execute(total).scalar_one()) - before)


def _may_be_long(kind: sa.types.TypeEngine[Any]) -> bool:
    if isinstance(kind, sa.String):
        return kind.length is None or kind.length > _SHORT
    return isinstance(kind, sa.JSON | sa.LargeBinary)


def _value_size(value: Any) -> int:
    if value is None:
        return 0
    if isinstance(value, bytes):
        return len(value)
    return len((value if isinstance(value, str) else to_json(value)).encode("utf-8", "surrogatepass"))
