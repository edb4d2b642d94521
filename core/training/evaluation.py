"""Measures teacher and students, class by class, on rows that none of them was fitted to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from core.data.dataset import LabelledData
from core.errors import Fault, InvalidProblem
from core.features.examples import Examples
from core.model_selection.calibration import Reliability, reliability
from core.model_selection.class_answers import ClassAnswers
from core.model_selection.curves import ScoreCurve, score_curve
from core.model_selection.metrics import BinaryMetrics, MeanMetrics, binary_metrics, mean_metrics
from core.packed.calibration import Calibration
from core.run import Run
from core.solvers.threads import one_blas_thread
from core.students.base import Student
from core.students.difficulty import ScoreRanks
from core.teachers.linear import classes_evaluated
from core.training.preparation import Preparation
from core.types import BoolArray, FloatArray, IntArray, Matrix

TEACHER = "teacher"


@dataclass(frozen=True, slots=True)
class ClassResult:
    """One method measured on one class.

    label: name of the class. method: ``"teacher"`` or a student's method.
    classes_evaluated: mean number of class scores that one answer needs: by Remark 2 for the teacher, 1 for a
        student.
    reliability: reliability of the probabilities of a calibrated student.
    curve: metrics at other thresholds, if the evaluator draws curves.
    beside_teacher: of a student, numbers of rows by their truth and by who says yes, see `Evaluator.student`.
    answers: of a student, counts by the classes of the rows. decision: the student's answers, (n,).
    """

    label: str
    method: str
    metrics: BinaryMetrics
    classes_evaluated: float
    reliability: Reliability | None = None
    curve: ScoreCurve | None = None
    beside_teacher: dict[str, dict[str, int]] | None = None
    answers: ClassAnswers | None = None
    decision: BoolArray | None = None

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready; has ``reliability`` if the student is calibrated."""
        trust = {} if self.reliability is None else {"reliability": self.reliability.as_dict()}
        return {
            "label": self.label,
            "method": self.method,
            "classes_evaluated": self.classes_evaluated,
            **self.metrics.as_dict(),
            **trust,
        }


@dataclass(frozen=True, slots=True)
class Evaluation:
    """All results, and their means over the classes."""

    results: tuple[ClassResult, ...]

    @property
    def methods(self) -> tuple[str, ...]:
        """Methods in the order of their first result."""
        return tuple(dict.fromkeys(result.method for result in self.results))

    def mean(self, method: str) -> MeanMetrics:
        """Mean of each metric over the classes for which it is defined."""
        return mean_metrics(result.metrics for result in self.results if result.method == method)

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready: ``classes``, with one entry for each class and method, and ``means`` by method."""
        return {
            "classes": [result.as_dict() for result in self.results],
            "means": {method: self.mean(method).as_dict() for method in self.methods},
        }


@dataclass(frozen=True, slots=True, eq=False)
class Evaluator:
    """A test part; its rows are mapped and scored by the teacher once for all students.

    examples: the test rows, raw and mapped. labels: true codes, (n,). scores: the teacher's S, (n, K).
    draws_curves: whether results have a curve, which takes a few kilobytes each.
    """

    examples: Examples
    labels: IntArray
    classes: tuple[str, ...]
    scores: FloatArray
    ranks: ScoreRanks
    draws_curves: bool = False

    @classmethod
    def of(cls, preparation: Preparation, test: LabelledData, *, draws_curves: bool = False) -> Evaluator:
        """Map and score ``test``. Raises InvalidProblem unless it has the classes and columns of training."""
        if test.classes != preparation.classes:
            message = "the test part must be coded with the classes of the training part"
            raise InvalidProblem(Fault("test", "other_classes", message))
        with one_blas_thread():
            examples = preparation.examples_of(test)
            scores = preparation.teacher.scores(examples, Run())
        return cls(examples, test.y, test.classes, scores, ScoreRanks.of(scores), draws_curves)

    @property
    def features(self) -> Matrix:
        """Φ of the test rows, (n, m)."""
        return self.examples.features

    def teacher(self, target: int) -> ClassResult:
        """The teacher as a binary classifier of class code ``target``.

        It says yes where the class has the largest score; its score for the ROC curve is the margin over the
        best other class, S^y − max_{k≠y} S^k.
        """
        truth, score = self.labels == target, self.scores[:, target] - self.ranks.rival(target)
        metrics = binary_metrics(truth=truth, decision=self.ranks.predicted == target, score=score)
        cost = float(np.mean(classes_evaluated(self.scores, target)))
        curve = score_curve(truth, score, 0.0) if self.draws_curves else None
        return ClassResult(self.classes[target], TEACHER, metrics, cost, curve=curve)

    def student(
        self,
        target: int,
        method: str,
        fitted: Student,
        threshold: float,
        calibration: Calibration | None = None,
    ) -> ClassResult:
        """A student of class code ``target``, which answers yes where its score reaches the threshold.

        ``beside_teacher`` counts the rows of the class, ``positive``, and all others, ``negative``, by who
        answers yes: ``both``, only the ``student``, only the ``teacher``, ``neither``.
        """
        with one_blas_thread():
            score = fitted.scores(self.examples)
        truth = self.labels == target
        decision, teacher = score >= threshold, self.ranks.predicted == target
        metrics = binary_metrics(truth=truth, decision=decision, score=score)
        curve = score_curve(truth, score, threshold) if self.draws_curves else None
        beside = {
            name: _agreement(decision[rows], teacher[rows])
            for name, rows in (("positive", truth), ("negative", ~truth))
        }
        trust = None if calibration is None else reliability(truth, calibration.probabilities(score))
        answers = ClassAnswers.of(self.labels, target, decision, self.classes)
        return ClassResult(
            self.classes[target], method, metrics, 1.0, trust, curve, beside, answers, decision
        )


def _agreement(student: BoolArray, teacher: BoolArray) -> dict[str, int]:
    """Numbers of rows by who answers yes: student and teacher (n,)."""
    return {
        "both": int(np.count_nonzero(student & teacher)),
        "student": int(np.count_nonzero(student & ~teacher)),
        "teacher": int(np.count_nonzero(~student & teacher)),
        "neither": int(np.count_nonzero(~student & ~teacher)),
    }
