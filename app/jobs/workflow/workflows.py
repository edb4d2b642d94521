"""The durable workflows: coordinate a job, and do one unit of its work."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from functools import partial

from dbos import DBOS, SetEnqueueOptions, SetWorkflowID, SQLAlchemyDatasource
from dbos._error import DBOSWorkflowCancelledError

from app.domain.errors import ServiceError, Unavailable
from app.jobs.engine.client import DbosQueue
from app.jobs.engine.config import TRAIN_MODEL, TRAIN_UNIT, UNIT_QUEUE
from app.jobs.engine.step_runner import Ledger
from app.jobs.solver.pool import SolverPool
from app.jobs.solver.process import SOLVER_COMMAND, SolverFailed, SolverHandle
from app.jobs.workflow import steps
from app.jobs.workflow.cancellation import UNDER_WAY, JobStopped, JobWatch, WorkflowOver, stop_if
from app.jobs.workflow.coordinator import Coordinator, Enqueue, UnitLost
from app.jobs.workflow.running_units import UnderWay
from app.jobs.workflow.unit_runner import UnitWork
from app.jobs.workflow.work_units import PREPARE, Unit
from app.settings import Settings
from app.store.unit_of_work import Store

logger = logging.getLogger(__name__)

_MAX_RECOVERIES = 100
_SOLVERS_END_SECONDS = 2.0
_LOOK_SECONDS = 0.05


class Training:
    """What the workflows need in a worker process, and every way they can end."""

    def __init__(
        self,
        settings: Settings,
        store: Store,
        datasource: SQLAlchemyDatasource,
        queue: DbosQueue,
        stopping: threading.Event,
        under_way: UnderWay,
        executor: str,
        solver_command: Sequence[str] | None = None,
    ) -> None:
        self._settings = settings
        self._store = store
        self._queue = queue
        self._stopping = stopping
        self._executor = executor
        self._under_way = under_way
        self._ledger = Ledger(store, datasource, stopping)
        self._enqueue: Enqueue | None = None
        room = settings.worker_concurrency + settings.idle_solvers
        start = partial(
            SolverHandle.start,
            solver_command or SOLVER_COMMAND,
            settings.solver_threads,
            settings.solver_niceness,
        )
        self._pool = SolverPool(
            room, settings.idle_solver_seconds, self._goes_on, start, has_spare=settings.spare_solver
        )

    def register(self) -> None:
        """Make the workflows known to the engine, before it is launched."""

        @DBOS.workflow(name=TRAIN_MODEL, max_recovery_attempts=_MAX_RECOVERIES)
        def train_model(job_id: str, attempt: int) -> None:
            stop_if(self._stopping)
            with self._under_way.workflow():
                self.run_job(job_id, attempt)

        @DBOS.workflow(name=TRAIN_UNIT, max_recovery_attempts=_MAX_RECOVERIES)
        def train_unit(job_id: str, attempt: int, number: int, first: int, stop: int) -> None:
            stop_if(self._stopping)
            with self._under_way.workflow():
                self.run_unit(Unit(job_id, attempt, number, first, stop))

        def enqueue(unit: Unit, priority: int) -> None:
            with SetWorkflowID(unit.id), SetEnqueueOptions(priority=priority):
                DBOS.enqueue_workflow(
                    UNIT_QUEUE, train_unit, unit.job_id, unit.attempt, unit.number, unit.first, unit.stop
                )

        self._enqueue = enqueue

    def close(self) -> None:
        """End all solvers."""
        self._pool.close()

    def run_job(self, job_id: str, attempt: int) -> None:
        """The body of ``train_model``: every way it can end sets the job's final state."""
        if self._enqueue is None:
            raise RuntimeError("the workflows are not registered")
        run = (job_id, attempt)
        watch = JobWatch(self._store, self._stopping, job_id, attempt)
        try:
            Coordinator(
                self._ledger, self._queue, self._under_way, watch, self._enqueue, self._settings, run
            ).train()
        except (JobStopped, DBOSWorkflowCancelledError) as stopped:
            logger.info("job %s: %s", job_id, stopped)
            self._settle(job_id, attempt)
            self._leave()
        except Exception as error:  # noqa: BLE001 - whatever it is, the job must not stay in progress
            self._ledger.step(steps.fail_job, job_id, attempt, *described(error))

    def run_unit(self, unit: Unit) -> None:
        """The body of ``train_unit``. The end of a chunk says nothing; the students it stored do."""
        watch = JobWatch(self._store, self._stopping, unit.job_id, unit.attempt)
        try:
            with self._under_way.unit(unit) as solvers:
                UnitWork(self._ledger, self._pool, watch, self._settings, self._executor, unit, solvers).do()
        except (JobStopped, DBOSWorkflowCancelledError) as stopped:
            logger.info("job %s, unit %d: %s", unit.job_id, unit.number, stopped)
            self._forget(unit)
            self._leave()
        except Exception as error:
            if unit.number != PREPARE:
                raise
            self._ledger.step(steps.fail_job, unit.job_id, unit.attempt, *described(error))

    def _goes_on(self, job_id: str, attempt: int) -> bool:
        try:
            with self._store.read() as uow:
                job = uow.jobs.get(job_id)
        except Unavailable:
            return True
        return job.attempt == attempt and job.state in UNDER_WAY

    def _settle(self, job_id: str, attempt: int) -> None:
        """Outside the engine's bookkeeping, which lets a cancelled workflow write no more."""
        waited = 0.0
        try:
            while waited < _SOLVERS_END_SECONDS and self._has_solvers(job_id):
                self._stopping.wait(_LOOK_SECONDS)
                waited += _LOOK_SECONDS
            with self._store.begin() as uow:
                steps.settle_cancelled(uow, job_id, attempt)
        except ServiceError as error:
            logger.warning("job %s: left to the reconciler: %s", job_id, error)

    def _has_solvers(self, job_id: str) -> bool:
        with self._store.read() as uow:
            return bool(uow.units.workers_of([job_id])) and not uow.jobs.get(job_id).state.ended

    def _forget(self, unit: Unit) -> None:
        """The solver is gone, and whoever cancels the job waits for that."""
        try:
            with self._store.begin() as uow:
                uow.units.forget(unit.job_id, unit.attempt, [unit.number])
        except ServiceError as error:
            logger.warning("job %s, unit %d: %s", unit.job_id, unit.number, error)

    def _leave(self) -> None:
        """Go without a word when the engine has cancelled this workflow already: returning would alarm it."""
        workflow_id = str(DBOS.workflow_id)
        try:
            state = self._queue.states([workflow_id]).get(workflow_id)
        except Unavailable as error:
            logger.warning("workflow %s: %s", workflow_id, error)
            return
        if state is not None and state.ended:
            raise WorkflowOver


def described(error: Exception) -> tuple[str, str]:
    """Code and message of what ended a job, as a user may read them; the rest goes to the log."""
    if isinstance(error, SolverFailed | UnitLost):
        return error.code, error.message
    if isinstance(error, ServiceError):
        return error.reason, error.message
    logger.error("a job failed in an unexpected way", exc_info=error)
    message = f"Unexpected {type(error).__name__} in the worker, whose log has the details."
    return "internal_error", message
