"""Cost against F of compact students: mean F over the classes for each number of landmarks, and their time.

A teacher on a fixed map for each data set; for each number of landmarks a compact student of every class,
measured on the test part at threshold 0; and one query of each, timed in alternation with the teacher's.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import cast

import numpy as np
from joblib import Parallel, delayed

from core.data.dataset import LabelledData
from core.model_selection.metrics import binary_metrics
from core.model_selection.setting import some_rows
from core.run import Run as CoreRun
from core.solvers.threads import one_blas_thread
from core.students.compact import Compact
from core.students.compact_student import CompactStudent
from core.teachers.ssvm import SSVM
from core.training.config import TrainingConfig
from core.training.evaluation import Evaluator
from core.training.preparation import Preparation, data_digest, prepare
from core.training.student_training import TrainedStudent, train_student
from experiments.data import Split
from experiments.plans import CurvePlan, Effort
from experiments.stats import bootstrap, interval, over_classes, rounded
from experiments.store import Record, Run, Store, Work, recipe_of, short
from experiments.timing import measure_against_teacher

GRID = "compact"
"""Takes the place of the grid in the keys of the records."""

TEACHER = "teacher"


def run_of(data_set: str) -> Run:
    """The run of a data set's curve."""
    return Run(data_set, GRID, 0)


def point_name(size: int, code: int) -> str:
    """Name of the record of class ``code`` with so many landmarks."""
    return f"landmarks-{size:04d}-class-{code:03d}"


class CompactCurve(Work):
    """The records of one data set's curve; ``n_threads`` classes are trained at a time."""

    def __init__(self, plan: CurvePlan, run: Run, data: Split, store: Store, effort: Effort) -> None:
        self._plan, self._effort = plan, effort
        self._train, self._test = _part(data.train, plan.rows, effort.seed), data.test
        digests = data_digest(self._train), data_digest(data.test)
        super().__init__(run, store, recipe_of("compact-curve", plan.as_dict(), effort.seed, *digests))

    def names(self) -> list[str]:
        classes = range(self._train.K)
        return [TEACHER, *(point_name(size, code) for size in self._plan.sizes for code in classes)]

    def steps(self) -> Iterator[tuple[str, bool]]:
        missing = [name for name in self.names() if not self.is_stored(name)]
        yield from ((name, False) for name in self.names() if name not in missing)
        groups = [missing[:1]] if missing[:1] == [TEACHER] else []
        points, size = [name for name in missing if name != TEACHER], self._effort.n_threads
        groups += [points[start : start + size] for start in range(0, len(points), size)]
        for names in groups:
            started = time.perf_counter()
            records = [self.make(TEACHER)] if names == [TEACHER] else self._points(names)
            share = (time.perf_counter() - started) / len(names)
            for name, record in zip(names, records, strict=True):
                self.keep(name, record, share)
            yield from ((name, True) for name in names)

    def make(self, name: str) -> Record:
        if name != TEACHER:
            return self._points([name])[0]
        evaluator = Evaluator.of(self._preparation, self._test)
        return {
            "plan": self._plan.as_dict(),
            "classes": list(self._train.classes),
            "rows": self._train.n,
            "test_rows": self._test.n,
            "metrics": [evaluator.teacher(code).metrics.as_dict() for code in range(self._train.K)],
        }

    @cached_property
    def _preparation(self) -> Preparation:
        plan = self._plan
        config = TrainingConfig(features=plan.features, teacher=SSVM(plan.teacher_C), seed=self._effort.seed)
        return prepare(self._train, config)

    def _points(self, names: Sequence[str]) -> list[Record]:
        """Train in parallel, then measure one by one, so that nothing of ours runs beside the timing."""
        Compact().prepare(self._preparation.examples, CoreRun(self._effort.seed))
        with one_blas_thread():
            pool = Parallel(n_jobs=self._effort.n_threads, prefer="threads")
            students = pool(delayed(self._fit)(name) for name in names)
        return [self._measured(student) for student in students]

    def _fit(self, name: str) -> TrainedStudent:
        _, size, _, code = name.split("-")
        spec = Compact(n_landmarks=int(size), steps=self._plan.steps)
        return train_student(self._preparation, int(code), spec)

    def _measured(self, student: TrainedStudent) -> Record:
        fitted = cast(CompactStudent, student.fitted)
        packed, truth = student.packed, self._test.y == student.target
        score = packed.scores(self._test.X)
        decision = score >= packed.threshold
        teacher, effort = self._preparation.packed_teacher(), self._effort
        return {
            "label": student.label,
            "landmarks": fitted.n_landmarks,
            "metrics": binary_metrics(truth, decision, score).as_dict(),
            "replicates": {"f1": rounded(bootstrap(truth, decision, score, effort.replicates)["f1"])},
            "seconds_per_query": measure_against_teacher(teacher, packed, self._test.X, seed=effort.seed),
            "relative_cost": fitted.relative_cost,
            "gate_r2": fitted.fitted.gate_r2,
            "training_seconds": round(student.seconds, 3),
        }


