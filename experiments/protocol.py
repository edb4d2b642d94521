"""One data set, grid and split: choose the setting, train the teacher, tune and measure every student.

Everything is chosen on the training part; the test part is looked at once, by what came out. Each result is
written as soon as it is there, and what is already written is not done again.
"""

from __future__ import annotations

from functools import cached_property
from typing import get_args

import numpy as np

from core.model_selection.joint import JointlyTuned, tune_jointly
from core.model_selection.metrics import binary_metrics, roc
from core.model_selection.results import Tuned
from core.model_selection.search import tune_student
from core.run import Run as CoreRun
from core.solvers.threads import one_blas_thread
from core.students.fitting import fit_student
from core.students.spec import Method, StudentSpec
from core.training.preparation import data_digest
from core.types import BoolArray, FloatArray, IntArray
from experiments.classroom import Classroom
from experiments.cuts import class_thresholds
from experiments.data import Split
from experiments.effort import Effort
from experiments.plans import Plan
from experiments.results import Record, ResultStore, Run, recipe_of, student_name, tuning_name
from experiments.resumable import Resumable
from experiments.setting import Setting, Tell, choose_setting
from experiments.timing import measure_inference

STUDENTS: tuple[Method, ...] = get_args(Method)

_ROC_POINTS = 200
_DIGITS = 5


