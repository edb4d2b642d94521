"""Copies the whole database of the service from SQLite to PostgreSQL, in one transaction of the target.

Both copies of each table are compared by a digest that does not depend on the order of rows, because the two
databases sort texts differently. The job engine's own database is not copied, so no job may be unfinished.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import sqlalchemy as sa
from sqlalchemy import Connection, Table

from app.domain.entities import JobState
from app.domain.errors import Conflict, InvalidRequest, Unavailable
from app.settings import Settings
from app.store.all_tables import metadata
from app.store.backup import check_not_in_use, sqlite_files
from app.store.engine import READ_ONLY, UNLIMITED, database_url, open_engine
from app.store.migrate import schema_is_current, upgrade
from app.store.tables import blob_chunks, jobs, registry_clock

_ROWS: Final = 500
_CHUNKS: Final = 4
"""Number of rows in memory at a time; rows of `blob_chunks` have megabytes."""


class CopiedTable(NamedTuple):
    """A table that was copied. digest: hexadecimal, the same for equal rows in any order."""

    name: str
    rows: int
    digest: str


def copy_database(settings: Settings, target: str) -> list[CopiedTable]:
    """Copy all tables of an SQLite database to an empty PostgreSQL database; the service must be stopped.

    The target gets the schema if it has none. If anything fails, the target stays unchanged. Raises
    InvalidRequest if the service does not use SQLite or the target is not PostgreSQL; Conflict if the source
    is in use or out of date or has unfinished jobs, or if the target has any row or a table of another
    program; Unavailable if the written rows differ from the rows that were read.
    """
    file = sqlite_files(settings)["stms.sqlite"]
    if database_url(target).get_backend_name() != "postgresql":
        text = "The target must be a PostgreSQL database: postgresql://USER@HOST/NAME."
        raise InvalidRequest(text, code="no_database")
    check_not_in_use(file)
    source_engine = open_engine(settings.app_database_url)
    target_engine = open_engine(target, timeouts=UNLIMITED, part="copy")
    try:
        _check_source(source_engine)
        _check_target(target_engine)
        upgrade(target)
        with (
            source_engine.connect().execution_options(**{READ_ONLY: True}) as reader,
            target_engine.begin() as writer,
        ):
            writer.execute(sa.delete(registry_clock))
            return [_copy(table, reader, writer) for table in metadata.sorted_tables]
    finally:
        source_engine.dispose()
        target_engine.dispose()


def _check_source(engine: sa.Engine) -> None:
    if not schema_is_current(engine):
        text = "The database has an older schema. Run `stms db upgrade` first."
        raise Conflict(text, code="schema_outdated")
    unfinished = [state for state in JobState if not state.ended]
    with engine.connect() as connection:
        count = connection.execute(
            sa.select(sa.func.count()).select_from(jobs).where(jobs.c.state.in_(unfinished))
        ).scalar_one()
    if count:
        text = (
            f"There are {count} unfinished jobs, which cannot go on in another database. Start the service,"
            " and wait for them or cancel them (`stms jobs cancel ID`)."
        )
        raise Conflict(text, code="unfinished_jobs")


def _check_target(engine: sa.Engine) -> None:
    """Raise Conflict unless the database has no rows, and only tables of the service."""
    with engine.connect() as connection:
        present = set(sa.inspect(connection).get_table_names())
        for name in sorted(present - {"alembic_version", registry_clock.name}):
            table = metadata.tables.get(name)
            if table is None or connection.execute(sa.select(sa.literal(1)).select_from(table)).first():
                what = "a table of another program" if table is None else "rows in the table"
                text = f"The target is not empty: it has {what} {name!r}. Make a new database (createdb)."
                raise Conflict(text, code="database_exists")


def _copy(table: Table, reader: Connection, writer: Connection) -> CopiedTable:
    """Copy a table, and read it again to compare. Raises Unavailable if it differs."""
    # JSON is copied as text: a JSON null stays one, and is not taken for a missing value.
    values = {
        column.name: sa.cast(sa.bindparam(column.name, type_=sa.Text), column.type)
        if isinstance(column.type, sa.JSON)
        else sa.bindparam(column.name, type_=column.type)
        for column in table.columns
    }
    statement = sa.insert(table).values(values)
    read = _Digest()
    for rows in _batches(table, reader):
        writer.execute(statement, [dict(row._mapping) for row in rows])
        read.add(rows)
    written = _Digest()
    for rows in _batches(table, writer):
        written.add(rows)
    if (read.rows, read.value) != (written.rows, written.value):
        text = (
            f"The table {table.name!r} has {written.rows} rows in the copy, of {read.rows}, or other values."
            " Nothing was kept."
        )
        raise Unavailable(text, code="copy_differs")
    return CopiedTable(table.name, read.rows, f"{read.value:064x}")


def _batches(table: Table, connection: Connection) -> Iterator[list[sa.Row[Any]]]:
    """All rows of a table in lists; jobs in the order of their creation, because some refer to others."""
    columns = [
        sa.cast(column, sa.Text).label(column.name) if isinstance(column.type, sa.JSON) else column
        for column in table.columns
    ]
    query = sa.select(*columns)
    if table is jobs:
        query = query.order_by(jobs.c.created_at, jobs.c.id)
    size = _CHUNKS if table is blob_chunks else _ROWS
    result = connection.execute(query, execution_options={"yield_per": size})
    for rows in result.partitions(size):
        yield list(rows)


class _Digest:
    """Number and digest of rows in any order: the sum of the SHA-256 of each."""

    def __init__(self) -> None:
        self.rows = 0
        self.value = 0

    def add(self, rows: list[sa.Row[Any]]) -> None:
        self.rows += len(rows)
        for row in rows:
            sha = hashlib.sha256()
            for value in row:
                data = bytes(value) if isinstance(value, bytes | memoryview) else repr(value).encode()
                sha.update(b"%d:" % len(data) + data)
            self.value = (self.value + int.from_bytes(sha.digest(), "big")) % 2**256
