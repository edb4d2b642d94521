"""Upserts and locking for both SQLite and PostgreSQL, which SQLAlchemy exposes per dialect."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping
from itertools import islice
from typing import Any, Final, TypeAlias, TypeVar

import sqlalchemy as sa
from sqlalchemy import Connection, Table
from sqlalchemy.dialects import postgresql, sqlite

Item = TypeVar("Item")

_BATCH: Final = 500
"""Number of values in one list of a query; each is a bound parameter, which statements limit in number."""

Upsert: TypeAlias = postgresql.Insert | sqlite.Insert


def upsert(connection: Connection, table: Table) -> Upsert:
    """An INSERT statement of the connection's dialect that supports ON CONFLICT."""
    return postgresql.insert(table) if on_postgresql(connection) else sqlite.insert(table)


def wrote_row(connection: Connection, statement: Upsert) -> bool:
    """Run an upsert of one row; returns whether it wrote. The rowcount of an INSERT is not reliable."""
    return connection.execute(statement.returning(sa.literal(1))).first() is not None


def insert_once(connection: Connection, table: Table, values: Mapping[str, Any]) -> bool:
    """Insert a row unless one with its key exists, which then stays; returns whether it was inserted."""
    return wrote_row(connection, upsert(connection, table).values(values).on_conflict_do_nothing())


def clock(connection: Connection) -> float:
    """The database's wall clock in seconds since the epoch: the only clock that all machines share."""
    return float(connection.execute(sa.select(clock_expression(connection))).scalar_one())


def clock_expression(connection: Connection) -> sa.ColumnElement[float]:
    """As `clock`, within a statement. The processes of an SQLite file have the same clock already."""
    if on_postgresql(connection):
        return sa.func.extract("epoch", sa.func.clock_timestamp()).cast(sa.Double)
    return sa.literal(time.time(), sa.Double)


def on_postgresql(connection: Connection) -> bool:
    """Whether rows need explicit locks; on SQLite a writing transaction locks the whole database."""
    return connection.dialect.name == "postgresql"


def batched(values: Collection[Item]) -> Iterator[list[Item]]:
    """The values in lists that are short enough for one query."""
    rest = iter(values)
    while batch := list(islice(rest, _BATCH)):
        yield batch
