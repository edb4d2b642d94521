"""Scores of rows by students and teachers that were not fitted to them.

Thresholds, calibrations, budgets of compact students and searches all use the ``Fold``s of one ``Folds``. No
gate, difficulty or score of a held-out row comes from a teacher or a student that was fitted to the row. (An
imported head is the exception: its training rows are unknown, and it is the teacher of every fold.)
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from core.model_selection.folds import Folds
from core.model_selection.metrics import binary_metrics
from core.model_selection.scoring import Measure
from core.model_selection.threshold import choose_threshold
from core.run import Run
from core.solvers.threads import one_blas_thread
from core.students.base import Need, StudentSpec
from core.types import BoolArray, FloatArray


def held_out_scores(folds: Folds, target: int, spec: StudentSpec, run: Run = Run()) -> FloatArray:
    """Score of each row, (n,), by a student and a teacher that were fitted to the other folds.

    Raises InvalidProblem if the class, or the other classes, are in one fold only; Cancelled.
    """
    folds.check_class(target)
    return hold_out(folds, target, spec, run).scores


@dataclass(frozen=True, slots=True, eq=False)
class HeldOut:
    """Scores of rows by students and teachers that were fitted to other rows.

    scores: of each row by the student of its fold, (n,); NaN if no fold holds it out. medians: of the scores
    that this student gives to the negatives and positives it was fitted to, (2, n); None if only the scores
    are known.
    """

    scores: FloatArray
    medians: FloatArray | None = None

    def as_scored_by(self, own: FloatArray, positive: BoolArray) -> FloatArray:
        """The scores (n,), rescaled to a student that gives the scores ``own`` to the rows it was fitted to.

        Students of all rows and of two thirds of them have the same loss weight. But with few rows and many
        columns their scores differ in mean and spread, and a threshold of one does not suit the other. This
        method maps the medians of negatives and positives of one student to those of the other.
        """
        if self.medians is None:
            return self.scores
        low, high = self.medians
        to_low, to_high = float(np.median(own[~positive])), float(np.median(own[positive]))
        if to_high <= to_low or (high <= low).any():
            return self.scores  # a student that does not separate its own rows gives no scale
        scaled: FloatArray = to_low + (self.scores - low) * ((to_high - to_low) / (high - low))
        return scaled


def hold_out(folds: Folds, target: int, spec: StudentSpec, run: Run = Run()) -> HeldOut:
    """Fit a student of class code ``target`` in each fold, and score the fold's held-out rows.

    Raises InvalidProblem if a fold's training rows are all on one side, Cancelled.
    """
    scores = np.full(len(folds.labels), np.nan)
    medians = np.tile([[0.0], [1.0]], len(scores))
    with one_blas_thread():
        for number in range(folds.n_folds):
            run.check_cancel()
            fold = folds.fold(number, target)
            student = fold.fit(spec, run.silent())
            scores[fold.held_out] = fold.held_out_scores(student)
            fitted_to = np.flatnonzero(fold.is_training)
            own, positive = (
                student.scores(fold.problem.examples.take(fitted_to)),
                fold.problem.positive[fitted_to],
            )
            medians[:, fold.held_out] = [[np.median(own[~positive])], [np.median(own[positive])]]
    return HeldOut(scores, medians)


def cautious_threshold(
    held_out: HeldOut,
    own: FloatArray,
    positive: BoolArray,
    budget: float,
    confidence: float | None = None,
) -> float:
    """The threshold for a false-positive budget: the higher one of those by original and by rescaled scores.

    own: scores of the training rows by the student that gets the threshold, (n,). positive: their truth.
    budget, confidence: as in ``choose_threshold``.
    """
    scaled = held_out.as_scored_by(own, positive)
    both = (held_out.scores, scaled)
    return max(choose_threshold(positive, scores, "fpr", budget, confidence) for scores in both)


class HeldOutF1:
    """Held-out scores of one class, and their F at the threshold of the run's rule (``HeldOutScorer``)."""

    def __init__(self, folds: Folds, target: int, measure: Measure, run: Run) -> None:
        self._folds, self._target, self._measure, self._run = folds, target, measure, run
        self.n_rows = len(folds.labels)

    @property
    def offers(self) -> frozenset[Need]:
        """The needs of students that data and teacher fulfil."""
        return self._folds.fold(0, self._target).problem.offers

    def scores(self, spec: StudentSpec) -> FloatArray:
        """Score of each row by a student, and a teacher, that were not fitted to it, (n,)."""
        return held_out_scores(self._folds, self._target, spec, self._run)

    def f1(self, scores: FloatArray) -> float:
        """F of held-out scores (n,); the threshold is chosen and measured on the same scores."""
        positive = self._folds.labels == self._target
        threshold = self._measure.threshold(positive, scores)
        measured = binary_metrics(positive, scores >= threshold, scores).f1
        return 0.0 if measured is None else measured
