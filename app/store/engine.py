"""Database engines: SQLite in WAL mode, or PostgreSQL with psycopg."""

from __future__ import annotations

import json
import sqlite3
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.engine import URL, Engine, make_url

from app.settings import Settings
from app.store.db_errors import invalidate_if_read_only

READ_ONLY = "stms_read_only"
"""Execution option of a connection whose transactions must not write."""

SINGLE_READ = "stms_single_read"
"""Execution option of a connection for a single statement that reads: on SQLite it needs no transaction."""

AUDIT_LOG = "stms_audit_log"
"""Execution option: whether committed audit records are lines on standard error, too."""

POOL_SIZE = 8
"""Connections that stay open. As many again may be opened under load."""

_BUSY_SECONDS = 30
_RETRY_SECONDS = 0.02
_CONNECT_SECONDS = 5
_POOL_SECONDS = 10
_KEEPALIVE = {"keepalives": 1, "keepalives_idle": 4, "keepalives_interval": 2, "keepalives_count": 3}
"""A vanished peer is detected 4 + 3 · 2 = 10 seconds after its last packet."""


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Timeouts of a PostgreSQL connection in seconds; 0 disables one.

    statement: of one statement. lock: of a lock wait. idle: of an open transaction without statements.
    network: until a connection with unacknowledged data is closed (TCP_USER_TIMEOUT).
    """

    statement: float = 30.0
    lock: float = 10.0
    idle: float = 60.0
    network: float = 10.0


DEFAULT = Timeouts()

UNLIMITED = Timeouts(statement=0.0, lock=0.0, idle=0.0)
"""For migrations, whose statements may run long."""


def open_database(
    settings: Settings,
    part: str,
    *,
    pool_size: int | None = None,
    idle: float | None = None,
    pre_ping: bool = True,
) -> Engine:
    """The engine of a process of the service.

    part: name of the process in the database's list of connections. idle: lowers the idle timeout of the
    settings. pre_ping: check each connection of PostgreSQL with a statement before it is used.
    """
    limit = settings.database_idle_seconds
    timeouts = Timeouts(
        settings.database_statement_seconds,
        settings.database_lock_seconds,
        limit if idle is None else min(limit or idle, idle),
    )
    size = settings.database_pool_size if pool_size is None else pool_size
    engine = open_engine(
        settings.app_database_url, pool_size=size, timeouts=timeouts, part=part, pre_ping=pre_ping
    )
    engine.update_execution_options(**{AUDIT_LOG: settings.audit_log == "stderr"})
    return engine


def database_url(address: str) -> URL:
    """Parse an address; plain ``postgresql://`` selects the psycopg 3 driver."""
    url = make_url(address)
    if url.drivername in {"postgresql", "postgres"}:
        url = url.set(drivername="postgresql+psycopg")
    return url


def open_engine(
    address: str,
    *,
    pool_size: int = POOL_SIZE,
    timeouts: Timeouts = DEFAULT,
    part: str = "",
    pre_ping: bool = True,
) -> Engine:
    """An engine for an SQLAlchemy address; creates the folder of an SQLite file, connects on first use."""
    url = database_url(address)
    options: dict[str, Any] = {
        "pool_size": pool_size,
        "max_overflow": pool_size,
        "pool_timeout": _POOL_SECONDS,
        "json_serializer": to_json,
    }
    if url.get_backend_name() == "sqlite":
        return _open_sqlite(url, options)
    arguments = _postgresql_arguments(url, timeouts, part)
    engine = sa.create_engine(url, pool_pre_ping=pre_ping, connect_args=arguments, **options)
    event.listen(engine, "handle_error", invalidate_if_read_only)
    return engine


def _postgresql_arguments(url: URL, timeouts: Timeouts, part: str) -> dict[str, Any]:
    """Connection parameters for libpq. Server timeouts are passed as options, so they hold from the start.

    Parameters in the address, such as an application name or options, take precedence.
    """
    limits = {
        "statement_timeout": timeouts.statement,
        "lock_timeout": timeouts.lock,
        "idle_in_transaction_session_timeout": timeouts.idle,
    }
    options = [f"-c {name}={round(1000 * seconds)}" for name, seconds in limits.items()]
    url_options = url.query.get("options", ())
    parameters: dict[str, Any] = {
        "connect_timeout": _CONNECT_SECONDS,
        **_KEEPALIVE,
        "tcp_user_timeout": round(1000 * timeouts.network),
        "application_name": f"stms {part}".strip(),
        # Of several hosts, and after a failover behind one name, a standby is no database of ours: it rejects
        # writes, and its reads may be old.
        "target_session_attrs": "read-write",
    }
    from_url = {name: value for name, value in url.query.items() if name in parameters}
    # The address comes last, because PostgreSQL uses the last of two settings of the same option.
    options += [url_options] if isinstance(url_options, str) else url_options
    return parameters | from_url | {"options": " ".join(options)}


def use_wal(connection: sqlite3.Connection) -> None:
    """Switch the file to write-ahead logging, so that readers and the writer do not block each other.

    When processes open a new file concurrently, SQLite rejects the switch despite the busy timeout.
    """
    deadline = time.monotonic() + _BUSY_SECONDS
    while True:
        try:
            connection.execute("PRAGMA journal_mode=WAL")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(_RETRY_SECONDS)
        else:
            return


def to_json(value: Any) -> str:
    """The text of a JSON column."""
    # NaN is not valid JSON: PostgreSQL rejects it, and SQLite would pass it on to clients.
    return json.dumps(value, allow_nan=False, ensure_ascii=False, separators=(",", ":"))


def _open_sqlite(url: URL, options: dict[str, Any]) -> Engine:
    if not url.database or url.database == ":memory:":
        raise ValueError("The SQLite database must be a file, because several processes share it.")
    Path(url.database).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    engine = sa.create_engine(
        url, connect_args={"timeout": _BUSY_SECONDS, "check_same_thread": False}, **options
    )

    @event.listens_for(engine, "connect")
    def _configure(connection: Any, _record: Any) -> None:
        # The driver must not begin transactions itself; `_begin` chooses their kind.
        connection.isolation_level = None
        cursor = connection.cursor()
        use_wal(connection)
        # FULL syncs the write-ahead log at every commit, so that a power cut undoes nothing that was
        # acknowledged, and so that this file is never older than the job engine's, which is written after it.
        cursor.execute("PRAGMA synchronous=FULL")
        cursor.execute("PRAGMA foreign_keys=ON")
        # What is deleted is overwritten: rows of a subject must not stay in free pages.
        cursor.execute("PRAGMA secure_delete=ON")
        cursor.close()

    @event.listens_for(engine, "begin")
    def _begin(connection: sa.Connection) -> None:
        # Writers take the lock at BEGIN: upgrading a read transaction to a write fails without waiting.
        options = connection.get_execution_options()
        if options.get(SINGLE_READ, False):
            return
        reads = options.get(READ_ONLY, False)
        connection.exec_driver_sql(f"PRAGMA query_only={'ON' if reads else 'OFF'}")
        connection.exec_driver_sql("BEGIN" if reads else "BEGIN IMMEDIATE")

    return engine
