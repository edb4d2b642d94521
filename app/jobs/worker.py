"""A worker process, which takes jobs from the queue and runs them until it is stopped."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from types import FrameType

from dbos import DBOS, DBOSConfig, SQLAlchemyDatasource

from app.domain.errors import Unavailable
from app.jobs.engine.client import DbosQueue
from app.jobs.engine.config import (
    APPLICATION,
    APPLICATION_VERSION,
    SCHEMA,
    engine_url,
    quiet_engine_log,
    serializer,
)
from app.jobs.engine.database import open_jobs_database
from app.jobs.engine.dbos_internals import running_here
from app.jobs.engine.queue_polling import QueuePolling
from app.jobs.engine.wakeups import Wakeups
from app.jobs.heartbeat import Heartbeat
from app.jobs.identity import claim_identity
from app.jobs.monitor_work import MonitorWork
from app.jobs.reconciler import Reconciler
from app.jobs.takeover import Takeover, UnstartedWork, requeue_work_of
from app.jobs.webhook_sender import WebhookSender
from app.jobs.workflow.work_units import RunningUnits
from app.jobs.workflow.workflows import TrainingWorkflows
from app.logs import Repeats, mask_logs
from app.plugins import load_plugins
from app.processes.open_files import raise_open_files
from app.processes.os_process import ProcessName, set_niceness, set_process_name
from app.services.retention import Cleaner
from app.settings import Settings
from app.store.engine import open_database, open_engine
from app.store.migrate import schema_is_current
from app.store.opening import open_store
from app.store.unit_of_work import Store

logger = logging.getLogger(__name__)

_DRAIN_SECONDS = 5.0
_SPARE_CONNECTIONS = 12
"""Connections for heartbeat, reconciler and coordinators, whose transactions are short."""
_NOTIFICATION_SECONDS = 0.5
_NICENESS = 2
"""API processes have slightly higher priority, not more: a worker with late heartbeats counts as dead."""


class Worker:
    """Everything that runs in a worker process. `start` once, then `stop`.

    solver_command: program and arguments of the solver process, if not this package's own.
    on_lost: called when the peers have marked this worker as lost; all that remains is to call `stop`.
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
        self._running_units = RunningUnits()
        self._stopping = threading.Event()
        self._identity = claim_identity(settings)
        me = self._identity.worker
        # Each running workflow may use a connection, and the heartbeat must never wait for one. The database
        # ends idle transactions, so that a frozen worker does not block rows for its successor.
        pool_size = 2 * settings.worker_concurrency + _SPARE_CONNECTIONS
        self._store = open_store(
            settings, "worker", pool_size=pool_size, idle=settings.takeover_seconds
        ).of_all_tenants()
        # The pool may open as many again.
        self._jobs_database = open_jobs_database(settings, pool_size // 2, self._stopping)
        self._queue = DbosQueue(settings)
        self._wakeups = Wakeups(
            open_engine(settings.jobs_database_url, pool_size=1, part="notifications"),
            self.executor_id,
            self._expect_job,
        )
        self._polling = QueuePolling(self._jobs_database, self._running_units.is_busy, self._wakeups.wait)
        takeover = Takeover(self._store, self._queue, self.executor_id)
        self._heartbeat_store = Store(open_database(settings, "heartbeat", pool_size=1, pre_ping=False))
        self._heartbeat = Heartbeat(
            self._heartbeat_store,
            me,
            interval=settings.heartbeat_seconds,
            timeout=settings.takeover_seconds,
            units=self._running_units.snapshot,
            take_over=takeover.take_over,
            on_lost=self._end_as_lost,
        )
        self._reconciler = Reconciler(
            self._store,
            self._queue,
            takeover.recover_orphans,
            clean_up=Cleaner(self._store, settings),
            is_elected=lambda: self._heartbeat.is_elected,
            check_own_work=self._check_own_work,
        )
        self._monitors = MonitorWork(self._store, settings, self._queue, lambda: self._heartbeat.is_elected)
        self._webhooks = WebhookSender(self._store, settings, lambda: self._heartbeat.is_elected)
        self._unstarted: UnstartedWork | None = None
        self._training: TrainingWorkflows | None = None

    @property
    def executor_id(self) -> str:
        """The worker's name."""
        return self._identity.worker.executor_id

    def start(self) -> None:
        """Prepare DBOS's database and take work, first the work that an earlier process of this name left.

        Raises Unavailable if the service's own tables are missing or of another version.
        """
        settings = self._settings
        if not schema_is_current(self._store.engine):
            raise Unavailable(
                "The database's tables are missing or of another version: run 'stms db upgrade' first.",
                code="schema_outdated",
            )
        quiet_engine_log()
        DBOS.migrate(engine_url(settings), schema=SCHEMA)
        self._queue.register_queues()
        # The peers must see this worker alive before it resumes the earlier work of its name.
        self._heartbeat.beat()
        for workflow_id in requeue_work_of(self._queue, self.executor_id):
            logger.info("workflow %s of a former process of this worker is queued again", workflow_id)
        engine = DBOS(
            config=DBOSConfig(
                name=APPLICATION,
                system_database_engine=self._jobs_database,
                dbos_system_schema=SCHEMA,
                application_version=APPLICATION_VERSION,
                executor_id=self.executor_id,
                serializer=serializer(),
                log_level="WARNING",
                # No workflow waits for notifications, for which the default would poll 100 times a second.
                notification_coalesce_sec=_NOTIFICATION_SECONDS,
            )
        )
        datasource = SQLAlchemyDatasource.create(
            settings.app_database_url, engine=self._store.engine, schema=SCHEMA, serializer=serializer()
        )
        self._training = TrainingWorkflows(
            settings,
            self._store,
            datasource,
            self._queue,
            self._stopping,
            self._running_units,
            self.executor_id,
            self._solver_command,
        )
        self._training.register()
        DBOS.listen_queues([])
        DBOS.launch()
        self._wakeups.start()
        self._polling.start(engine)
        self._unstarted = UnstartedWork(self._queue, self.executor_id, partial(running_here, engine))
        self._heartbeat.start()
        self._reconciler.start()
        self._webhooks.start()
        self._monitors.start()
        logger.info("worker %s takes jobs", self.executor_id)

    def stop(self) -> None:
        """Kill the solvers. Another worker, or the next one of this name, continues unfinished jobs."""
        self._stopping.set()
        self._polling.stop()
        self._running_units.wake()
        if not self._running_units.wait_until_idle(_DRAIN_SECONDS):
            logger.warning("some workflows did not stop within %.0f s", _DRAIN_SECONDS)
        if self._training is not None:
            self._training.close()
        self._monitors.stop()
        self._webhooks.stop()
        self._reconciler.stop()
        self._heartbeat.stop()
        self._wakeups.stop()
        self._polling.join()
        DBOS.destroy(destroy_registry=True)
        self._jobs_database.dispose()
        self._deregister()
        self._queue.close()
        self._heartbeat_store.dispose()
        self._store.dispose()
        self._identity.release()

    def _expect_job(self) -> None:
        if self._training is not None:
            self._training.expect_job()

    def _check_own_work(self) -> None:
        if self._unstarted is not None:
            self._unstarted.check()

    def _deregister(self) -> None:
        """Remove this worker from the list or, if it has work, mark it as lost, so that peers take over."""
        if self._is_lost:
            return
        try:
            with self._store.begin() as uow:
                if self._queue.work_of(self.executor_id):
                    uow.workers.mark_lost(self.executor_id)
                else:
                    uow.workers.forget(self.executor_id)
        except Unavailable as error:
            logger.warning("worker %s: could not deregister: %s", self.executor_id, error)

    def _end_as_lost(self) -> None:
        """Kill the solvers, because the peers do this worker's work; its name is not used again."""
        self._is_lost = True
        logger.error(
            "worker %s was marked as lost by its peers after %.0f s of silence: it kills its solvers",
            self.executor_id,
            self._settings.takeover_seconds,
        )
        self._stopping.set()
        self._running_units.wake()
        self._on_lost()


def run_worker(settings: Settings) -> int:
    """Run a worker until SIGTERM or SIGINT; returns the exit status. Call it in the main thread."""
    logging.basicConfig(level=settings.log_level, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("alembic").setLevel(logging.WARNING)
    mask_logs(settings.log_format)
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
    set_process_name(ProcessName.WORKER)
    raise_open_files()
    if settings.solver_niceness:
        set_niceness(_NICENESS)
    worker = Worker(settings, on_lost=on_lost)
    try:
        worker.start()
        stop.wait()
    finally:
        worker.stop()
    if lost.is_set():
        _reexec(settings)
    _exit_despite_threads()
    return 0


def _reexec(settings: Settings) -> None:
    """Replace this process by a new worker, which gets another name."""
    logger.warning("restarting under another name")
    logging.shutdown()
    environment = os.environ | {"STMS_DATA_DIR": str(settings.data_dir.absolute())}
    os.execve(sys.executable, [sys.executable, "-P", "-m", "app.cli", "worker"], environment)  # noqa: S606


def _exit_despite_threads() -> None:
    """Exit even if a thread hangs in DBOS, for example because a peer took over its workflow."""
    deadline = time.monotonic() + 2.0
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join(max(0.0, deadline - time.monotonic()))
            if thread.is_alive():
                logger.info("exiting without waiting for thread %s", thread.name)
                logging.shutdown()
                os._exit(0)


if __name__ == "__main__":
    load_plugins()
    sys.exit(run_worker(Settings()))
