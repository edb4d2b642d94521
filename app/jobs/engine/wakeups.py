"""Tells idle workers that something was put into a queue, so that they need not poll for it.

PostgreSQL's NOTIFY in the jobs database does this. SQLite has no notifications, so each worker on its machine
has a named pipe instead; a message is a line.
"""

from __future__ import annotations

import logging
import os
import secrets
import select
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import psycopg
import sqlalchemy as sa
from sqlalchemy.engine import Engine
from sqlalchemy.exc import SQLAlchemyError

from app.jobs.engine.config import JOB_QUEUE, UNIT_QUEUE

logger = logging.getLogger(__name__)

LIKELY: Final = "stms-likely"
"""The message that a job will soon be submitted."""
_CHANNEL: Final = "stms_queues"
_NOTIFY: Final = sa.select(sa.func.pg_notify(_CHANNEL, sa.bindparam("queue")))
_FALLBACK_SECONDS: Final = 5.0
"""Longest wait for a notification, because one may be lost, for example when its sender dies."""
_LISTEN_SECONDS: Final = 1.0
_JOIN_SECONDS: Final = 5.0
_SUFFIX: Final = ".wake"
_READ_BYTES: Final = 65536


def notify(engine: Engine, message: str) -> None:
    """Send a message to all workers: the name of a queue that is not empty, or `LIKELY`.

    Workers that the message does not reach poll their queues within seconds.
    """
    if engine.dialect.name == "sqlite":
        for pipe in _folder(engine).glob(f"*{_SUFFIX}"):
            # The pipe may belong to a dead worker, or to one that reads so late that it knows already.
            with suppress(OSError):
                _write(pipe, f"{message}\n".encode())
        return
    try:
        with engine.connect() as connection:
            connection.execution_options(isolation_level="AUTOCOMMIT").execute(_NOTIFY, {"queue": message})
    except SQLAlchemyError as error:
        logger.warning("workers were not notified: %s", error)


def _folder(engine: Engine) -> Path:
    return Path(engine.url.database or "").parent


def _write(pipe: Path, line: bytes) -> None:
    descriptor = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
    try:
        os.write(descriptor, line)
    finally:
        os.close(descriptor)


class Wakeups:
    """A thread that listens for notifications. engine: connects to the jobs database, for this object only.

    name: unique name of the worker. on_likely: called when a job is likely soon; must not block.
    """

    def __init__(self, engine: Engine, name: str, on_likely: Callable[[], None] = lambda: None) -> None:
        self._engine = engine
        self._on_likely = on_likely
        self._pipe = None if engine.dialect.name != "sqlite" else _folder(engine) / f"{name}{_SUFFIX}"
        self._events = {name: threading.Event() for name in (JOB_QUEUE, UNIT_QUEUE)}
        self._is_listening = False
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="queue notifications", daemon=True)

    def start(self) -> None:
        """Start to listen."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread and every wait."""
        self._stopping.set()
        self._wake_all()
        if self._pipe is not None:
            with suppress(OSError):
                _write(self._pipe, b"\n")
        if self._thread.is_alive():
            self._thread.join(_JOIN_SECONDS)
        self._engine.dispose()

    def wait(self, queue: str) -> None:
        """Return when something was put into the queue, after five seconds at the latest.

        Without a connection for notifications it returns immediately.
        """
        event = self._events[queue]
        if self._is_listening and not self._stopping.is_set():
            event.wait(_FALLBACK_SECONDS)
        event.clear()

    def _loop(self) -> None:
        while not self._stopping.is_set():
            try:
                self._listen() if self._pipe is None else self._listen_at(self._pipe)
            except (SQLAlchemyError, psycopg.Error, OSError) as error:
                logger.warning("no notifications from the job queue: %s", error)
            self._is_listening = False
            self._wake_all()
            self._stopping.wait(_LISTEN_SECONDS)

    def _listen(self) -> None:
        """Listen until the worker stops. Raises SQLAlchemyError and psycopg.Error."""
        # A connection pooler may accept LISTEN and deliver nothing, so this thread first notifies itself.
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
                        else:
                            self._received(message.payload)
            finally:
                connection.invalidate()

    def _listen_at(self, pipe: Path) -> None:
        """Listen at a named pipe until the worker stops. Raises OSError."""
        # A worker of this name may have left a file of another kind.
        pipe.unlink(missing_ok=True)
        os.mkfifo(pipe, 0o600)
        # The pipe is also opened for writing, so that it does not end with its last writer.
        descriptor = os.open(pipe, os.O_RDWR | os.O_NONBLOCK)
        try:
            self._is_listening = True
            readable = select.poll()
            readable.register(descriptor, select.POLLIN)
            while not self._stopping.is_set():
                readable.poll()
                for message in set(os.read(descriptor, _READ_BYTES).decode("ascii").split()):
                    self._received(message)
        finally:
            os.close(descriptor)
            pipe.unlink(missing_ok=True)

    def _received(self, message: str) -> None:
        if message != UNIT_QUEUE:
            self._on_likely()
        if message in self._events:
            self._events[message].set()

    def _wake_all(self) -> None:
        for event in self._events.values():
            event.set()
