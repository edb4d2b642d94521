"""Runs one work unit of a job with a solver process: the computing half of a job.

Between two steps work may be repeated after a crash: solving is, storing is not. The step that stores a
result commits it together with its own checkpoint. A recovered unit first repeats the steps that had run,
which DBOS answers from their checkpoints, then reads which students are stored and trains only the rest.

When the solver process dies, its work is repeated; after a second death the class at fault fails alone.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Final

from app.domain.entities import Job
from app.domain.training_spec import TrainingSpec
from app.jobs.engine.step_runner import StepRunner
from app.jobs.errors import SolverBlocked, SolverDied, SolverFailed
from app.jobs.solver.messages import PreparationResult, SolverSettings, StudentKey, StudentResult
from app.jobs.solver.pool import SolverPool
from app.jobs.solver.process import Report, Solver
from app.jobs.workflow import steps
from app.jobs.workflow.cancellation import CancellationCheck
from app.jobs.workflow.progress import ProgressReporter
from app.jobs.workflow.work_units import PREPARE, RunningUnit
from app.services.training_plan import pairs_of, targets_of
from app.settings import Settings
from app.store.blob_cache import BlobCache

logger = logging.getLogger(__name__)

_MAX_DEATHS: Final = 2


class UnitRunner:
    """Runs one unit on this worker. executor: the worker's name."""

    def __init__(
        self,
        runner: StepRunner,
        pool: SolverPool,
        check: CancellationCheck,
        settings: Settings,
        executor: str,
        running: RunningUnit,
    ) -> None:
        self._runner = runner
        self._store = runner.store
        self._pool = pool
        self._check = check
        self._settings = settings
        self._executor = executor
        self._running = running
        self._unit = running.unit
        self._attempt = (running.unit.job_id, running.unit.attempt)

    def run(self) -> None:
        """Raises what the check raises, and SolverFailed if the preparation fails."""
        unit = self._unit
        self._check.retry_while_unavailable(self._record_start)
        if unit.number == PREPARE:
            self._runner.run(steps.begin_job, *self._attempt, self._executor)
        self._check.check_now()
        job = self._check.retry_while_unavailable(self._read_job)
        classes = self._check.retry_while_unavailable(lambda: self._read_classes(job))
        spec = TrainingSpec.model_validate(job.spec)
        targets = targets_of(spec, classes)
        with self._pool.solver(*self._attempt, self._solver_settings(job), self._check) as solver:
            self._running.solver_pid = lambda: solver.pid
            if unit.number == PREPARE:
                job = self._prepare(solver, job, targets)
            if unit.first < unit.stop:
                self._train(solver, job, pairs_of(spec, targets[unit.first : unit.stop]), classes)

    def _prepare(self, solver: Solver, job: Job, targets: Sequence[int]) -> Job:
        result = None
        if job.preparation_digest is None:
            result = prepare_with_retries(solver, targets, ProgressReporter(self._store, *self._attempt))
            cache = BlobCache(self._settings.cache_folder, self._settings.cache_disk_bytes)
            for transfer in (result.preparation, result.teacher):
                self._check.retry_while_unavailable(
                    partial(transfer.store_chunks, self._store, cache, lambda _size: self._check.check_now())
                )
        self._runner.run(steps.store_preparation, *self._attempt, result)
        return self._check.retry_while_unavailable(self._read_job)

    def _train(self, solver: Solver, job: Job, keys: Sequence[StudentKey], classes: Sequence[str]) -> None:
        planned = self._runner.run(steps.plan_chunk, *self._attempt, keys)["todo"]
        todo: list[StudentKey] = [(int(index), str(method)) for index, method in planned]
        self._replay_stored_steps()
        stored = self._check.retry_while_unavailable(lambda: self._read_finished(todo))
        remaining = [key for key in todo if key not in stored]
        if not remaining:
            return
        is_only_chunk = self._unit.number == PREPARE
        report = ProgressReporter(self._store, *self._attempt, stages=is_only_chunk)
        digest = str(job.preparation_digest)
        for results in train_with_retries(solver, remaining, digest, report, classes.__getitem__):
            self._store_students(results)

    def _replay_stored_steps(self) -> None:
        """After a crash, repeat as many steps as had run; DBOS answers them from their checkpoints."""
        is_new = False
        while not is_new:
            _, is_new = self._runner.run_if_new(steps.store_students, *self._attempt, [])

    def _store_students(self, results: Sequence[StudentResult]) -> None:
        """Store results; again if another worker has run the step in our place, with its own results."""
        missing = list(results)
        while missing:
            kept = self._runner.run(steps.store_students, *self._attempt, missing)["kept"]
            done = {(int(index), str(method)) for index, method in kept}
            missing = [result for result in missing if result.key not in done]

    def _record_start(self) -> None:
        with self._store.begin() as uow:
            uow.units.start(*self._attempt, self._unit.number, self._executor, time.time())

    def _read_job(self) -> Job:
        with self._store.read() as uow:
            return uow.jobs.get(self._unit.job_id)

    def _read_classes(self, job: Job) -> tuple[str, ...]:
        with self._store.read() as uow:
            return uow.datasets.get(job.dataset_id).classes

    def _read_finished(self, among: Sequence[StudentKey]) -> set[StudentKey]:
        with self._store.read() as uow:
            return steps.finished_students(uow, self._unit.job_id, among)

    def _solver_settings(self, job: Job) -> SolverSettings:
        settings = self._settings
        return SolverSettings(
            dataset_id=job.dataset_id,
            spec=job.spec,
            threads=settings.solver_threads,
            log_level=settings.log_level,
            database_url=settings.app_database_url,
            cache_dir=str(settings.cache_folder.absolute()),
            cache_disk_bytes=settings.cache_disk_bytes,
        )


