"""Connections to DBOS's database. A worker's connections wait while the database is unavailable."""

from __future__ import annotations

import logging
import threading
from typing import Any, Final

import psycopg
import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.engine import Engine, ExceptionContext

from app.settings import Settings
from app.store.db_errors import is_full
from app.store.engine import Timeouts, open_engine, use_wal

logger = logging.getLogger(__name__)

_BUSY_MILLISECONDS: Final = 30_000
_PAUSE_SECONDS: Final = 2.0


def open_jobs_database(settings: Settings, pool_size: int, stopping: threading.Event | None = None) -> Engine:
    """The engine that DBOS uses; it opens up to twice ``pool_size`` connections.

    stopping: while PostgreSQL cannot be reached, a new connection is tried again every two seconds until this
    event is set. DBOS itself would pause for up to 90 s. None: the first failure is raised.
    """
    if settings.embedded:
        return _open_sqlite(settings.jobs_database_url, pool_size)
    # DBOS's transactions, too, must end if this process freezes.
    timeouts = Timeouts(statement=0.0, lock=0.0, idle=settings.takeover_seconds)
    engine = open_engine(settings.jobs_database_url, pool_size=pool_size, timeouts=timeouts, part="jobs")
    if stopping is not None:
        _wait_for_database(engine, stopping)
    return engine


def _open_sqlite(address: str, pool_size: int) -> Engine:
    engine = sa.create_engine(
        address, pool_size=pool_size, max_overflow=pool_size, connect_args={"check_same_thread": False}
    )

    @event.listens_for(engine, "connect")
    def configure(connection: Any, _record: Any) -> None:
        # As in DBOS's own engines, a writer takes the lock when its transaction begins.
        connection.isolation_level = "IMMEDIATE"
        connection.execute(f"PRAGMA busy_timeout={_BUSY_MILLISECONDS}")
        connection.execute("PRAGMA foreign_keys=ON")
        use_wal(connection)

    event.listen(engine, "handle_error", _retry_when_full)
    return engine


def _retry_when_full(context: ExceptionContext) -> None:
    """Make DBOS retry a write that failed because the disk was full, as after the loss of a connection.

    Otherwise DBOS would end every workflow with an error instead of delaying it.
    """
    if is_full(context.original_exception):
        context.is_disconnect = True
        context.invalidate_pool_on_disconnect = False


def _wait_for_database(engine: Engine, stopping: threading.Event) -> None:
    @event.listens_for(engine, "do_connect")
    def connect(dialect: sa.Dialect, _record: Any, arguments: Any, parameters: Any) -> Any:
        has_said_so = False
        while True:
            try:
                return dialect.connect(*arguments, **parameters)
            except psycopg.OperationalError as error:
                if stopping.is_set():
                    raise
                if not has_said_so:
                    logger.warning("waiting for the database of the jobs: %s", error)
                has_said_so = True
                stopping.wait(_PAUSE_SECONDS)
