"""A running job: what it trains, whether it must stop, and the storing of its progress."""

from __future__ import annotations

import logging
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, TypeVar, final

from app.domain.entities import (
    ACTIVE_STATES,
    BUSY_PROCESSOR,
    STAGES,
    STARVES,
    Dataset,
    JobState,
    Json,
    ModelVersion,
)
from app.domain.errors import Unavailable
from app.domain.figures import COUNTED_EVENTS
from app.domain.training_spec import TrainingSpec
from app.jobs.errors import JobStopped, TimeLimitReached, WorkerStopping
from app.jobs.solver.messages import StudentKey
from app.services.training_plan import methods_of, pairs_of, targets_of, trained_classes
from app.store.unit_of_work import Store, UnitOfWork

logger = logging.getLogger(__name__)

T = TypeVar("T")

_CHECK_SECONDS: Final = 0.4
_RETRY_SECONDS: Final = 1.0
_MIN_SECONDS: Final = 0.5
_SHARE_OF_STAGE: Final = 0.02
STUDENT_STAGES: Final = {
    "student": "students",
    "tuning": "tuning",
    "sizes": "tuning",
    "compact_rows": "students",
}
"""Stages of the solver within the job's stage "students", which `steps.plan_chunk` announces."""
_CACHED_JOBS: Final = 2
"""The plan of a million classes takes some 100 MB, and most units of a worker belong to one or two jobs."""


@dataclass(frozen=True, slots=True)
class JobPlan:
    """A job: its specification, data set and classes, and the ascending positions of those to train.

    base: the version that a class is added to, if the job adds one; otherwise None.
    """

    spec: TrainingSpec
    dataset: Dataset
    targets: Sequence[int]
    classes: tuple[str, ...]
    base: ModelVersion | None = None

    @property
    def students(self) -> int:
        """Number of students to train."""
        return len(self.targets) * len(methods_of(self.spec))

    def keys(self, first: int, stop: int) -> list[StudentKey]:
        """The students of targets ``first`` to ``stop``, class by class."""
        return pairs_of(self.spec, self.targets[first:stop])


class JobPlans:
    """Reads the plans of jobs; those of the last two are cached.

    Without the cache, decoding the list of a million labels for each unit would take longer than its work.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._cached = lru_cache(_CACHED_JOBS)(self._read)

    def of_job(self, job_id: str) -> JobPlan:
        """The plan of a job. Raises NotFound and Unavailable."""
        return self._cached(job_id)

    def _read(self, job_id: str) -> JobPlan:
        with self._store.read() as uow:
            job = uow.jobs.get(job_id)
            dataset, spec = uow.datasets.get(job.dataset_id), TrainingSpec.model_validate(job.spec)
            classes = trained_classes(uow, spec, dataset)
            base = None
            if job.addition is not None:
                base = uow.models.of_tenant(job.tenant).version(job.model, job.provenance["base"]["version"])
        return JobPlan(spec, dataset, targets_of(spec, classes), classes, base)


class StopCheck(ABC):
    """Call it often; it reads the state of the work at most every 0.4 s.

    Raises WorkerStopping, and the errors of `_look`. An unavailable database stops nothing: the solver
    continues until the state can be read.

    about: the work, for the log.
    """

    def __init__(
        self,
        store: Store,
        stopping: threading.Event,
        about: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self._store = store
        self._stopping = stopping
        self._about = about
        self._checked_at = float("-inf")

    def __call__(self) -> None:
        raise_if_stopping(self._stopping)
        if self._clock() - self._checked_at >= _CHECK_SECONDS:
            self.check_now()

    def check_now(self) -> None:
        """Read the state. Raises what `_look` raises."""
        self._checked_at = self._clock()
        try:
            self._look()
        except Unavailable as error:
            logger.warning("%s: its state cannot be read: %s", self._about, error)

    @abstractmethod
    def _look(self) -> None:
        """Read the state; raise if the work must stop. Raises Unavailable."""

    def retry_while_unavailable(self, call: Callable[[], T]) -> T:
        """The call's result; the call is repeated while it raises Unavailable."""
        while True:
            try:
                return call()
            except Unavailable as error:
                logger.warning("%s waits: %s", self._about, error)
                self.pause(_RETRY_SECONDS)

    def pause(self, seconds: float) -> None:
        """Sleep until the time is over or the work must stop."""
        self._stopping.wait(seconds)
        self()


