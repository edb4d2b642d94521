"""One data set, grid and split: choose the setting, train the teacher, tune and measure every student.

Everything is chosen on the training part; the test part only measures what was chosen.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np

from core.data.digest import data_digest
from core.features.spec import FeatureSpec
from core.model_selection.class_thresholds import class_thresholds
from core.model_selection.folds import Folds, make_folds
from core.model_selection.joint import JointlyTuned, tune_jointly
from core.model_selection.metrics import binary_metrics, roc
from core.model_selection.results import SearchResult
from core.model_selection.search import tune_student
from core.run import Run as CoreRun
from core.solvers.threads import one_blas_thread
from core.students.gated import GATED, GatedSpec, Method
from core.students.linear import LinearStudent
from core.teachers.ssvm import SSVM
from core.training.config import TrainingConfig
from core.training.evaluation import Evaluator
from core.training.pipeline import prepare
from core.training.preparation import Preparation
from core.types import BoolArray, FloatArray
from lab.experiments.data import Split
from lab.experiments.paper import METHODS
from lab.experiments.plans import Effort, Plan, as_record
from lab.experiments.setting import Report, choose_setting, folds_of
from lab.experiments.stats import bootstrap, rounded
from lab.experiments.store import NeedsProtocol, Record, Run, Store, Work, recipe_of
from lab.experiments.timing import measure_inference

_ROC_POINTS = 200


def student_name(code: int, method: str) -> str:
    """Name of the record of class ``code`` and a method."""
    return f"class-{code:03d}-{method}"


def tuning_name(method: str) -> str:
    """Name of the record of the point that the students of a method share."""
    return f"tuning-{method}"


class Protocol(Work):
    """The records of one run: setting, every class and method, inference times.

    ``preparation``, ``evaluator`` and ``folds`` are made from the stored setting when first used, with the
    same bits in every process; the other parts of the report start from them.
    """

    def __init__(
        self, plan: Plan, run: Run, data: Split, store: Store, effort: Effort, report: Report = lambda _: None
    ) -> None:
        digests = data_digest(data.train), data_digest(data.test)
        super().__init__(run, store, recipe_of(as_record(plan), run.split, effort.seed, *digests))
        self.plan, self.data, self.effort, self._report = plan, data, effort, report
        self.core_run = CoreRun(effort.seed, effort.n_threads)
        self._groups = data.groups if plan.by_groups else None

    def names(self) -> list[str]:
        joint = [tuning_name(method) for method in METHODS[1:]] if self.plan.tuning == "joint" else []
        students = [student_name(code, method) for code in range(self.data.train.K) for method in METHODS]
        return ["setting", *joint, *students, "inference"]

    def make(self, name: str) -> Record:
        if name == "setting":
            train = self.data.train
            setting = choose_setting(train, self.plan.search, self.core_run, self._report, self._groups)
            return {**setting, "classes": list(train.classes), "grouped": self._groups is not None}
        if name == "inference":
            return measure_inference(self.preparation, self.data.test, seed=self.effort.seed)
        kind, *rest = name.split("-")
        if kind == "tuning":
            return self._tune_jointly(rest[0])  # type: ignore[arg-type]
        code, method = int(rest[0]), rest[1]
        return self._teacher(code) if method == "teacher" else self._student(code, method)  # type: ignore[arg-type]

    def needed(self, name: str) -> Record:
        """A stored record of this run. Raises NeedsProtocol if it has not been made yet."""
        record = self.store.read(self.run.key(name), self.recipe)
        if record is None:
            run = f"{self.run.data_set}, {self.run.grid} grid"
            raise NeedsProtocol(f"{run}: the record {name} does not exist yet; run the part protocol")
        return record

    @cached_property
    def preparation(self) -> Preparation:
        """Map and teacher, fitted to the training part."""
        setting = self.needed("setting")
        features = FeatureSpec(**setting["features"])
        config = TrainingConfig(features=features, teacher=SSVM(setting["teacher_C"]), seed=self.effort.seed)
        return prepare(self.data.train, config)

    @cached_property
    def evaluator(self) -> Evaluator:
        """The test part."""
        return Evaluator.of(self.preparation, self.data.test)

    @cached_property
    def folds(self) -> Folds:
        """The folds that the students are tuned on, with their teachers."""
        preparation, config = self.preparation, self.preparation.config
        return make_folds(
            preparation.task,
            preparation.classes,
            (config.teacher,),
            fold_of=folds_of(preparation.labels, self._groups, self.plan.folds, config.seed),
            run=self.core_run,
        )

    def _teacher(self, target: int) -> Record:
        evaluator = self.evaluator
        score = evaluator.scores[:, target] - evaluator.ranks.rival(target)
        measured = self._measured(target, evaluator.ranks.predicted == target, score)
        return {**measured, "classes_evaluated": evaluator.teacher(target).classes_evaluated}

    def _student(self, target: int, method: Method) -> Record:
        if self.plan.tuning == "joint":
            tuned = self.needed(tuning_name(method))
            chosen = {**tuned["chosen"], "threshold": tuned["thresholds"][target]}
        else:
            chosen = {**self._tune_class(target, method), "threshold": 0.0}
        fitted, score = self.train(target, self.spec(method, chosen))
        return {
            **self._measured(target, score >= chosen["threshold"], score),
            "classes_evaluated": 1.0,
            "chosen": chosen,
            "solution": fitted.solution.summary().as_dict(),
        }

    def spec(self, method: Method, chosen: Record) -> GatedSpec:
        """The student of a method at a chosen point, with the tolerance of the plan."""
        return GATED[method](chosen["C"], chosen["margin"], chosen["floor"], tolerance=self.plan.tolerance)

    def train(self, target: int, spec: GatedSpec) -> tuple[LinearStudent, FloatArray]:
        """A student of class code ``target``, and its scores of the test part."""
        with one_blas_thread():
            fitted = spec.fit(self.preparation.problem(target), CoreRun(self.effort.seed))
            return fitted, fitted.scores(self.evaluator.examples)

    def _tune_class(self, target: int, method: Method) -> Record:
        """The point of one class, as the paper chooses it."""
        plan = self.plan
        tuned = tune_student(
            self.folds,
            target,
            GATED[method]().grid(plan.grid),
            strategy=plan.strategy_of(self.run.split),
            metric=plan.metric,
            threshold_rule="zero",
            run=self.core_run,
        )
        return _chosen(tuned)

    def _tune_jointly(self, method: Method) -> Record:
        """One point for all classes, and the threshold of each."""
        data = self.data.train
        tuned = tune_jointly(self.folds, range(data.K), GATED[method]().grid(self.plan.grid), self.core_run)
        truth = data.y == np.array(tuned.targets)[:, None]
        thresholds = class_thresholds(truth, tuned.held_out_scores, self.folds.fold_of)
        trace = [point.as_dict() for point in tuned.trace]
        return {"chosen": _chosen(tuned), "thresholds": thresholds.tolist(), "trace": trace}

    def _measured(self, target: int, decision: BoolArray, score: FloatArray) -> Record:
        """Measures on the test part, their replicates and the ROC curve."""
        truth = self.evaluator.labels == target
        replicates = bootstrap(truth, decision, score, self.effort.replicates)
        return {
            "label": self.evaluator.classes[target],
            "metrics": binary_metrics(truth, decision, score).as_dict(),
            "replicates": {name: rounded(values) for name, values in replicates.items()},
            "roc": _curve(truth, score),
        }


def _chosen(tuned: SearchResult | JointlyTuned) -> Record:
    return {
        **tuned.spec.params(),
        "cv_score": tuned.score,
        "cv_standard_error": tuned.standard_error,
        "points": len(tuned.trace),
        "tuning_seconds": sum(point.seconds for point in tuned.trace),
    }


def _curve(truth: BoolArray, score: FloatArray) -> Record | None:
    """At most about 200 points of the ROC curve; None where the test part has one side only."""
    if truth.all() or not truth.any():
        return None
    curve = roc(truth, score)
    n = len(curve.thresholds)
    kept = np.unique(np.linspace(0, n - 1, min(n, _ROC_POINTS)).round().astype(int))
    names = ("false_positive_rate", "true_positive_rate")
    return {name: rounded(getattr(curve, name)[kept]) for name in names}
