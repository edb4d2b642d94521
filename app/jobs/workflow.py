"""The durable workflows: train a model, and train one chunk of its classes.

What is between two steps may run again after a crash: solving may, storing may not. A solver's result is
handed to the step that stores it, and the step commits the result together with its own checkpoint. So on
recovery the workflow first goes once more through the steps of what is stored, which the engine answers from
their checkpoints, and then solves only the rest.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from dbos import DBOS, SetWorkflowID, SQLAlchemyDatasource
from dbos._datasource import DatasourceOptions
from dbos._error import DBOSWorkflowCancelledError

from app.domain.entities import Job
from app.domain.errors import ServiceError, Unavailable
from app.domain.spec import TrainingSpec
from app.jobs import rounds, steps
from app.jobs.engine import CHUNK_QUEUE, TRAIN_CHUNK, TRAIN_MODEL
from app.jobs.finish import finish_job
from app.jobs.queue import DbosQueue
from app.jobs.reporter import Reporter
from app.jobs.solver_process import Order, Pair, Solver, SolverFailed
from app.jobs.watch import JobStopped, JobWatch, WorkflowOver, stop_if
from app.services.training_plan import targets_of
from app.settings import Settings
from app.store.unit_of_work import Store, UnitOfWork

logger = logging.getLogger(__name__)

R = TypeVar("R")

_CHUNK_LOOK_SECONDS = 0.2
_MAX_RECOVERIES = 100


class Training:
    """What the workflows need in a worker process, and their bodies."""

    def __init__(
        self,
        settings: Settings,
        store: Store,
        datasource: SQLAlchemyDatasource,
        queue: DbosQueue,
        stopping: threading.Event,
        executor: str,
        solver_command: Sequence[str] | None = None,
    ) -> None:
        self._solver_command = solver_command
        self._settings = settings
        self._store = store
        self._datasource = datasource
        self._queue = queue
        self._stopping = stopping
        self._executor = executor
        self._start_chunk: Callable[[str, int, int, int], None] | None = None
        self._running = 0
        self._idle = threading.Condition()

    def register(self) -> None:
        """Make the workflows known to the engine, before it is launched."""

        @DBOS.workflow(name=TRAIN_MODEL, max_recovery_attempts=_MAX_RECOVERIES)
        def train_model(job_id: str, attempt: int) -> None:
            with self._counted():
                self.run_job(job_id, attempt)

        @DBOS.workflow(name=TRAIN_CHUNK, max_recovery_attempts=_MAX_RECOVERIES)
        def train_chunk(job_id: str, attempt: int, chunk: int, chunk_size: int) -> None:
            with self._counted():
                self.run_chunk(job_id, attempt, chunk, chunk_size)

        def start_chunk(job_id: str, attempt: int, chunk: int, chunk_size: int) -> None:
            with SetWorkflowID(chunk_id(job_id, attempt, chunk)):
                DBOS.enqueue_workflow(CHUNK_QUEUE, train_chunk, job_id, attempt, chunk, chunk_size)

        self._start_chunk = start_chunk

    def wait_until_idle(self, seconds: float) -> bool:
        """Whether within ``seconds`` no workflow runs here any more."""
        with self._idle:
            return self._idle.wait_for(lambda: self._running == 0, seconds)

    @contextmanager
    def _counted(self) -> Iterator[None]:
        stop_if(self._stopping)
        with self._idle:
            self._running += 1
        try:
            yield
        finally:
            with self._idle:
                self._running -= 1
                self._idle.notify_all()

    def run_job(self, job_id: str, attempt: int) -> None:
        """The body of ``train_model``: every way it can end sets the job's final state."""
        try:
            self._train(job_id, attempt)
        except (JobStopped, DBOSWorkflowCancelledError) as stopped:
            logger.info("job %s: %s", job_id, stopped)
            self._settle(job_id, attempt)
            self._leave()
        except Exception as error:  # noqa: BLE001 - whatever it is, the job must not stay in progress
            code, message = described(error)
            self._step(steps.fail_job, job_id, attempt, code, message)

    def run_chunk(self, job_id: str, attempt: int, chunk: int, chunk_size: int) -> None:
        """The body of ``train_chunk``. Its end says nothing; the students it stored do."""
        watch = self._watch(job_id, attempt)
        try:
            with self._solver(watch, job_id) as solver:
                self._train_chunk(solver, watch, job_id, attempt, chunk, chunk_size)
        except (JobStopped, DBOSWorkflowCancelledError) as stopped:
            logger.info("job %s, chunk %d: %s", job_id, chunk, stopped)
            self._leave()

    def _train(self, job_id: str, attempt: int) -> None:
        watch = self._watch(job_id, attempt)
        size = self._settings.classes_per_chunk
        plan = self._step(steps.begin_job, job_id, attempt, size, self._executor)
        if not plan["run"]:
            logger.info("job %s: attempt %d is not wanted any more", job_id, attempt)
            return
        with self._solver(watch, job_id) as solver:
            self._prepare(solver, watch, job_id, attempt)
            if plan["chunks"] == 1:
                # The only chunk is trained where its preparation is in memory already.
                self._train_chunk(solver, watch, job_id, attempt, 0, plan["chunk_size"])
        if plan["chunks"] > 1:
            self._train_chunks(watch, job_id, attempt, plan["chunks"], plan["chunk_size"])
        self._step(finish_job, job_id, attempt)

    def _prepare(self, solver: Solver, watch: JobWatch, job_id: str, attempt: int) -> None:
        job = self._job(watch, job_id)
        prepared = None
        if job.preparation_digest is None:
            reporter = Reporter(self._store, job_id, attempt)
            prepared = rounds.prepare(solver, self._targets(watch, job), reporter)
        self._step(steps.keep_preparation, job_id, prepared)

    def _train_chunk(
        self, solver: Solver, watch: JobWatch, job_id: str, attempt: int, chunk: int, chunk_size: int
    ) -> None:
        planned = self._step(steps.plan_chunk, job_id, chunk, chunk_size)
        todo: list[Pair] = [(int(index), str(method)) for index, method in planned]
        stored = watch.patiently(lambda: self._stored(job_id, todo))
        for _ in stored:
            self._step(steps.keep_student, job_id, None)
        rest = [pair for pair in todo if pair not in stored]
        if not rest:
            return
        job = self._job(watch, job_id)
        classes = watch.patiently(lambda: self._classes(job))
        reporter = Reporter(self._store, job_id, attempt)
        digest = str(job.preparation_digest)
        for result in rounds.train(solver, rest, digest, reporter, classes.__getitem__):
            self._step(steps.keep_student, job_id, result)

    def _train_chunks(self, watch: JobWatch, job_id: str, attempt: int, chunks: int, chunk_size: int) -> None:
        """Hand the chunks to whichever workers are free, and wait until the last has ended."""
        if self._start_chunk is None:
            raise RuntimeError("the workflows are not registered")
        for chunk in range(chunks):
            self._start_chunk(job_id, attempt, chunk, chunk_size)
        for chunk in range(chunks):
            waiting_for = chunk_id(job_id, attempt, chunk)
            while not watch.patiently(lambda: self._has_ended(waiting_for)):  # noqa: B023 - called at once
                watch.pause(_CHUNK_LOOK_SECONDS)

    def _has_ended(self, workflow_id: str) -> bool:
        state = self._queue.states([workflow_id]).get(workflow_id)
        return state is not None and state.ended

    def _settle(self, job_id: str, attempt: int) -> None:
        """Outside the engine's bookkeeping, which lets a cancelled workflow write no more."""
        try:
            with self._store.begin() as uow:
                steps.settle_cancelled(uow, job_id, attempt)
        except ServiceError as error:
            logger.warning("job %s: left to the reconciler: %s", job_id, error)

    def _leave(self) -> None:
        """Go without a word when the engine has cancelled this workflow already: returning would alarm it."""
        workflow_id = str(DBOS.workflow_id)
        try:
            ended = self._has_ended(workflow_id)
        except Unavailable as error:
            logger.warning("workflow %s: %s", workflow_id, error)
            return
        if ended:
            raise WorkflowOver

    def _step(self, function: Callable[..., R], *arguments: Any) -> R:
        """Run one of `steps` in a transaction that commits its checkpoint too."""

        def in_transaction() -> R:
            uow = UnitOfWork(self._datasource.sql_session().connection())
            return function(uow, *arguments)

        # Writers of one job wait for each other on its row, so a stricter level would only make them fail.
        on_sqlite = self._store.engine.dialect.name == "sqlite"
        options = DatasourceOptions(
            name=function.__name__, isolation_level="SERIALIZABLE" if on_sqlite else "READ COMMITTED"
        )
        return self._datasource.run_tx_step(options, in_transaction)

    def _watch(self, job_id: str, attempt: int) -> JobWatch:
        return JobWatch(self._store, self._stopping, job_id, attempt)

    def _solver(self, watch: JobWatch, job_id: str) -> Solver:
        job = self._job(watch, job_id)
        order = Order(
            dataset_id=job.dataset_id,
            spec=job.spec,
            threads=self._settings.solver_threads,
            log_level=self._settings.log_level,
            database_url=self._settings.app_database_url,
            cache_dir=str(self._settings.cache_folder.absolute()),
            cache_disk_bytes=self._settings.cache_disk_bytes,
        )
        return Solver(order, watch, self._solver_command)

    def _job(self, watch: JobWatch, job_id: str) -> Job:
        def read() -> Job:
            with self._store.read() as uow:
                return uow.jobs.get(job_id)

        return watch.patiently(read)

    def _classes(self, job: Job) -> tuple[str, ...]:
        with self._store.read() as uow:
            return uow.datasets.get(job.dataset_id).classes

    def _targets(self, watch: JobWatch, job: Job) -> tuple[int, ...]:
        classes = watch.patiently(lambda: self._classes(job))
        return targets_of(TrainingSpec.model_validate(job.spec), classes)

    def _stored(self, job_id: str, among: Sequence[Pair]) -> set[Pair]:
        with self._store.read() as uow:
            return steps.finished_pairs(uow, job_id, among)


def chunk_id(job_id: str, attempt: int, chunk: int) -> str:
    """Name of a chunk's workflow."""
    return f"{job_id}.{attempt}.{chunk}"


def described(error: Exception) -> tuple[str, str]:
    """Code and message of what ended a job, as a user may read them; the rest goes to the log."""
    if isinstance(error, SolverFailed):
        return error.code, error.message
    if isinstance(error, ServiceError):
        return error.reason, error.message
    logger.error("a job failed in an unexpected way", exc_info=error)
    message = f"Unexpected {type(error).__name__} in the worker, whose log has the details."
    return "internal_error", message
