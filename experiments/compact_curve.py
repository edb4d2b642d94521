"""Cost against F of compact students: mean F over the classes for each number of landmarks, and their time.

A teacher on a fixed map for each data set; for each number of landmarks a compact student of every class,
measured on the test part at threshold 0; and one query of each, timed in turns with the teacher's.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

from joblib import Parallel, delayed

from core.compact import CompactRows, CompactSpec, TrainedCompact, train_compact_student
from core.data.dataset import LabelledData
from core.data.scaling_kind import Scaling
from core.features.spec import FeatureSpec
from core.model_selection.metrics import binary_metrics
from core.solvers.threads import one_blas_thread
from core.training.config import TrainingConfig
from core.training.evaluation import Examination
from core.training.preparation import Preparation, data_digest, prepare
from experiments.data import Split
from experiments.effort import Effort
from experiments.resampling import rounded
from experiments.results import Record, ResultStore, Run, recipe_of
from experiments.resumable import Resumable, Step
from experiments.setting import some_rows
from experiments.timing import measure_against_teacher

GRID = "compact"
"""Where the records belong, in the place of a grid."""

TEACHER = "teacher"
_NAME = re.compile(r"landmarks-(\d+)-class-(\d+)")


@dataclass(frozen=True, slots=True)
class CurvePlan:
    """One data set's curve.

    features, teacher_C: of the teacher. sizes: numbers of landmarks. steps: of each descent.
    rows: how many training rows are used at most; None for all.
    """

    features: FeatureSpec
    teacher_C: float = 3e4  # noqa: N815
    sizes: tuple[int, ...] = (25, 50, 100, 200)
    steps: int = 3000
    rows: int | None = None

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready; the recipe of a result is made from it."""
        return asdict(self)


_PIXEL = 255.0

CURVES: dict[str, CurvePlan] = {
    "letter": CurvePlan(FeatureSpec("nystroem", 1000, gamma=0.1)),
    "satimage": CurvePlan(FeatureSpec("nystroem", 600, gamma=0.05)),
    # γ = 0.03 on pixels from 0 to 1. A part of the rows and half the steps, to be affordable for all classes.
    "mnist": CurvePlan(
        FeatureSpec("nystroem", 1000, gamma=0.03 / _PIXEL**2, scaling=Scaling.NONE), steps=1500, rows=10_000
    ),
}


def run_of(data_set: str) -> Run:
    """Where the records of a data set's curve belong."""
    return Run(data_set, GRID, 0)


def point_name(size: int, code: int) -> str:
    """Name of the record of class ``code`` with so many landmarks."""
    return f"landmarks-{size:04d}-class-{code:03d}"


class CompactCurve(Resumable):
    """The work of one data set's curve; ``steps`` does it, ``n_threads`` classes at a time."""

    def __init__(self, plan: CurvePlan, run: Run, data: Split, store: ResultStore, effort: Effort) -> None:
        self._plan, self._effort = plan, effort
        self._train, self._test = _part(data.train, plan.rows, effort.seed), data.test
        recipe = recipe_of(
            ["compact-curve", plan.as_dict(), effort.seed, data_digest(self._train), data_digest(data.test)]
        )
        super().__init__(run, store, recipe)

    def costs(self) -> dict[str, float]:
        plan, data = self._plan, self._train
        costs = {TEACHER: 50.0 * data.n * plan.features.n_components * data.K}
        for size in plan.sizes:
            for code in range(data.K):
                costs[point_name(size, code)] = 1000.0 * plan.steps * (200 + size) * (50 + data.d)
        return costs

    def steps(self) -> Iterator[Step]:
        costs = self.costs()
        missing = []
        for name, cost in costs.items():
            if self.has(name):
                yield Step(name, False, cost)
            else:
                missing.append(name)
        if TEACHER in missing:
            started = time.perf_counter()
            self._keep(TEACHER, self._make(TEACHER), time.perf_counter() - started)
            missing.remove(TEACHER)
            yield Step(TEACHER, True, costs[TEACHER])
        for names in _chunks(missing, self._effort.n_threads):
            started = time.perf_counter()
            found = self._points(names)
            share = (time.perf_counter() - started) / len(names)
            for name, record in zip(names, found, strict=True):
                self._keep(name, record, share)
            yield from (Step(name, True, costs[name]) for name in names)

    def _make(self, name: str) -> Record:
        """The teacher's record, or that of one point."""
        if name != TEACHER:
            return self._points([name])[0]
        examination = Examination.of(self._preparation, self._test)
        results = [examination.teacher(code).metrics.as_dict() for code in range(self._train.K)]
        return {
            "plan": self._plan.as_dict(),
            "classes": list(self._train.classes),
            "rows": self._train.n,
            "test_rows": self._test.n,
            "metrics": results,
        }

    @cached_property
    def _preparation(self) -> Preparation:
        plan = self._plan
        config = TrainingConfig(features=plan.features, teacher_C=plan.teacher_C, seed=self._effort.seed)
        return prepare(self._train, config)

    @cached_property
    def _rows(self) -> CompactRows:
        return CompactRows.of(self._preparation, self._train)

    def _points(self, names: Sequence[str]) -> list[Record]:
        """Train at the same time, then measure one by one: nothing else of ours runs while time is taken."""
        rows = self._rows
        with one_blas_thread():
            pool = Parallel(n_jobs=self._effort.n_threads, prefer="threads")
            students = pool(delayed(self._train_one)(rows, *_parsed(name)) for name in names)
        return [self._measured(student) for student in students]

    def _train_one(self, rows: CompactRows, size: int, code: int) -> TrainedCompact:
        return train_compact_student(rows, code, CompactSpec(n_landmarks=size, steps=self._plan.steps))

    def _measured(self, student: TrainedCompact) -> Record:
        packed, truth = student.packed, self._test.y == student.target
        score = packed.scores(self._test.X)
        decision = score >= packed.threshold
        teacher = self._preparation.packed_teacher()
        replicates = self._effort.resampling.measures(truth, decision, score)
        return {
            "label": student.label,
            "landmarks": student.n_landmarks,
            "metrics": binary_metrics(truth, decision, score).as_dict(),
            "replicates": {"f1": rounded(replicates["f1"])},
            "seconds_per_query": measure_against_teacher(
                teacher, packed, self._test.X, seed=self._effort.seed
            ),
            "relative_cost": student.relative_cost,
            "gate_r2": student.fitted.gate_r2,
            "training_seconds": round(student.seconds, 3),
        }


def _part(data: LabelledData, limit: int | None, seed: int) -> LabelledData:
    if limit is None or data.n <= limit:
        return data
    rows = some_rows(data.y, limit, seed)
    return replace(data, X=data.X[rows], y=data.y[rows])


def _parsed(name: str) -> tuple[int, int]:
    """Landmarks and class code of ``point_name``."""
    found = _NAME.fullmatch(name)
    if found is None:
        raise ValueError(f"{name!r} is not the name of a point")
    return int(found[1]), int(found[2])


def _chunks(names: Sequence[str], size: int) -> Iterator[Sequence[str]]:
    for start in range(0, len(names), size):
        yield names[start : start + size]
