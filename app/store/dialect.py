"""Upserts and locking for both SQLite and PostgreSQL, which SQLAlchemy exposes per dialect."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import sqlalchemy as sa
from sqlalchemy import Connection, Table
from sqlalchemy.dialects import postgresql, sqlite

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


def on_postgresql(connection: Connection) -> bool:
    """Whether rows need explicit locks; on SQLite a writing transaction locks the whole database."""
    return connection.dialect.name == "postgresql"