class Protocol(Resumable):
    """The work of one run: setting, every class and method, inference times."""

    def __init__(
        self, plan: Plan, run: Run, data: Split, store: ResultStore, effort: Effort, tell: Tell
    ) -> None:
        parts = [plan.as_dict(), run.split, effort.seed, data_digest(data.train), data_digest(data.test)]
        super().__init__(run, store, recipe_of(parts))
        self._plan, self._data, self._effort, self._tell = plan, data, effort, tell

    def costs(self) -> dict[str, float]:
        """Records of this run with their cost, in multiply-adds up to a factor."""
        data, plan = self._data.train, self._plan
        m = plan.search.features.n_components if plan.search.features.kind != "linear" else 100
        maps = max(1, len(plan.search.scalings) * len(plan.search.gamma_factors))
        rows = min(data.n, plan.search.rows) * (maps if maps > 1 else 0) + data.n
        costs = {"setting": 10.0 * rows * plan.search.folds * len(plan.search.teacher_C) * m}
        share = 1.0 if plan.strategy_of(self.run.split) == "exhaustive" else 0.3
        joint = plan.tuning == "joint"
        for method in STUDENTS:
            if joint:
                points = 0.15 * len(plan.grid.points(method))
                costs[tuning_name(method)] = points * data.K * plan.folds * data.n * m
        for target in range(data.K):
            costs[student_name(target, "teacher")] = 1.0 * data.n
            for method in STUDENTS:
                points = max(1.0, share * len(plan.grid.points(method)))
                costs[student_name(target, method)] = (1.0 if joint else points * plan.folds) * data.n * m
        return {**costs, "inference": 5.0 * data.n * m}

    def _make(self, name: str) -> Record:
        if name == "setting":
            grouped = self._groups is not None
            return {
                **self._setting().as_dict(),
                "classes": list(self._data.train.classes),
                "grouped": grouped,
            }
        if name == "inference":
            return measure_inference(self._room.preparation, self._data.test, seed=self._effort.seed)
        kind, *rest = name.split("-")
        if kind == "tuning":
            return self._tune_jointly(rest[0])  # type: ignore[arg-type]
        code, method = int(rest[0]), rest[1]
        return self._teacher(code) if method == "teacher" else self._student(code, method)  # type: ignore[arg-type]

    @property
    def _groups(self) -> IntArray | None:
        return self._data.groups if self._plan.by_groups else None

    def _setting(self) -> Setting:
        effort = self._effort
        return choose_setting(
            self._data.train,
            self._plan.search,
            groups=self._groups,
            seed=effort.seed,
            n_threads=effort.n_threads,
            tell=self._tell,
        )

    @cached_property
    def _room(self) -> Classroom:
        setting = Setting.from_dict(self._needed("setting"))
        return Classroom(self._plan, self._data, setting, self._effort)

    def _teacher(self, target: int) -> Record:
        examination = self._room.examination
        score = examination.scores[:, target] - examination.ranks.rival(target)
        decision = examination.ranks.predicted == target
        cost = examination.teacher(target).classes_evaluated
        return {**self._measured(target, decision, score), "classes_evaluated": cost}

    def _student(self, target: int, method: Method) -> Record:
        preparation, examination = self._room.preparation, self._room.examination
        if self._plan.tuning == "joint":
            tuned = self._needed(tuning_name(method))
            chosen = {**tuned["chosen"], "threshold": tuned["thresholds"][target]}
        else:
            chosen = {**self._tune_class(target, method), "threshold": 0.0}
        spec = StudentSpec(
            method, chosen["C"], chosen["margin"], chosen["floor"], tolerance=self._plan.tolerance
        )
        lesson = preparation.lesson(target, floor=spec.difficulty_floor)
        with one_blas_thread():
            fitted = fit_student(preparation.features, lesson, spec, CoreRun(self._effort.seed))
            score = fitted.scores(examination.features)
        return {
            **self._measured(target, score >= chosen["threshold"], score),
            "classes_evaluated": 1.0,
            "chosen": chosen,
            "solution": fitted.solution.summary().as_dict(),
        }

    def _tune_class(self, target: int, method: Method) -> Record:
        """The point of one class, as the paper chooses it."""
        plan, effort = self._plan, self._effort
        tuned = tune_student(
            self._room.folds,
            target,
            method,
            plan.grid,
            strategy=plan.strategy_of(self.run.split),
            metric=plan.metric,
            threshold_rule="zero",
            run=CoreRun(effort.seed, effort.n_threads),
        )
        return _chosen(tuned)

    def _tune_jointly(self, method: Method) -> Record:
        """One point for all classes, and where each decides."""
        data, effort = self._data.train, self._effort
        folds = self._room.folds
        tuned = tune_jointly(
            folds,
            range(data.K),
            method,
            self._plan.grid,
            run=CoreRun(effort.seed, effort.n_threads),
        )
        truth = data.y == np.array(tuned.targets)[:, None]
        thresholds = class_thresholds(truth, tuned.held_out_scores, folds.fold_of)
        trace = [point.as_dict() for point in tuned.trace]
        return {"chosen": _chosen(tuned), "thresholds": thresholds.tolist(), "trace": trace}

    def _needed(self, name: str) -> Record:
        """A record that comes earlier in ``costs``."""
        record = self._store.read(self.run, name, self.recipe)
        if record is None:
            raise RuntimeError(f"{self.run}: {name} comes first")
        return record

    def _measured(self, target: int, decision: BoolArray, score: FloatArray) -> Record:
        """Measures on the test part, their replicates and the ROC curve."""
        examination = self._room.examination
        truth = examination.labels == target
        replicates = self._effort.resampling.measures(truth, decision, score)
        return {
            "label": examination.classes[target],
            "metrics": binary_metrics(truth, decision, score).as_dict(),
            "replicates": {name: _rounded(values) for name, values in replicates.items()},
            "roc": _curve(truth, score),
        }


def _chosen(tuned: Tuned | JointlyTuned) -> Record:
    return {
        "C": tuned.spec.C,
        "margin": tuned.spec.margin,
        "floor": tuned.spec.difficulty_floor,
        "cv_score": tuned.score,
        "cv_standard_error": tuned.standard_error,
        "points": len(tuned.trace),
        "tuning_seconds": sum(point.seconds for point in tuned.trace),
    }


def _curve(truth: BoolArray, score: FloatArray) -> dict[str, list[float | None]] | None:
    """At most about 200 points of the ROC curve; None where the test part has one side only."""
    if truth.all() or not truth.any():
        return None
    curve = roc(truth, score)
    n = len(curve.thresholds)
    kept = np.unique(np.linspace(0, n - 1, min(n, _ROC_POINTS)).round().astype(int))
    return {
        "false_positive_rate": _rounded(curve.false_positive_rate[kept]),
        "true_positive_rate": _rounded(curve.true_positive_rate[kept]),
    }


def _rounded(values: FloatArray) -> list[float | None]:
    """JSON-ready: what is undefined is None."""
    return [None if np.isnan(value) else round(float(value), _DIGITS) for value in values]
