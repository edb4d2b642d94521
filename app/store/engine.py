"""Opening the database: SQLite in WAL mode or PostgreSQL through psycopg."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.engine import URL, Engine, make_url

READ_ONLY = "stms_read_only"
"""Execution option of a connection whose transactions must not write."""

_BUSY_SECONDS = 30
_CONNECT_SECONDS = 5
_POOL_SECONDS = 10


def database_url(address: str) -> URL:
    """Parse an address; plain ``postgresql://`` means the psycopg 3 driver."""
    url = make_url(address)
    if url.drivername in {"postgresql", "postgres"}:
        url = url.set(drivername="postgresql+psycopg")
    return url


def open_engine(address: str, *, pool_size: int = 8) -> Engine:
    """Engine for an SQLAlchemy address; makes the folder of an SQLite file. Connects only when used."""
    url = database_url(address)
    options: dict[str, Any] = {
        "pool_size": pool_size,
        "max_overflow": pool_size,
        "pool_timeout": _POOL_SECONDS,
        "json_serializer": _to_json,
    }
    if url.get_backend_name() == "sqlite":
        return _open_sqlite(url, options)
    return sa.create_engine(
        url, pool_pre_ping=True, connect_args={"connect_timeout": _CONNECT_SECONDS}, **options
    )


def _to_json(value: Any) -> str:
    # NaN is no JSON: PostgreSQL refuses it, and SQLite would hand it to clients.
    return json.dumps(value, allow_nan=False, ensure_ascii=False, separators=(",", ":"))


def _open_sqlite(url: URL, options: dict[str, Any]) -> Engine:
    if not url.database or url.database == ":memory:":
        raise ValueError("The SQLite database must be a file: several processes share it.")
    Path(url.database).parent.mkdir(parents=True, exist_ok=True)
    engine = sa.create_engine(
        url, connect_args={"timeout": _BUSY_SECONDS, "check_same_thread": False}, **options
    )

    @event.listens_for(engine, "connect")
    def _configure(connection: Any, _record: Any) -> None:
        # The driver must not begin transactions by itself: `_begin` says which kind.
        connection.isolation_level = None
        cursor = connection.cursor()
        cursor.execute(f"PRAGMA busy_timeout={_BUSY_SECONDS * 1000}")
        cursor.execute("PRAGMA journal_mode=WAL")
        cursor.execute("PRAGMA synchronous=NORMAL")
        cursor.execute("PRAGMA foreign_keys=ON")
        cursor.close()

    @event.listens_for(engine, "begin")
    def _begin(connection: sa.Connection) -> None:
        # Writers take the lock at BEGIN: a read that became a write in one transaction would fail at once.
        reads = connection.get_execution_options().get(READ_ONLY, False)
        connection.exec_driver_sql(f"PRAGMA query_only={'ON' if reads else 'OFF'}")
        connection.exec_driver_sql("BEGIN" if reads else "BEGIN IMMEDIATE")

    return engine