def prepare_with_retries(solver: Solver, targets: Sequence[int], report: Report) -> PreparationResult:
    """`Solver.prepare`, repeated once in a new process if the first one dies. Raises SolverFailed.

    It is repeated without limit while the database or the disk blocks the solver.
    """
    deaths = 0
    while True:
        try:
            return solver.prepare(targets, report)
        except SolverBlocked as blocked:
            _back_off(solver, blocked)
        except SolverDied as death:
            deaths += 1
            if deaths == _MAX_DEATHS:
                raise _died_twice(death) from death


def train_with_retries(
    solver: Solver,
    keys: Sequence[StudentKey],
    preparation_digest: str,
    report: Report,
    label_of: Callable[[int], str],
) -> Iterator[list[StudentResult]]:
    """Every student trained or failed, in any order; yields the ones that have just finished.

    A student in training when the process died is tried once more, alone, so that a class that kills the
    solver takes no other with it. While the database or the disk blocks the solver, the rest is tried again
    without limit. When the process dies twice without training anything, or reports that it cannot go on, all
    remaining students have failed.
    """
    remaining = dict.fromkeys(keys)
    deaths: Counter[StudentKey] = Counter()
    idle_deaths = 0
    while remaining:
        suspects = [key for key in remaining if deaths[key]]
        try:
            for results in solver.train(suspects[:1] or list(remaining), preparation_digest, report):
                for result in results:
                    del remaining[result.key]
                yield results
        except SolverDied as death:
            deaths.update(death.in_flight)
            idle_deaths += not death.in_flight
            if idle_deaths == _MAX_DEATHS:
                yield _failed(remaining, label_of, _died_twice(death))
                return
            at_fault = [key for key in remaining if deaths[key] == _MAX_DEATHS]
            failure = SolverFailed("solver_died", f"{death} This class caused it twice.")
            yield _failed(at_fault, label_of, failure)
            for key in at_fault:
                del remaining[key]
        except SolverBlocked as blocked:
            _back_off(solver, blocked)
        except SolverFailed as failure:
            yield _failed(remaining, label_of, failure)
            return


def _back_off(solver: Solver, blocked: SolverBlocked) -> None:
    logger.warning("a solver waits: %s", blocked)
    solver.back_off()


def _failed(
    keys: Iterable[StudentKey], label_of: Callable[[int], str], failure: SolverFailed
) -> list[StudentResult]:
    row = {"code": failure.code, "message": failure.message}
    return [StudentResult(key, label_of(key[0]), row, None) for key in keys]


def _died_twice(death: SolverDied) -> SolverFailed:
    return SolverFailed("solver_died", f"{death} It happened twice.")