def _part(data: LabelledData, limit: int | None, seed: int) -> LabelledData:
    if limit is None or data.n <= limit:
        return data
    rows = some_rows(data.y, limit, seed)
    return replace(data, X=data.X[rows], y=data.y[rows])


def summarise_compact(store: Store, data_set: str) -> Record | None:
    """One record for the report with the ``points`` that are complete; None without any.

    F and AUC are means over the classes in per cent; relative_time, relative_to_remark_2: median over the
    classes of a query's time over the teacher's, by all scores and by Remark 2; seconds_per_query: median;
    relative_cost: multiplications over the teacher's; training_seconds: of all classes together.
    """
    run = run_of(data_set)
    teacher = store.read(run.key(TEACHER))
    if teacher is None:
        return None
    points, everything = [], [teacher]
    for size in teacher["plan"]["sizes"]:
        names = [point_name(size, code) for code in range(len(teacher["classes"]))]
        records = [record for name in names if (record := store.read(run.key(name), teacher["recipe"]))]
        if len(records) == len(names):
            points.append(_point(size, records))
            everything += records
    if not points:
        return None
    curve: Record = short(
        {
            "data_set": data_set,
            "classes": len(teacher["classes"]),
            "rows": teacher["rows"],
            "test_rows": teacher["test_rows"],
            "teacher_f1": _mean([one["f1"] for one in teacher["metrics"]]),
            "teacher_auc": _mean([one["auc"] for one in teacher["metrics"]]),
            "teacher_seconds_per_query": _median(everything[1:], "teacher"),
            "points": points,
            "seconds": sum(float(record["seconds"]) for record in everything),
        }
    )
    return {**curve, "plan": teacher["plan"]}


def _point(size: int, records: Sequence[Record]) -> Record:
    low, high = interval(over_classes([record["replicates"]["f1"] for record in records]))
    times = [record["seconds_per_query"] for record in records]
    return {
        "landmarks": size,
        "f1": _mean([record["metrics"]["f1"] for record in records]),
        "f1_low": 100.0 * low,
        "f1_high": 100.0 * high,
        "auc": _mean([record["metrics"]["auc"] for record in records]),
        "relative_time": float(np.median([one["student"] / one["teacher"] for one in times])),
        "relative_to_remark_2": float(np.median([one["student"] / one["remark_2"] for one in times])),
        "seconds_per_query": _median(records, "student"),
        "relative_cost": float(np.mean([record["relative_cost"] for record in records])),
        "gate_r2": float(np.mean([record["gate_r2"] for record in records])),
        "training_seconds": sum(float(record["training_seconds"]) for record in records),
    }


def _mean(values: Sequence[float | None]) -> float:
    """Over the classes where the measure is defined, in per cent."""
    return float(100.0 * np.mean([value for value in values if value is not None]))


def _median(records: Sequence[Record], who: str) -> float:
    return float(np.median([record["seconds_per_query"][who] for record in records]))
