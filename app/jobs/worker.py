"""A worker process: it takes jobs from the queue and runs them until it is told to stop."""

from __future__ import annotations

import logging
import os
import signal
import sqlite3
import sys
import threading
import time
from collections.abc import Callable, Sequence
from types import FrameType

from dbos import DBOS, DBOSConfig, SQLAlchemyDatasource
from sqlalchemy.engine import make_url

from app.domain.errors import Unavailable
from app.jobs.engine.client import DbosQueue
from app.jobs.engine.config import (
    APPLICATION,
    APPLICATION_VERSION,
    SCHEMA,
    engine_url,
    look_lightly,
    nap_shortly,
    quiet_engine_log,
    serializer,
    wait_for_room,
)
from app.jobs.heartbeat import Heartbeat
from app.jobs.identity import claim_identity
from app.jobs.reconciler import Reconciler
from app.jobs.workflow.running_units import UnderWay
from app.jobs.workflow.workflows import Training
from app.logs import Repeats, mask_logs
from app.processes.os_process import set_niceness
from app.services.retention import Cleaner
from app.settings import Settings
from app.store.engine import open_database, use_wal
from app.store.migrate import schema_is_current
from app.store.unit_of_work import Store

logger = logging.getLogger(__name__)

_DRAIN_SECONDS = 5.0
_LISTED_SECONDS = 60.0
_SPARE_CONNECTIONS = 12
"""For heartbeat, reconciler and coordinators, which ask often and shortly."""
_NEWS_SECONDS = 0.5
_NICENESS = 2
"""What answers queries goes first; a worker that is not heard of is taken for dead, so not far behind."""


class Worker:
    """Everything that runs in a worker process. `start` once, then `stop`.

    solver_command: program and arguments of the solver process, if not this package's own.
    on_lost: called when the peers have given this worker up; nothing is left to do for it but `stop`.
    """

    def __init__(
        self,
        settings: Settings,
        solver_command: Sequence[str] | None = None,
        on_lost: Callable[[], None] = lambda: None,
    ) -> None:
        self._solver_command = solver_command
        self._settings = settings
        self._on_lost = on_lost
        self._is_lost = False
        self._under_way = UnderWay()
        self._stopping = threading.Event()
        self._identity = claim_identity(settings)
        me = self._identity.worker
        # Each running workflow may hold a connection, and the heartbeat must never wait for one.
        # Frozen in a transaction, this worker must not keep its rows from who takes over.
        pool_size = 2 * settings.worker_concurrency + _SPARE_CONNECTIONS
        self._store = Store(
            open_database(settings, "worker", pool_size=pool_size, idle=settings.takeover_seconds)
        )
        self._queue = DbosQueue(settings)
        self._heartbeat = Heartbeat(
            self._store,
            me,
            every=settings.heartbeat_seconds,
            patience=settings.takeover_seconds,
            doing=self._under_way.snapshot,
            take_over=self._take_over,
            lost=self._end_as_lost,
        )
        self._reconciler = Reconciler(
            self._store, self._queue, self._adopt, let_go=Cleaner(self._store, settings)
        )
        self._training: Training | None = None
        self._taken_over: set[tuple[str, str]] = set()

    @property
    def executor_id(self) -> str:
        """The worker's name."""
        return self._identity.worker.executor_id

    def start(self) -> None:
        """Prepare the job engine's database and take up work, first what a former life of this name left.

        Raises Unavailable when the service's own tables are missing or of another version.
        """
        settings = self._settings
        if not schema_is_current(self._store.engine):
            raise Unavailable(
                "The database's tables are missing or of another version: run 'stms db upgrade' first.",
                code="schema_outdated",
            )
        quiet_engine_log()
        nap_shortly()
        wait_for_room()
        url = engine_url(settings)
        if url.startswith("sqlite"):
            _use_wal_at(url)
        DBOS.migrate(url, schema=SCHEMA)
        self._queue.register_queues()
        # The engine recovers this name's unfinished work when launched: the peers must see it alive by then.
        self._heartbeat.beat()
        engine = DBOS(
            config=DBOSConfig(
                name=APPLICATION,
                system_database_url=url,
                dbos_system_schema=SCHEMA,
                application_version=APPLICATION_VERSION,
                executor_id=self.executor_id,
                serializer=serializer(),
                log_level="WARNING",
                # Frozen in a transaction of the engine, it loses that one, too.
                sys_db_idle_transaction_timeout_sec=settings.takeover_seconds,
                # Nobody waits for such news; to look for it would wake a core 100 times a second.
                notification_coalesce_sec=_NEWS_SECONDS,
                sys_db_pool_size=2 * settings.worker_concurrency + _SPARE_CONNECTIONS,
            )
        )
        datasource = SQLAlchemyDatasource.create(
            settings.app_database_url, engine=self._store.engine, schema=SCHEMA, serializer=serializer()
        )
        self._training = Training(
            settings,
            self._store,
            datasource,
            self._queue,
            self._stopping,
            self._under_way,
            self.executor_id,
            self._solver_command,
        )
        self._training.register()
        DBOS.launch()
        look_lightly(engine._sys_db, self._under_way.is_busy)
        self._heartbeat.start()
        self._reconciler.start()
        logger.info("worker %s takes jobs", self.executor_id)

    def stop(self) -> None:
        """End the solvers at once and leave unfinished jobs to be continued by whoever comes next."""
        self._stopping.set()
        self._under_way.wake()
        if not self._under_way.wait_until_idle(_DRAIN_SECONDS):
            logger.warning("some workflows did not stop within %.0f s", _DRAIN_SECONDS)
        if self._training is not None:
            self._training.close()
        self._reconciler.stop()
        self._heartbeat.stop()
        DBOS.destroy(destroy_registry=True)
        self._sign_off()
        self._queue.close()
        self._store.dispose()
        self._identity.release()

    def _sign_off(self) -> None:
        """Leave the list of workers; if there is work under this name, leave it to the peers at once."""
        if self._is_lost:
            return
        try:
            with self._store.begin() as uow:
                if self._queue.has_work_of(self.executor_id):
                    uow.workers.mark_lost(self.executor_id, time.time())
                else:
                    uow.workers.forget(self.executor_id)
        except Unavailable as error:
            logger.warning("worker %s: could not sign off: %s", self.executor_id, error)

    def _end_as_lost(self) -> None:
        """The peers do this worker's work: its solvers end now, and the name is not used any more."""
        self._is_lost = True
        logger.error(
            "worker %s was given up by the others after a silence of more than %.0f s: it stops its solvers",
            self.executor_id,
            self._settings.takeover_seconds,
        )
        self._stopping.set()
        self._under_way.wake()
        self._on_lost()

    def _take_over(self, lost: Sequence[str]) -> None:
        """Queue the unfinished work of lost workers again; the engine gives each piece to one worker only.

        They stay listed for a while: what one of them took up before it knew is found the next time.
        """
        for executor_id in lost:
            handles = DBOS._recover_pending_workflows([executor_id])
            jobs = {handle.get_workflow_id().partition(".")[0] for handle in handles}
            self._taken_over |= {(job_id, executor_id) for job_id in jobs}
        self._tell_of_takeovers()
        before = time.time() - _LISTED_SECONDS
        with self._store.begin() as uow:
            for worker in uow.workers.all():
                if worker.lost_at is not None and worker.lost_at < before:
                    uow.workers.forget(worker.executor_id)

    def _tell_of_takeovers(self) -> None:
        """What cannot be told now, as the lost worker still holds the job's row, is told the next time."""
        for pair in sorted(self._taken_over):
            self._taken_over.discard(pair)
            job_id, executor_id = pair
            try:
                with self._store.begin() as uow:
                    told = {"from": [executor_id], "by": self.executor_id}
                    uow.events.append(job_id, "worker_took_over", told)
            except Unavailable:
                self._taken_over.add(pair)
                raise

    def _adopt(self) -> None:
        """Take over work under names that no worker has: of lost ones that are not listed any more."""
        busy = self._queue.workers_with_work()
        with self._store.read() as uow:
            known = {worker.executor_id for worker in uow.workers.all()}
        if busy - known:
            self._take_over(sorted(busy - known))


