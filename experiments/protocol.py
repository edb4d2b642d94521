"""One data set, grid and split: choose the setting, train the teacher, tune and measure every student.

Everything is chosen on the training part; the test part is looked at once, by what came out. Each result is
written as soon as it is there, and what is already written is not done again.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import get_args

import numpy as np

from core.config import TrainingConfig
from core.evaluation import Examination
from core.metrics import binary_metrics, roc
from core.preparation import Preparation, data_digest, prepare
from core.students import Method, StudentSpec, fit_student
from core.threads import one_blas_thread
from core.tuning import TracePoint, TuningFolds, make_folds, tune_jointly, tune_student
from core.types import BoolArray, FloatArray
from experiments.cuts import class_thresholds
from experiments.data import Split
from experiments.folds import folds_of
from experiments.plans import Plan
from experiments.resampling import Resampling
from experiments.results import Record, ResultStore, Run, recipe_of, student_name, tuning_name
from experiments.setting import Setting, Tell, choose_setting
from experiments.timing import measure_inference

STUDENTS: tuple[Method, ...] = get_args(Method)

_ROC_POINTS = 200
_DIGITS = 5


@dataclass(frozen=True, slots=True)
class Effort:
    """Seed of everything random, threads, and how the test rows are resampled."""

    seed: int = 0
    n_threads: int = 2
    resampling: Resampling = field(default_factory=Resampling)


@dataclass(frozen=True, slots=True)
class Step:
    """One record is there. new: whether it was made now. cost: its share of the work, in no unit."""

    name: str
    new: bool
    cost: float


class Protocol:
    """The work of one run; ``steps`` does it."""

    def __init__(
        self, plan: Plan, run: Run, data: Split, store: ResultStore, effort: Effort, tell: Tell
    ) -> None:
        self._plan, self._run, self._data, self._store = plan, run, data, store
        self._effort, self._tell = effort, tell
        self.recipe = recipe_of(
            [plan.as_dict(), run.split, effort.seed, data_digest(data.train), data_digest(data.test)]
        )
        self._groups = data.groups if plan.by_groups else None
        self._common: tuple[Preparation, Examination] | None = None
        self._folds: TuningFolds | None = None

    def steps(self) -> Iterator[Step]:
        """Make what is missing, record by record: setting, every class and method, inference times."""
        for name, cost in self.costs().items():
            new = self._store.read(self._run, name, self.recipe) is None
            if new:
                started = time.perf_counter()
                record = self._make(name)
                record["seconds"] = round(time.perf_counter() - started, 3)
                self._store.write(self._run, name, self.recipe, record)
            yield Step(name, new, cost)

    def costs(self) -> dict[str, float]:
        """Records of this run with their cost, in multiply-adds up to a factor."""
        data, plan = self._data.train, self._plan
        m = plan.search.features.n_components if plan.search.features.kind != "linear" else 100
        maps = max(1, len(plan.search.scalings) * len(plan.search.gamma_factors))
        rows = min(data.n, plan.search.rows) * (maps if maps > 1 else 0) + data.n
        costs = {"setting": 10.0 * rows * plan.search.folds * len(plan.search.teacher_C) * m}
        share = 1.0 if plan.strategy_of(self._run.split) == "exhaustive" else 0.3
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
            chosen = self._setting().as_dict()
            return {**chosen, "classes": list(self._data.train.classes), "grouped": self._groups is not None}
        preparation, examination = self._prepared()
        if name == "inference":
            return measure_inference(preparation, self._data.test, seed=self._effort.seed)
        kind, *rest = name.split("-")
        if kind == "tuning":
            return self._tune_jointly(preparation, rest[0])  # type: ignore[arg-type]
        code, method = int(rest[0]), rest[1]
        if method == "teacher":
            return self._teacher(examination, code)
        return self._student(preparation, examination, code, method)  # type: ignore[arg-type]

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

    def _prepared(self) -> tuple[Preparation, Examination]:
        """Map, teacher and test part, from the stored setting; made once."""
        if self._common is None:
            setting = Setting.from_dict(self._needed("setting"))
            config = TrainingConfig(
                features=setting.features, teacher_C=setting.teacher_C, seed=self._effort.seed
            )
            preparation = prepare(self._data.train, config)
            self._common = preparation, Examination.of(preparation, self._data.test)
        return self._common

    def _tuning_folds(self, preparation: Preparation) -> TuningFolds:
        """Made once. The teacher of each fold is started from the one of all rows."""
        if self._folds is None:
            config = preparation.config
            self._folds = make_folds(
                preparation.features,
                preparation.labels,
                preparation.classes,
                teacher_Cs=(config.teacher_C,),
                fold_of=folds_of(preparation.labels, self._groups, self._plan.folds, config.seed),
                tolerance=config.teacher_tolerance,
                max_epochs=config.teacher_max_epochs,
                seed=config.seed,
                warm_start=preparation.teacher,
                n_threads=self._effort.n_threads,
            )
        return self._folds

    def _teacher(self, examination: Examination, target: int) -> Record:
        score = examination.scores[:, target] - examination.ranks.rival(target)
        decision = examination.ranks.predicted == target
        cost = examination.teacher(target).classes_evaluated
        return {**self._measured(examination, target, decision, score), "classes_evaluated": cost}

    def _student(
        self, preparation: Preparation, examination: Examination, target: int, method: Method
    ) -> Record:
        if self._plan.tuning == "joint":
            tuned = self._needed(tuning_name(method))
            chosen = {**tuned["chosen"], "threshold": tuned["thresholds"][target]}
        else:
            chosen = self._tune_class(preparation, target, method)
        spec = StudentSpec(method, chosen["C"], chosen["margin"], chosen["floor"])
        lesson = preparation.lesson(target, floor=spec.floor)
        with one_blas_thread():
            fitted = fit_student(preparation.features, lesson, spec, seed=self._effort.seed)
            score = fitted.scores(examination.features)
        return {
            **self._measured(examination, target, score >= chosen["threshold"], score),
            "classes_evaluated": 1.0,
            "chosen": chosen,
            "solution": fitted.solution.summary().as_dict(),
        }

    def _tune_class(self, preparation: Preparation, target: int, method: Method) -> Record:
        """The point of one class, as the paper chooses it."""
        plan, effort = self._plan, self._effort
        tuned = tune_student(
            self._tuning_folds(preparation),
            target,
            method,
            plan.grid,
            strategy=plan.strategy_of(self._run.split),
            metric=plan.metric,
            threshold_rule="zero",
            seed=effort.seed,
            n_threads=effort.n_threads,
        )
        return _chosen(tuned.spec, 0.0, tuned.score, tuned.standard_error, tuned.trace)

    def _tune_jointly(self, preparation: Preparation, method: Method) -> Record:
        """One point for all classes, and where each decides."""
        data, effort = self._data.train, self._effort
        folds = self._tuning_folds(preparation)
        tuned = tune_jointly(
            folds,
            range(data.K),
            method,
            self._plan.grid,
            seed=effort.seed,
            n_threads=effort.n_threads,
        )
        truth = preparation.labels == np.array(tuned.targets)[:, None]
        thresholds = class_thresholds(truth, tuned.held_out_scores, folds.fold_of)
        common = float(np.median(thresholds))
        chosen = _chosen(tuned.spec, common, tuned.score, tuned.standard_error, tuned.trace)
        trace = [point.as_dict() for point in tuned.trace]
        return {"chosen": chosen, "thresholds": thresholds.tolist(), "trace": trace}

    def _needed(self, name: str) -> Record:
        """A record that comes earlier in ``costs``."""
        record = self._store.read(self._run, name, self.recipe)
        if record is None:
            raise RuntimeError(f"{self._run}: {name} comes first")
        return record

    def _measured(
        self, examination: Examination, target: int, decision: BoolArray, score: FloatArray
    ) -> Record:
        """Measures on the test part, their replicates and the ROC curve."""
        truth = examination.labels == target
        replicates = self._effort.resampling.measures(truth, decision, score)
        return {
            "label": examination.classes[target],
            "metrics": binary_metrics(truth, decision, score).as_dict(),
            "replicates": {name: _rounded(values) for name, values in replicates.items()},
            "roc": _curve(truth, score),
        }


def _chosen(
    spec: StudentSpec, threshold: float, score: float, error: float, trace: Sequence[TracePoint]
) -> Record:
    return {
        "C": spec.C,
        "margin": spec.margin,
        "floor": spec.floor,
        "threshold": threshold,
        "cv_score": score,
        "cv_standard_error": error,
        "points": len(trace),
        "tuning_seconds": sum(point.seconds for point in trace),
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
