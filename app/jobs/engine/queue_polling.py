"""Takes workflows from the queues: polls only when there may be work, and less often while a solver runs."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Final

import sqlalchemy as sa
from dbos import DBOS
from sqlalchemy.engine import Engine
from sqlalchemy.exc import SQLAlchemyError

from app.jobs.engine.config import BUSY_POLL_SECONDS, JOB_QUEUE, SCHEMA, UNIT_QUEUE
from app.jobs.engine.dbos_internals import end_unused_threads, poll_queue

logger = logging.getLogger(__name__)

_JOIN_SECONDS: Final = 5.0


class QueuePolling:
    """One thread for each queue, in which DBOS claims and starts workflows.

    database: the engine that DBOS uses. is_busy: whether a unit runs in this worker.
    wait_for_work: called with the name of an empty queue; returns when it may have work, or at any time.
    """

    def __init__(
        self, database: Engine, is_busy: Callable[[], bool], wait_for_work: Callable[[str], None]
    ) -> None:
        schema = None if database.dialect.name == "sqlite" else SCHEMA
        status = sa.table("workflow_status", sa.column("queue_name"), sa.column("status"), schema=schema)
        is_enqueued = (status.c.queue_name == sa.bindparam("queue"), status.c.status == "ENQUEUED")
        self._any_enqueued = sa.select(sa.literal(1)).select_from(status).where(*is_enqueued).limit(1)
        self._database = database
        self._waits = {
            JOB_QUEUE: WaitForWork(
                lambda: self._has_work(JOB_QUEUE),
                lambda: wait_for_work(JOB_QUEUE),
                # The solver needs the core.
                lambda: BUSY_POLL_SECONDS if is_busy() else 0.0,
            ),
            UNIT_QUEUE: WaitForWork(lambda: self._has_work(UNIT_QUEUE), lambda: wait_for_work(UNIT_QUEUE)),
        }
        self._threads: list[threading.Thread] = []

    def start(self, engine: DBOS) -> None:
        """Start to take work.

        DBOS was launched without listening to queues; these threads replace its own.
        """
        end_unused_threads(engine)
        for name, wait in self._waits.items():
            queue = DBOS.retrieve_queue(name)
            if queue is None:
                raise RuntimeError(f"the queue {name} is not registered")
            # The limits are those registered by this worker, so DBOS need not read them before each poll.
            queue.database_backed_queue = False
            thread = threading.Thread(
                target=poll_queue, args=(engine, queue, wait), name=f"queue {name}", daemon=True
            )
            thread.start()
            self._threads.append(thread)

    def stop(self) -> None:
        """Take no more work. Threads end as soon as ``wait_for_work`` has returned; `join` waits for them."""
        for wait in self._waits.values():
            wait.set()

    def join(self) -> None:
        """Wait until the threads have ended, up to five seconds for each; call `stop` before."""
        for thread in self._threads:
            thread.join(_JOIN_SECONDS)

    def _has_work(self, queue: str) -> bool:
        """Whether the queue has work.

        Also True if that cannot be read: DBOS then polls and reports the error.
        """
        try:
            with self._database.connect() as connection:
                # A single SELECT needs no transaction, whose BEGIN and END cost as much as the query itself.
                connection = connection.execution_options(isolation_level="AUTOCOMMIT")
                return connection.execute(self._any_enqueued, {"queue": queue}).first() is not None
        except SQLAlchemyError as error:
            logger.debug("queue %s: %s", queue, error)
            return True


class WaitForWork(threading.Event):
    """The event that ends a thread of DBOS. DBOS waits on it before each poll, here until there is work.

    wait_for_work: as for `QueuePolling`; called only if there was no work. least_seconds: shortest pause.
    """

    def __init__(
        self,
        has_work: Callable[[], bool],
        wait_for_work: Callable[[], None],
        least_seconds: Callable[[], float] = lambda: 0.0,
    ) -> None:
        super().__init__()
        self._has_work = has_work
        self._wait_for_work = wait_for_work
        self._least_seconds = least_seconds
        self._was_empty = False

    def wait(self, timeout: float | None = None) -> bool:
        """Wait at least ``timeout`` seconds, until there is work; returns True if the thread shall end."""
        while not super().wait(max(timeout or 0.0, self._least_seconds())):
            if self._was_empty:
                self._wait_for_work()
            self._was_empty = not self._has_work()
            if not self._was_empty:
                return self.is_set()
        return True
