"""Runs one work unit of a job with a solver process: the computing half of a job.

After a crash, work between two steps may be repeated: solving is repeated, storing is not. The step that
stores a result commits it together with its own checkpoint. A recovered unit first repeats the steps that had
run, which DBOS answers from their checkpoints. Then it reads which students are stored and trains only the
others.

When the solver process dies, its work is repeated; after a second death, only the class that causes it fails.
When worker and solver die together, for example because the container's memory is exhausted, no worker sees
the death. So, before a solver is used, the database counts the starts of the unit since its last stored
result. From the third start on, its classes are trained one at a time; at the fifth start, the next class or
the preparation has failed.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Final, TypeVar

from app.domain.entities import Dataset, Job, Json, ModelVersion
from app.domain.errors import NotFound, ServiceError
from app.domain.origins import Origin, token_of
from app.domain.remote_teacher import RemoteScores
from app.domain.training_spec import TrainingSpec
from app.encoders.pool import EncoderPool
from app.jobs.engine.step_runner import StepRunner
from app.jobs.errors import AttemptLost, SolverFailed, WorkerStopping
from app.jobs.solver.messages import (
    PreparationResult,
    ScoredRows,
    SolverSettings,
    StudentKey,
    StudentResult,
)
from app.jobs.solver.pool import SolverPool
from app.jobs.solver.process import Report, Solver
from app.jobs.solver.retry import failed_results, train_with_retries, with_retries
from app.jobs.solver.transfer import Transfer
from app.jobs.workflow import steps
from app.jobs.workflow.embedding import PictureEmbedding
from app.jobs.workflow.running_job import CancellationCheck, JobPlans, ProgressReporter
from app.jobs.workflow.solver_settings import solver_settings
from app.jobs.workflow.unit_trace import UnitTrace, unit_trace
from app.jobs.workflow.work_units import PREPARE, RunningUnit
from app.services.models import LISTED_CLASSES
from app.settings import Settings
from app.store.blob_cache import BlobCache
from app.store.large_blobs import stage
from app.tracing import Tracer
from core.data.schema import Kind

logger = logging.getLogger(__name__)

Result = TypeVar("Result")

_STARTS_TOGETHER: Final = 2
_METRICS_PER_TRANSACTION: Final = 2000
_MAX_STARTS: Final = 4
"""The first start and three recoveries."""
_MAX_LOST_FILES: Final = 3


class UnitRunner:
    """Runs one unit on this worker. executor: the worker's name. tracer: None if nothing is traced.

    encoders: opens what makes vectors of pictures; None where no job has any.
    """

    def __init__(
        self,
        runner: StepRunner,
        pool: SolverPool,
        check: CancellationCheck,
        plans: JobPlans,
        settings: Settings,
        executor: str,
        running: RunningUnit,
        tracer: Tracer | None = None,
        encoders: Callable[[], EncoderPool] | None = None,
    ) -> None:
        self._runner = runner
        self._store = runner.store
        self._pool = pool
        self._check = check
        self._plans = plans
        self._settings = settings
        self._executor = executor
        self._running = running
        self._unit = running.unit
        self._attempt = (running.unit.job_id, running.unit.attempt)
        self._starts = 1
        self._tracer, self._encoders = tracer, encoders
        self._trace = UnitTrace()

    def run(self) -> None:
        """Run the unit.

        Raises the errors of the check, SolverFailed if the preparation fails, and AttemptLost.
        """
        self._starts = self._check.retry_while_unavailable(self._record_start)
        try:
            self._run()
        except WorkerStopping:
            self._excuse()
            raise

    def _run(self) -> None:
        unit = self._unit
        if unit.number == PREPARE:
            self._runner.run(steps.begin_job, *self._attempt, self._executor)
        self._check.check_now()
        job = self._check.retry_while_unavailable(self._read_job)
        plan = self._check.retry_while_unavailable(partial(self._plans.of_job, unit.job_id))
        is_first = self._starts == 1
        if unit.number == PREPARE and plan.base is None and _has_pictures(plan.dataset):
            self._embed(job)
        with (
            unit_trace(self._tracer, job, unit, self._executor, is_first=is_first) as self._trace,
            self._pool.solver(*self._attempt, self._solver_settings(job), self._check) as solver,
        ):
            self._running.solver_pid = lambda: solver.pid
            solver.keep_scores(self._keep_scores)
            if plan.base is not None:
                self._add(solver, job, plan.base)
            elif unit.number == PREPARE:
                if plan.spec.labelling is not None:
                    job = self._label(solver, job)
                job = self._prepare(solver, job, plan.targets)
            if unit.first < unit.stop:
                self._train(solver, job, plan.keys(unit.first, unit.stop), plan.classes)

    def _embed(self, job: Job) -> None:
        """Make the vectors of the pictures of the job that are not stored yet."""
        if self._encoders is None:
            return
        PictureEmbedding(
            self._store.of_tenant(job.tenant),
            BlobCache.of(self._settings),
            self._encoders(),
            self._check,
            ProgressReporter(self._store, *self._attempt),
        ).run(job)

    def _add(self, solver: Solver, job: Job, base: ModelVersion) -> None:
        """Train and store the student of the class that the job adds."""
        key = (base.class_count, base.method)
        result = None
        if key not in self._check.retry_while_unavailable(lambda: self._read_finished([key])):
            if self._starts > _MAX_STARTS:
                raise self._too_many_starts()
            order = self._check.retry_while_unavailable(partial(self._order, job, base))
            result = self._stored(solver, partial(solver.add_class, order), lambda made: made.transfers)
        self._runner.run(steps.store_addition, *self._attempt, result, key, unit=self._unit.number)

    def _order(self, job: Job, base: ModelVersion) -> Json:
        """What the solver needs to know about the class that the job adds."""
        said = job.addition or {}
        with self._store.of_tenant(job.tenant).read() as uow:
            students = None
            if base.class_count <= LISTED_CLASSES:
                rows = uow.students.of_job(str(base.job_id), method=base.method)
                students = [(row.label, row.digest, row.map_digest) for row in rows if row.digest is not None]
            return {
                "label": said["class"],
                "examples_digest": job.examples_digest,
                "dataset_id": said.get("dataset_id"),
                "budget": said["max_false_positive_rate"],
                "confidence": said["confidence"],
                "base_digest": uow.jobs.get(str(job.base_job_id)).addition_digest,
                "students": students,
                "class_changes": job.provenance.get("class_changes", []),
            }

    def _label(self, solver: Solver, job: Job) -> Job:
        """Store labels for rows without a label; the solver reads them when it prepares or restores."""
        result = None
        if job.labels_digest is None:
            if self._starts > _MAX_STARTS:
                raise self._too_many_starts()
            result = self._stored(solver, solver.label, lambda made: (made.labels,))
        self._runner.run(steps.store_labels, *self._attempt, result, unit=self._unit.number)
        return self._check.retry_while_unavailable(self._read_job)

    def _prepare(self, solver: Solver, job: Job, targets: Sequence[int]) -> Job:
        result = None
        if job.preparation_digest is None:
            if self._starts > _MAX_STARTS:
                raise self._too_many_starts()
            result = self._with_metrics_stored(
                self._stored(solver, partial(solver.prepare, targets), lambda made: made.transfers)
            )
        self._runner.run(steps.store_preparation, *self._attempt, result, unit=self._unit.number)
        return self._check.retry_while_unavailable(self._read_job)

    def _with_metrics_stored(self, result: PreparationResult) -> PreparationResult:
        """The result without the teacher's metrics, which are stored first in short transactions.

        A million rows in the transaction of the step would block the job's row for a minute.
        """
        metrics = result.report["metrics"]
        if len(metrics) <= _METRICS_PER_TRANSACTION:
            return result
        for first in range(0, len(metrics), _METRICS_PER_TRANSACTION):
            page = metrics[first : first + _METRICS_PER_TRANSACTION]
            self._check.retry_while_unavailable(partial(self._store_metrics, page))
            self._check()
        return replace(result, report=result.report | {"metrics": []})

    def _store_metrics(self, metrics: Sequence[Json]) -> None:
        with self._store.begin() as uow:
            steps.store_teacher_metrics(uow, *self._attempt, metrics)

    def _stored(
        self,
        solver: Solver,
        make: Callable[[Report], Result],
        transfers: Callable[[Result], Sequence[Transfer]],
    ) -> Result:
        """The result of the solver, after storing its large packages. Raises SolverFailed, AttemptLost."""
        cache = BlobCache.of(self._settings)
        for _ in range(_MAX_LOST_FILES):
            report = self._trace.reporting(ProgressReporter(self._store, *self._attempt))
            result = with_retries(solver, make, report)
            try:
                for transfer in transfers(result):
                    self._check.retry_while_unavailable(
                        partial(
                            transfer.store_chunks, self._store, cache, lambda _size: self._check.check_now()
                        )
                    )
            except NotFound as lost:
                # If the disk is full, the cache may remove the file before it is read; the
                # solver writes it again.
                logger.warning("job %s: %s", self._unit.job_id, lost)
            else:
                return result
        raise AttemptLost("cache_full", "The local cache removes the solver's output before it is stored.")

    def _keep_scores(self, scores: ScoredRows) -> None:
        """Store a batch of a remote teacher's scores, before the next message is read."""

        def store() -> None:
            with self._store.begin() as uow:
                steps.store_remote_scores(uow, *self._attempt, self._unit.number, scores)

        self._check.retry_while_unavailable(store)

    def _train(self, solver: Solver, job: Job, keys: Sequence[StudentKey], classes: Sequence[str]) -> None:
        planned = self._runner.run(steps.plan_chunk, *self._attempt, keys)["todo"]
        todo: list[StudentKey] = [(int(index), str(method)) for index, method in planned]
        self._replay_stored_steps()
        stored = self._check.retry_while_unavailable(lambda: self._read_finished(todo))
        remaining = [key for key in todo if key not in stored]
        if remaining and self._starts > _MAX_STARTS:
            suspect = remaining[:1]
            failure = self._too_many_starts()
            self._store_students(failed_results(suspect, classes.__getitem__, failure))
            remaining = remaining[1:]
        stages = self._unit.number == PREPARE
        report = self._trace.reporting(ProgressReporter(self._store, *self._attempt, stages=stages))
        digest = str(job.preparation_digest)
        for keys_together in self._groups(remaining):
            self._trace.enter("students")
            for results in train_with_retries(solver, keys_together, digest, report, classes.__getitem__):
                self._trace.trained(results)
                self._store_students(results)

    def _groups(self, keys: Sequence[StudentKey]) -> Iterator[Sequence[StudentKey]]:
        """All students together or, if one of them may have ended several workers, each alone."""
        if self._starts > _STARTS_TOGETHER:
            yield from ([key] for key in keys)
        elif keys:
            yield keys

    def _too_many_starts(self) -> SolverFailed:
        message = (
            f"{self._starts - 1} workers ended while they worked on it, before it had a result."
            " Does it fit into their memory?"
        )
        return SolverFailed("too_many_restarts", message)

    def _replay_stored_steps(self) -> None:
        """After a crash, repeat the steps that had run; DBOS answers them from their checkpoints."""
        is_new = False
        while not is_new:
            _, is_new = self._runner.run_if_new(steps.store_students, *self._attempt, [])

    def _store_students(self, results: Sequence[StudentResult]) -> None:
        """Store results; repeat if another worker has run the step instead, with its own results."""
        missing = list(results)
        while missing:
            packed = [part for result in missing for part in (result.packed, result.map) if part]
            self._check.retry_while_unavailable(partial(stage, self._store, packed))
            stored = self._runner.run(steps.store_students, *self._attempt, missing, unit=self._unit.number)
            kept = stored["kept"]
            done = {(int(index), str(method)) for index, method in kept}
            missing = [result for result in missing if result.key not in done]

    def _record_start(self) -> int:
        """Count this start, before a solver is used, so that a death of worker and solver leaves a trace."""
        with self._store.begin() as uow:
            return uow.units.start(*self._attempt, self._unit.number, self._executor, time.time())

    def _excuse(self) -> None:
        try:
            with self._store.begin() as uow:
                uow.units.excuse(*self._attempt, self._unit.number)
        except ServiceError as error:
            logger.warning("job %s, unit %d: %s", self._unit.job_id, self._unit.number, error)

    def _read_job(self) -> Job:
        with self._store.read() as uow:
            return uow.jobs.get(self._unit.job_id)

    def _read_finished(self, among: Sequence[StudentKey]) -> set[StudentKey]:
        with self._store.read() as uow:
            return steps.finished_students(uow, self._unit.job_id, among)

    def _solver_settings(self, job: Job) -> SolverSettings:
        settings = self._settings
        return replace(
            solver_settings(settings, job.tenant, job.id, job.dataset_id),
            spec=job.spec,
            remote_teachers=settings.remote_teachers,
            remote_token=_remote_token(settings, job),
            encoder_digest=job.encoder_digest or "",
        )


def _has_pictures(dataset: Dataset) -> bool:
    """Whether a column of a data set holds pictures."""
    return any(column.get("kind") == Kind.IMAGE for column in dataset.summary.get("schema") or ())


def _remote_token(settings: Settings, job: Job) -> str:
    """The bearer token for the job's remote teacher; empty without one."""
    teacher = TrainingSpec.model_validate(job.spec).teacher.spec
    if not isinstance(teacher, RemoteScores):
        return ""
    tokens = {text: token.get_secret_value() for text, token in settings.remote_teacher_tokens.items()}
    return token_of(tokens, Origin.of(teacher.url)) or ""
