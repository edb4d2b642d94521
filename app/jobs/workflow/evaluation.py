"""Runs one evaluation with a solver process.

Only its end is stored, once: an evaluation that another worker takes over starts again. Workers that end
together with their solvers, for example because the container's memory is exhausted, are counted as for units
of jobs.
"""

from __future__ import annotations

import logging
import threading
import time
from functools import partial
from typing import Final, final

from app.domain.entities import Json
from app.domain.errors import ServiceError, Unavailable
from app.domain.evaluation import Evaluation
from app.jobs.errors import JobStopped, SolverFailed, WorkerStopping
from app.jobs.solver.pool import SolverPool
from app.jobs.solver.process import Solver
from app.jobs.solver.retry import with_retries
from app.jobs.workflow.running_job import StopCheck
from app.jobs.workflow.solver_settings import solver_settings
from app.jobs.workflow.work_units import RunningUnit
from app.settings import Settings
from app.store.unit_of_work import Store

logger = logging.getLogger(__name__)

_MAX_STARTS: Final = 4
_REPORT_SECONDS: Final = 0.5
_REPORT: Final = ("classes", "not_compared")


@final
class EvaluationCheck(StopCheck):
    """Tells whether an evaluation must stop. It also raises JobStopped."""

    def __init__(self, store: Store, stopping: threading.Event, evaluation_id: str) -> None:
        super().__init__(store, stopping, f"evaluation {evaluation_id}")
        self._id = evaluation_id

    def _look(self) -> None:
        with self._store.read() as uow:
            state = uow.evaluations.state(self._id)
        if state.ended:
            raise JobStopped(f"it is {state}")


class EvaluationRunner:
    """Runs one evaluation on this worker."""

    def __init__(
        self, store: Store, pool: SolverPool, check: EvaluationCheck, settings: Settings, running: RunningUnit
    ) -> None:
        self._store = store
        self._pool = pool
        self._check = check
        self._settings = settings
        self._running = running
        self._id = running.unit.job_id
        self._reported_at = 0.0

    def run(self) -> None:
        """Compute and store the result. Raises the errors of the check, SolverFailed and AttemptLost."""
        starts = self._check.retry_while_unavailable(self._begin)
        if starts > _MAX_STARTS:
            text = f"{starts - 1} workers ended while they worked on it. Does it fit into their memory?"
            raise SolverFailed("too_many_restarts", text)
        try:
            self._store_result(self._evaluated())
        except WorkerStopping:
            self._excuse()
            raise

    def fail(self, code: str, message: str) -> None:
        """End the evaluation as failed, unless it has ended."""

        def store() -> None:
            with self._store.begin() as uow:
                uow.evaluations.fail(self._id, code, message)

        self._check.retry_while_unavailable(store)

    def _evaluated(self) -> Json:
        evaluation = self._check.retry_while_unavailable(self._read)
        settings = solver_settings(self._settings, evaluation.tenant, evaluation.id, evaluation.dataset_id)
        with self._pool.solver(self._id, 0, settings, self._check) as solver:
            self._running.solver_pid = lambda: solver.pid
            return with_retries(solver, partial(self._ask, solver), self._report)

    def _ask(self, solver: Solver, report: object) -> Json:
        del report
        return solver.evaluate(self._id, self._report)

    def _begin(self) -> int:
        with self._store.begin() as uow:
            starts = uow.evaluations.begin(self._id)
        if starts is None:
            raise JobStopped("it has ended")
        return starts

    def _read(self) -> Evaluation:
        with self._store.read() as uow:
            return uow.evaluations.get(self._id)

    def _store_result(self, result: Json) -> None:
        columns = {name: value for name, value in result.items() if name not in _REPORT}
        report = {name: result[name] for name in _REPORT}

        def store() -> None:
            with self._store.begin() as uow:
                uow.evaluations.succeed(self._id, columns, report)

        self._check.retry_while_unavailable(store)

    def _report(self, progress: Json) -> None:
        """Store the number of finished classes, at most twice a second; dropped if it cannot be stored."""
        now = time.monotonic()
        if progress.get("stage") != "classes" or now - self._reported_at < _REPORT_SECONDS:
            return
        self._reported_at = now
        try:
            with self._store.begin() as uow:
                uow.evaluations.progress(self._id, int(progress["done"]), int(progress["total"]))
        except Unavailable as error:
            logger.warning("evaluation %s: progress not stored: %s", self._id, error)

    def _excuse(self) -> None:
        try:
            with self._store.begin() as uow:
                uow.evaluations.excuse(self._id)
        except ServiceError as error:
            logger.warning("evaluation %s: %s", self._id, error)
