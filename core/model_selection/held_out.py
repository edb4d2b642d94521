"""Scores of rows by students and teachers that were not fitted to them.

Thresholds, calibrations, budgets of compact students and searches all use the ``Fold``s of one ``Folds``. No
gate, difficulty or score of a held-out row comes from a teacher or a student that was fitted to the row. (An
imported head is the exception: its training rows are unknown, and it is the teacher of every fold.)
"""

from __future__ import annotations

import numpy as np

from core.model_selection.folds import Folds
from core.model_selection.metrics import binary_metrics
from core.model_selection.options import ThresholdRule
from core.model_selection.threshold import choose_threshold
from core.run import Run
from core.solvers.threads import one_blas_thread
from core.students.base import StudentSpec
from core.types import FloatArray


def held_out_scores(folds: Folds, target: int, spec: StudentSpec, run: Run = Run()) -> FloatArray:
    """Score of each row, (n,), by a student and a teacher of the other folds.

    Raises InvalidProblem when the class, or the rest, is in one fold only; Cancelled.
    """
    folds.check_class(target)
    return scores_where_held_out(folds, target, spec, run)


def scores_where_held_out(folds: Folds, target: int, spec: StudentSpec, run: Run = Run()) -> FloatArray:
    """Score of each row, (n,), by a student and a teacher of the other rows; NaN where no fold holds it out.

    Raises InvalidProblem when a fold's training rows are all of one side, Cancelled.
    """
    scores = np.full(len(folds.labels), np.nan)
    with one_blas_thread():
        for number in range(folds.n_folds):
            run.check_cancel()
            fold = folds.fold(number, target)
            scores[fold.held_out] = fold.held_out_scores(fold.fit(spec, run.silent()))
    return scores


class HeldOutF1:
    """Held-out scores of one class, and their F at the threshold of the run's rule (``HeldOutScorer``)."""

    def __init__(self, folds: Folds, target: int, rule: ThresholdRule, budget: float, run: Run) -> None:
        self._folds, self._target, self._run = folds, target, run
        self._rule, self._budget = rule, budget
        self.n_rows = len(folds.labels)

    def scores(self, spec: StudentSpec) -> FloatArray:
        """Score of each row by a student, and a teacher, that were not fitted to it, (n,)."""
        return held_out_scores(self._folds, self._target, spec, self._run)

    def f1(self, scores: FloatArray) -> float:
        """F of held-out scores (n,); the threshold is chosen and measured on the same scores."""
        positive = self._folds.labels == self._target
        threshold = choose_threshold(positive, scores, self._rule, self._budget)
        measured = binary_metrics(positive, scores >= threshold, scores).f1
        return 0.0 if measured is None else measured
