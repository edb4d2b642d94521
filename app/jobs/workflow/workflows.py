"""The durable workflows: coordinate a job, run one of its work units, and evaluate a version."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from importlib import metadata
from typing import Final

from dbos import DBOS, SetEnqueueOptions, SetWorkflowID, SQLAlchemyDatasource
from dbos import error as dbos_error

from app.domain.entities import ACTIVE_STATES
from app.domain.errors import NotFound, ServiceError, Unavailable
from app.domain.log_context import working_on
from app.encoders.pool import EncoderPool
from app.jobs.engine.client import RECORDS_LOST, DbosQueue
from app.jobs.engine.config import EVALUATE, TRAIN_MODEL, TRAIN_UNIT, UNIT_QUEUE
from app.jobs.engine.step_runner import StepRunner
from app.jobs.errors import AttemptLost, JobError, JobStopped, WorkflowOver
from app.jobs.solver.pool import SolverPool
from app.jobs.solver.process import SOLVER_COMMAND, SolverHandle
from app.jobs.workflow import steps
from app.jobs.workflow.coordinator import Coordinator, Enqueue
from app.jobs.workflow.evaluation import EvaluationCheck, EvaluationRunner
from app.jobs.workflow.running_job import CancellationCheck, JobPlans, raise_if_stopping
from app.jobs.workflow.unit_runner import UnitRunner
from app.jobs.workflow.work_units import EVALUATION, PREPARE, RunningUnits, WorkUnit
from app.services.own_encoders import encoder_file
from app.settings import Settings
from app.store.unit_of_work import Store
from app.tracing import open_tracer

logger = logging.getLogger(__name__)

_MAX_RECOVERIES: Final = 100
_SOLVERS_END_SECONDS: Final = 2.0
_POLL_SECONDS: Final = 0.05


class TrainingWorkflows:
    """The bodies of the workflows, what they need in a worker process, and every way they can end."""

    def __init__(
        self,
        settings: Settings,
        store: Store,
        datasource: SQLAlchemyDatasource,
        queue: DbosQueue,
        stopping: threading.Event,
        running_units: RunningUnits,
        executor: str,
        solver_command: Sequence[str] | None = None,
    ) -> None:
        # Only jobs of traced requests are traced, so the rate is 0.
        self._tracer = open_tracer(settings.trace_endpoint, 0.0, "worker", metadata.version("stms"))
        self._encoders: EncoderPool | None = None
        self._opening_encoders = threading.Lock()
        self._settings = settings
        self._store = store
        self._queue = queue
        self._stopping = stopping
        self._executor = executor
        self._running_units = running_units
        self._plans = JobPlans(store)
        self._runner = StepRunner(store, datasource, partial(raise_if_stopping, stopping))
        self._enqueue: Enqueue | None = None
        start = partial(
            SolverHandle.start,
            solver_command or SOLVER_COMMAND,
            settings.solver_threads,
            settings.solver_niceness or 0,
        )
        self._pool = SolverPool(
            settings.worker_concurrency + settings.idle_solvers,
            settings.idle_solver_seconds,
            self._is_active,
            start,
            has_spare=settings.spare_solver,
        )

    def register(self) -> None:
        """Register the workflows with DBOS, before it is launched. DBOS stores their arguments."""

        @DBOS.workflow(name=TRAIN_MODEL, max_recovery_attempts=_MAX_RECOVERIES)
        def train_model(job_id: str, attempt: int) -> None:
            raise_if_stopping(self._stopping)
            with self._running_units.workflow():
                self.run_job(job_id, attempt)

        @DBOS.workflow(name=TRAIN_UNIT, max_recovery_attempts=_MAX_RECOVERIES)
        def train_unit(job_id: str, attempt: int, number: int, first: int, stop: int) -> None:
            raise_if_stopping(self._stopping)
            with self._running_units.workflow():
                self.run_unit(WorkUnit(job_id, attempt, number, first, stop))

        @DBOS.workflow(name=EVALUATE, max_recovery_attempts=_MAX_RECOVERIES)
        def evaluate(evaluation_id: str) -> None:
            raise_if_stopping(self._stopping)
            with self._running_units.workflow():
                self.run_evaluation(evaluation_id)

        def enqueue(unit: WorkUnit, priority: int) -> None:
            with SetWorkflowID(unit.id), SetEnqueueOptions(priority=priority):
                DBOS.enqueue_workflow(
                    UNIT_QUEUE, train_unit, unit.job_id, unit.attempt, unit.number, unit.first, unit.stop
                )
            self._queue.notify(UNIT_QUEUE)

        self._enqueue = enqueue

    def expect_job(self) -> None:
        """Prepare for a job that is likely soon."""
        self._pool.expect_job()

    def close(self) -> None:
        """End all solvers, and send the last spans."""
        self._pool.close()
        with self._opening_encoders:
            if self._encoders is not None:
                self._encoders.close_now()
        if self._tracer is not None:
            self._tracer.close()

    def _open_encoders(self) -> EncoderPool:
        """The pool that encodes pictures, which is made for the first job that has any."""
        with self._opening_encoders:
            if self._encoders is None:
                self._encoders = EncoderPool.of(self._settings, encoder_file(self._store))
            return self._encoders

    def run_job(self, job_id: str, attempt: int) -> None:
        """The body of ``train_model``. Every way in which it can end sets the job's final state."""
        with working_on(job_id):
            self._run_job(job_id, attempt)

    def _run_job(self, job_id: str, attempt: int) -> None:
        if self._enqueue is None:
            raise RuntimeError("the workflows are not registered")
        check = CancellationCheck(self._store, self._stopping, job_id, attempt)
        try:
            Coordinator(
                self._runner,
                self._queue,
                self._running_units,
                check,
                self._enqueue,
                self._plans,
                self._settings,
                (job_id, attempt),
            ).run()
        except (JobStopped, dbos_error.DBOSWorkflowCancelledError) as stopped:
            logger.info("job %s: %s", job_id, stopped)
            self._settle(job_id, attempt)
            self._raise_if_over()
        except (AttemptLost, dbos_error.DBOSUnexpectedStepError) as lost:
            self._restart(check, job_id, attempt, lost)
        except Exception as error:  # noqa: BLE001 - after any error the job must not stay in progress
            self._runner.run(steps.fail_job, job_id, attempt, *describe(error))

    def run_unit(self, unit: WorkUnit) -> None:
        """The body of ``train_unit``. The result of a chunk is the students that it has stored."""
        with working_on(unit.job_id):
            self._run_unit(unit)

    def _run_unit(self, unit: WorkUnit) -> None:
        check = CancellationCheck(self._store, self._stopping, unit.job_id, unit.attempt)
        try:
            with self._running_units.unit(unit) as running:
                UnitRunner(
                    self._runner,
                    self._pool,
                    check,
                    self._plans,
                    self._settings,
                    self._executor,
                    running,
                    self._tracer,
                    self._open_encoders,
                ).run()
        except (JobStopped, dbos_error.DBOSWorkflowCancelledError) as stopped:
            logger.info("job %s, unit %d: %s", unit.job_id, unit.number, stopped)
            self._forget(unit)
            self._raise_if_over()
        except (AttemptLost, dbos_error.DBOSUnexpectedStepError) as lost:
            self._restart(check, unit.job_id, unit.attempt, lost)
        except Exception as error:
            if unit.number != PREPARE:
                raise
            self._runner.run(steps.fail_job, unit.job_id, unit.attempt, *describe(error))

    def run_evaluation(self, evaluation_id: str) -> None:
        """The body of ``evaluate``. Whenever it ends, the final state is set."""
        check = EvaluationCheck(self._store, self._stopping, evaluation_id)
        unit = WorkUnit(evaluation_id, 0, EVALUATION, 0, 0)
        with working_on(evaluation_id), self._running_units.unit(unit) as running:
            runner = EvaluationRunner(self._store, self._pool, check, self._settings, running)
            try:
                runner.run()
            except (JobStopped, NotFound, dbos_error.DBOSWorkflowCancelledError) as stopped:
                logger.info("evaluation %s: %s", evaluation_id, stopped)
                self._raise_if_over()
            except Exception as error:  # noqa: BLE001 - after any error it must not stay in progress
                with suppress(JobStopped):
                    runner.fail(*describe(error))

    def _restart(
        self,
        check: CancellationCheck,
        job_id: str,
        attempt: int,
        lost: AttemptLost | dbos_error.DBOSException,
    ) -> None:
        """Queue the job again. DBOS's own error means that its records do not match the job."""
        logger.warning("job %s: attempt %d ends: %s", job_id, attempt, lost)
        code, message = (lost.code, lost.message) if isinstance(lost, AttemptLost) else RECORDS_LOST

        def restart() -> None:
            with self._store.begin() as uow:
                steps.restart_job(uow, job_id, attempt, code, message)

        try:
            check.retry_while_unavailable(restart)
        except JobStopped as stopped:
            logger.info("job %s: %s", job_id, stopped)

    def _is_active(self, job_id: str, attempt: int) -> bool:
        try:
            with self._store.read() as uow:
                job = uow.jobs.status(job_id)
        except Unavailable:
            return True
        return job.attempt == attempt and job.state in ACTIVE_STATES

    def _settle(self, job_id: str, attempt: int) -> None:
        """Settle without a step, because DBOS lets a cancelled workflow write no more checkpoints."""
        waited = 0.0
        try:
            while waited < _SOLVERS_END_SECONDS and self._has_solvers(job_id):
                self._stopping.wait(_POLL_SECONDS)
                waited += _POLL_SECONDS
            with self._store.begin() as uow:
                steps.settle_cancelled(uow, job_id, attempt)
        except ServiceError as error:
            logger.warning("job %s: left to the reconciler: %s", job_id, error)

    def _has_solvers(self, job_id: str) -> bool:
        with self._store.read() as uow:
            return bool(uow.units.workers_of([job_id])) and not uow.jobs.status(job_id).state.ended

    def _forget(self, unit: WorkUnit) -> None:
        """Record that the unit's solver has ended, because the job's coordinator waits for that."""
        try:
            with self._store.begin() as uow:
                uow.units.forget(unit.job_id, unit.attempt, [unit.number])
        except ServiceError as error:
            logger.warning("job %s, unit %d: %s", unit.job_id, unit.number, error)

    def _raise_if_over(self) -> None:
        """Raise WorkflowOver if DBOS has cancelled this workflow; it would log a return as an error."""
        workflow_id = str(DBOS.workflow_id)
        try:
            state = self._queue.states([workflow_id]).get(workflow_id)
        except Unavailable as error:
            logger.warning("workflow %s: %s", workflow_id, error)
            return
        if state is not None and state.ended:
            raise WorkflowOver


def describe(error: Exception) -> tuple[str, str]:
    """Code and message of the error that ended a job, for its user. Unexpected errors are logged."""
    if isinstance(error, JobError):
        return error.code, error.message
    if isinstance(error, ServiceError):
        return error.reason, error.message
    logger.error("a job failed in an unexpected way", exc_info=error)
    message = f"Unexpected {type(error).__name__} in the worker, whose log has the details."
    return "internal_error", message
