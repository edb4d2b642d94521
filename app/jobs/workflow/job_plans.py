"""What a job trains: the part of it that never changes, cached in the worker."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from app.domain.entities import Dataset
from app.domain.training_spec import TrainingSpec
from app.jobs.solver.messages import StudentKey
from app.services.training_plan import methods_of, pairs_of, targets_of
from app.store.unit_of_work import Store

_CACHED_JOBS: Final = 2
"""The plan of a million classes takes some 100 MB. Most units of a worker are of one or two jobs."""


@dataclass(frozen=True, slots=True)
class JobPlan:
    """A job's specification, its data set, and the ascending positions of the classes to train."""

    spec: TrainingSpec
    dataset: Dataset
    targets: Sequence[int]

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
            dataset = uow.datasets.get(job.dataset_id)
        spec = TrainingSpec.of_stored(job.spec)
        return JobPlan(spec, dataset, targets_of(spec, dataset.classes))