@final
class CancellationCheck(StopCheck):
    """Tells whether an attempt at a job must stop. It also raises JobStopped and TimeLimitReached."""

    def __init__(
        self,
        store: Store,
        stopping: threading.Event,
        job_id: str,
        attempt: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(store, stopping, f"job {job_id}", clock)
        self._job_id = job_id
        self._attempt = attempt
        self._limit: float | None = None
        self._limit_is_known = False

    def _look(self) -> None:
        with self._store.read() as uow:
            job, limit = uow.jobs.status(self._job_id), self._time_limit(uow)
            now = uow.workers.clock() if limit else 0.0
        if job.state not in ACTIVE_STATES or job.attempt != self._attempt:
            raise JobStopped(f"it is {job.state}, attempt {job.attempt}")
        if limit is not None and job.started_at is not None and now - job.started_at > limit:
            raise TimeLimitReached("time_limit", f"The job has run for longer than its limit of {limit:g} s.")

    def _time_limit(self, uow: UnitOfWork) -> float | None:
        """The job's time limit, which is read once because the specification does not change."""
        if not self._limit_is_known:
            self._limit = uow.jobs.get(self._job_id).spec.get("time_limit_seconds")
            self._limit_is_known = True
        return self._limit


def raise_if_stopping(stopping: threading.Event) -> None:
    """Raise WorkerStopping if the worker shuts down."""
    if stopping.is_set():
        raise WorkerStopping


class ProgressReporter:
    """Stores stage_started and stage_progress events of one job.

    It stores at most two a second, and fewer the longer a stage lasts, so that a stage of days stores
    hundreds. Progress that cannot be stored is dropped with a warning; the work itself continues.

    stages: whether the solver's stage is the job's stage. A chunk among others only reports progress, because
    its solver may read the data again while others train.
    """

    def __init__(self, store: Store, job_id: str, attempt: int, *, stages: bool = True) -> None:
        self._stages = stages
        self._store = store
        self._job_id = job_id
        self._attempt = attempt
        self._stage = ""
        self._stage_began = 0.0
        self._stored_at = 0.0

    def __call__(self, progress: Json) -> None:
        """Process the header of a progress message, or the report of a solver that died or hung."""
        if progress.get("type") in COUNTED_EVENTS:
            data = {name: value for name, value in progress.items() if name != "type"}
            self._store_event(progress["type"], data, None)
            return
        if "starves" in progress:
            self._store_starving(progress)
            return
        now = time.monotonic()
        stage = shown = str(progress["stage"])
        if stage in STUDENT_STAGES:
            # A job is in one stage, even while some of its students are tuned and others fitted.
            stage, shown = "students", STUDENT_STAGES[stage]
        data = {name: value for name, value in progress.items() if name != "type" and value is not None}
        data["stage"] = shown
        if stage != self._stage:
            self._stage, self._stage_began, self._stored_at = stage, now, now
            if stage != "students" and self._stages:
                estimate = {name: data[name] for name in ("expected_seconds",) if name in data}
                self._store_event("stage_started", {"stage": stage, **estimate}, stage)
        elif now - self._stored_at >= max(_MIN_SECONDS, _SHARE_OF_STAGE * (now - self._stage_began)):
            self._stored_at = now
            self._store_event("stage_progress", data, None)

    def _store_starving(self, progress: Json) -> None:
        """Store that the solver waits for the processor, or that it no longer does."""
        stage, starves = str(progress["stage"]), bool(progress["starves"])
        data = {"stage": STUDENT_STAGES.get(stage, stage)} | ({"waiting": BUSY_PROCESSOR} if starves else {})
        self._store_event("stage_progress", data, None, starves=starves)

    def _store_event(self, event: str, data: Json, stage: str | None, *, starves: bool | None = None) -> None:
        try:
            with self._store.begin() as uow:
                job = uow.jobs.status(self._job_id, lock=True)
                if job.state is not JobState.RUNNING or job.attempt != self._attempt:
                    return
                uow.events.append(self._job_id, event, data)
                if stage is not None or starves is not None:
                    provenance = uow.jobs.get(self._job_id).provenance
                if stage is not None:
                    stages = {stage: time.time(), **provenance.get(STAGES, {})}
                    uow.jobs.change(self._job_id, stage=stage, provenance=provenance | {STAGES: stages})
                elif starves is not None:
                    uow.jobs.change(self._job_id, provenance=provenance | {STARVES: starves})
        except Unavailable as error:
            logger.warning("job %s: progress not stored: %s", self._job_id, error)
