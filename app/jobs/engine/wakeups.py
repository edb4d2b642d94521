"""Tells idle workers that something was put into a queue, so that they need not poll for it.

PostgreSQL only: NOTIFY in the jobs database. SQLite has no notifications, and its one machine few workers.
"""

from __future__ import annotations

import logging
import secrets
import threading
from typing import Any, Final

import psycopg
import sqlalchemy as sa
from sqlalchemy.engine import Engine
from sqlalchemy.exc import SQLAlchemyError

from app.jobs.engine.config import JOB_QUEUE, UNIT_QUEUE

logger = logging.getLogger(__name__)

_CHANNEL: Final = "stms_queues"
_NOTIFY: Final = sa.select(sa.func.pg_notify(_CHANNEL, sa.bindparam("queue")))
_FALLBACK_SECONDS: Final = 5.0
"""Longest wait for a notification: one may be lost, for example with its sender."""
_LISTEN_SECONDS: Final = 1.0
_JOIN_SECONDS: Final = 5.0


def notify(engine: Engine, queue: str) -> None:
    """Wake the workers that wait for the queue. One that is not reached polls within seconds."""
    if engine.dialect.name == "sqlite":
        return
    try:
        with engine.connect() as connection:
            connection.execution_options(isolation_level="AUTOCOMMIT").execute(_NOTIFY, {"queue": queue})
    except SQLAlchemyError as error:
        logger.warning("workers were not notified: %s", error)


class Wakeups:
    """A thread that listens for notifications. engine: of the jobs database, for this object alone."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._events = {name: threading.Event() for name in (JOB_QUEUE, UNIT_QUEUE)}
        self._is_listening = False
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="queue notifications", daemon=True)

    def start(self) -> None:
        """Start to listen, on PostgreSQL."""
        if self._engine.dialect.name != "sqlite":
            self._thread.start()

    def stop(self) -> None:
        """End the thread and every wait."""
        self._stopping.set()
        self._wake_all()
        if self._thread.is_alive():
            self._thread.join(_JOIN_SECONDS)
        self._engine.dispose()

    def wait(self, queue: str) -> None:
        """Return when something was put into the queue, at the latest after five seconds.

        Without a connection for notifications it returns immediately.
        """
        event = self._events[queue]
        if self._is_listening and not self._stopping.is_set():
            event.wait(_FALLBACK_SECONDS)
        event.clear()

    def _loop(self) -> None:
        while not self._stopping.is_set():
            try:
                self._listen()
            except (SQLAlchemyError, psycopg.Error) as error:
                logger.warning("no notifications from the job queue: %s", error)
            self._is_listening = False
            self._wake_all()
            self._stopping.wait(_LISTEN_SECONDS)

    def _listen(self) -> None:
        """Listen until the worker stops. Raises SQLAlchemyError and psycopg.Error."""
        # A connection pooler may accept LISTEN and deliver nothing, so the first message is one to ourselves.
        echo = secrets.token_hex(8)
        with self._engine.connect() as connection:
            connection = connection.execution_options(isolation_level="AUTOCOMMIT")
            try:
                connection.exec_driver_sql(f"LISTEN {_CHANNEL}")
                connection.execute(_NOTIFY, {"queue": echo})
                driver: Any = connection.connection.driver_connection
                while not self._stopping.is_set():
                    for message in driver.notifies(timeout=_LISTEN_SECONDS, stop_after=1):
                        if message.payload == echo:
                            self._is_listening = True
                        elif message.payload in self._events:
                            self._events[message.payload].set()
            finally:
                connection.invalidate()

    def _wake_all(self) -> None:
        for event in self._events.values():
            event.set()
