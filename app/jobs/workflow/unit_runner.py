"""The heavy half of a job: units of work, each with a solver process of its own while it lasts.

What is between two steps may run again after a crash: solving may, storing may not. A solver's result is
handed to the step that stores it, and the step commits the result together with its own checkpoint. So on
recovery a unit first goes once more through the steps that were run, which the engine answers from their
checkpoints, then looks what is stored, and solves only the rest.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial

from app.domain.entities import Job
from app.domain.training_spec import TrainingSpec
from app.jobs.engine.step_runner import Ledger
from app.jobs.solver import retry
from app.jobs.solver.pool import SolverPool
from app.jobs.solver.process import Order, Pair, Solver, StudentResult
from app.jobs.workflow import steps
from app.jobs.workflow.cancellation import JobWatch
from app.jobs.workflow.progress import Reporter
from app.jobs.workflow.work_units import PREPARE, Unit
from app.services.training_plan import pairs_of, targets_of
from app.settings import Settings
from app.store.blob_cache import BlobCache


class UnitWork:
    """One unit on this worker. executor: the worker's name. solvers: gets the solver that works on it."""

    def __init__(
        self,
        ledger: Ledger,
        pool: SolverPool,
        watch: JobWatch,
        settings: Settings,
        executor: str,
        unit: Unit,
        solvers: list[Solver],
    ) -> None:
        self._ledger = ledger
        self._pool = pool
        self._watch = watch
        self._settings = settings
        self._executor = executor
        self._unit = unit
        self._run = (unit.job_id, unit.attempt)
        self._solvers = solvers
        self._files = BlobCache(settings.cache_folder, settings.cache_disk_bytes)

    def do(self) -> None:
        """Raises what the watch raises, and SolverFailed where nothing can be prepared."""
        unit = self._unit
        self._watch.patiently(self._note_start)
        if unit.number == PREPARE:
            self._ledger.step(steps.begin_job, *self._run, self._executor)
        self._watch.look()
        job = self._watch.patiently(self._job)
        classes = self._watch.patiently(lambda: self._classes(job))
        spec = TrainingSpec.model_validate(job.spec)
        targets = targets_of(spec, classes)
        with self._pool.borrowed(*self._run, self._order(job), self._watch) as solver:
            self._solvers.append(solver)
            if unit.number == PREPARE:
                job = self._prepare(solver, job, targets)
            if unit.first < unit.stop:
                self._train(solver, job, pairs_of(spec, targets[unit.first : unit.stop]), classes)

    def _prepare(self, solver: Solver, job: Job, targets: Sequence[int]) -> Job:
        prepared = None
        if job.preparation_digest is None:
            prepared = retry.prepare(solver, targets, Reporter(self._ledger.store, *self._run))
            for parcel in (prepared.preparation, prepared.teacher):
                self._watch.patiently(partial(parcel.bring, self._ledger.store, self._files, self._look))
        self._ledger.step(steps.keep_preparation, *self._run, prepared)
        return self._watch.patiently(self._job)

    def _look(self, _stored: int) -> None:
        self._watch.look()

    def _train(self, solver: Solver, job: Job, pairs: Sequence[Pair], classes: Sequence[str]) -> None:
        planned = self._ledger.step(steps.plan_chunk, *self._run, pairs)["todo"]
        todo: list[Pair] = [(int(index), str(method)) for index, method in planned]
        self._go_through_what_was_done()
        stored = self._watch.patiently(lambda: self._stored(todo))
        rest = [pair for pair in todo if pair not in stored]
        if not rest:
            return
        alone = self._unit.number == PREPARE
        report = Reporter(self._ledger.store, *self._run, stages=alone)
        digest = str(job.preparation_digest)
        for results in retry.train(solver, rest, digest, report, classes.__getitem__):
            self._keep(results)

    def _go_through_what_was_done(self) -> None:
        """After a crash: as many steps as were run before are answered from their checkpoints."""
        ran = False
        while not ran:
            _, ran = self._ledger.step_anew(steps.keep_students, *self._run, [])

    def _keep(self, results: Sequence[StudentResult]) -> None:
        """Store results. A step that somebody else has run in our place has not kept ours: then once more."""
        missing = list(results)
        while missing:
            kept = self._ledger.step(steps.keep_students, *self._run, missing)["kept"]
            done = {(int(index), str(method)) for index, method in kept}
            missing = [result for result in missing if result.pair not in done]

    def _note_start(self) -> None:
        with self._ledger.store.begin() as uow:
            uow.units.start(*self._run, self._unit.number, self._executor, time.time())

    def _job(self) -> Job:
        with self._ledger.store.read() as uow:
            return uow.jobs.get(self._unit.job_id)

    def _classes(self, job: Job) -> tuple[str, ...]:
        with self._ledger.store.read() as uow:
            return uow.datasets.get(job.dataset_id).classes

    def _stored(self, among: Sequence[Pair]) -> set[Pair]:
        with self._ledger.store.read() as uow:
            return steps.finished_pairs(uow, self._unit.job_id, among)

    def _order(self, job: Job) -> Order:
        settings = self._settings
        return Order(
            dataset_id=job.dataset_id,
            spec=job.spec,
            threads=settings.solver_threads,
            log_level=settings.log_level,
            database_url=settings.app_database_url,
            cache_dir=str(settings.cache_folder.absolute()),
            cache_disk_bytes=settings.cache_disk_bytes,
        )
