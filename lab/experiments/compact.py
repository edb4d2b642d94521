"""Cost against F of compact students: mean F over the classes for each number of landmarks, and their time.

A teacher on a fixed map for each data set; for each number of landmarks a compact student of every class,
measured on the test part at threshold 0; and one query of each, timed in alternation with the teacher's.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import Any, cast

import numpy as np
from joblib import Parallel, delayed

from core.data.digest import data_digest
from core.model_selection.metrics import binary_metrics, mean_metrics
from core.model_selection.row_samples import some_rows
from core.run import Run as CoreRun
from core.solvers.threads import one_blas_thread
from core.students.compact import Compact, CompactStudent
from core.teachers.ssvm import SSVM
from core.training.config import TrainingConfig
from core.training.evaluation import Evaluator
from core.training.pipeline import prepare
from core.training.preparation import Preparation
from core.training.student_training import TrainedStudent, train_student
from lab.experiments import timing
from lab.experiments.data import Split
from lab.experiments.plans import CurvePlan, Effort, as_record
from lab.experiments.stats import bootstrap, interval, over_classes
from lab.experiments.store import Record, Run, Store, Work, body, recipe_of, short

GRID = "compact"
"""Takes the place of the grid in the keys of the records."""

TEACHER = "teacher"


def run_of(data_set: str) -> Run:
    """The run of a data set's curve."""
    return Run(data_set, GRID, 0)


def point_name(size: int) -> str:
    """Name of the record of the students with so many landmarks."""
    return f"landmarks-{size:04d}"


class CompactCurve(Work):
    """The records of one data set's curve: its teacher, then one point for each number of landmarks."""

    def __init__(self, plan: CurvePlan, run: Run, data: Split, store: Store, effort: Effort) -> None:
        self._plan, self._effort = plan, effort
        rows = some_rows(data.train.y, plan.rows or data.train.n, effort.seed)
        self._train = replace(data.train, X=data.train.X[rows], y=data.train.y[rows])
        self._test = data.test
        digests = data_digest(self._train), data_digest(data.test)
        super().__init__(run, store, recipe_of("compact-curve", as_record(plan), effort.seed, *digests))

    def names(self) -> list[str]:
        return [TEACHER, *map(point_name, self._plan.sizes)]

    def make(self, name: str) -> Record:
        return self._teacher() if name == TEACHER else self._point(int(name.removeprefix("landmarks-")))

    @cached_property
    def _preparation(self) -> Preparation:
        plan = self._plan
        config = TrainingConfig(features=plan.features, teacher=SSVM(plan.teacher_C), seed=self._effort.seed)
        return prepare(self._train, config)

    def _teacher(self) -> Record:
        evaluator = Evaluator.of(self._preparation, self._test)
        means = mean_metrics(evaluator.teacher(code).metrics for code in range(self._train.K))
        return {
            "plan": as_record(self._plan),
            "classes": self._train.K,
            "rows": self._train.n,
            "test_rows": self._test.n,
            "teacher_f1": _per_cent(means.f1),
            "teacher_auc": _per_cent(means.auc),
        }

    def _point(self, size: int) -> Record:
        """Students are trained several at a time, then timed one by one: nothing of ours runs beside it.

        F and AUC: means over the classes in per cent. Times of a query: medians over the classes.
        relative_cost: multiplications over the teacher's.
        """
        spec = Compact(n_landmarks=size, steps=self._plan.steps)
        spec.prepare(self._preparation.examples, CoreRun(self._effort.seed))
        with one_blas_thread():
            pool = Parallel(n_jobs=self._effort.n_threads, prefer="threads")
            codes = range(self._train.K)
            students = pool(delayed(train_student)(self._preparation, code, spec) for code in codes)
        metrics, replicates = zip(*map(self._measured, students), strict=True)
        means, (low, high) = mean_metrics(metrics), interval(over_classes(replicates))
        fitted = [cast(CompactStudent, one.fitted) for one in students]
        times = [self._query_seconds(one) for one in students]
        return {
            "landmarks": size,
            "f1": _per_cent(means.f1),
            "f1_low": 100.0 * low,
            "f1_high": 100.0 * high,
            "auc": _per_cent(means.auc),
            "relative_time": _median(one["student"] / one["teacher"] for one in times),
            "relative_to_remark_2": _median(one["student"] / one["remark_2"] for one in times),
            "seconds_per_query": _median(one["student"] for one in times),
            "teacher_seconds_per_query": _median(one["teacher"] for one in times),
            "relative_cost": float(np.mean([one.relative_cost for one in fitted])),
            "gate_r2": float(np.mean([one.fitted.gate_r2 for one in fitted])),
            "training_seconds": sum(one.seconds for one in students),
        }

    def _measured(self, student: TrainedStudent) -> tuple[Any, Any]:
        """Measures on the test part, and the replicates of F."""
        packed, truth = student.packed, self._test.y == student.target
        score = packed.scores(self._test.X)
        decision = score >= packed.threshold
        replicates = bootstrap(truth, decision, score, self._effort.replicates)
        return binary_metrics(truth, decision, score), replicates["f1"]

    def _query_seconds(self, student: TrainedStudent) -> dict[str, float]:
        teacher, packed = self._preparation.packed_teacher(), student.packed
        if packed.form.linear is None:
            raise ValueError(f"a {packed.form.kind} student is not one product")
        coef, intercept = packed.form.linear
        rows = timing.dense(timing.some_rows(self._test.X, self._effort.seed))
        basis, own_basis = (timing.basis_of(one.map, rows) for one in (teacher, packed))
        product = coef, intercept - packed.threshold
        return timing.query_seconds(teacher, [student.target] * len(rows), basis, product, own_basis)


def _median(values: Any) -> float:
    return float(np.median(list(values)))


def _per_cent(value: float | None) -> float:
    return np.nan if value is None else 100.0 * value


def summarise_compact(store: Store, data_set: str) -> Record | None:
    """The teacher's record with the ``points`` that are complete; None without any."""
    run = run_of(data_set)
    teacher = store.read(run.key(TEACHER))
    if teacher is None:
        return None
    names = map(point_name, teacher["plan"]["sizes"])
    points = [point for name in names if (point := store.read(run.key(name), teacher["recipe"]))]
    if not points:
        return None
    curve: Record = short(
        {
            "data_set": data_set,
            **body(teacher),
            "teacher_seconds_per_query": _median(one["teacher_seconds_per_query"] for one in points),
            "points": [body(one) for one in points],
            "seconds": sum(float(one["seconds"]) for one in (teacher, *points)),
        }
    )
    return {**curve, "plan": teacher["plan"]}