def run_worker(settings: Settings) -> int:
    """Work until SIGTERM or SIGINT; returns the exit status. Blocks; main thread only."""
    logging.basicConfig(level=settings.log_level, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("alembic").setLevel(logging.WARNING)
    mask_logs()
    for handler in logging.getLogger().handlers:
        handler.addFilter(Repeats())
    stop, lost = threading.Event(), threading.Event()

    def on_signal(_number: int, _frame: FrameType | None) -> None:
        lost.clear()
        stop.set()

    def on_lost() -> None:
        lost.set()
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, on_signal)
    set_niceness(_NICENESS)
    worker = Worker(settings, on_lost=on_lost)
    try:
        worker.start()
        stop.wait()
    finally:
        worker.stop()
    if lost.is_set():
        _begin_anew()
    _leave_no_thread_behind()
    return 0


def _begin_anew() -> None:
    """Go on as another worker: the same command in the same process, with nothing left of this one."""
    logger.warning("beginning anew under another name")
    logging.shutdown()
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])  # noqa: S606


def _leave_no_thread_behind() -> None:
    """End now if a thread hangs in the engine: one that lost its work to a peer waits there for the end."""
    deadline = time.monotonic() + 2.0
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join(max(0.0, deadline - time.monotonic()))
            if thread.is_alive():
                logger.info("leaving thread %s behind", thread.name)
                logging.shutdown()
                os._exit(0)


def _use_wal_at(url: str) -> None:
    """For the engine's own database, too."""
    path = make_url(url).database
    if path is None:
        raise Unavailable(f"{url} names no file.")
    connection = sqlite3.connect(path, timeout=30.0)
    try:
        use_wal(connection)
    finally:
        connection.close()


if __name__ == "__main__":
    sys.exit(run_worker(Settings()))
