"""One fold of a cross-validation as one class sees it, and what fits in it give."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from core.run import Run
    from core.students.base import Problem, Student, StudentSpec
    from core.types import BoolArray, FloatArray, IntArray, Matrix


@dataclass(frozen=True, slots=True)
class Budget:
    """How exactly to solve: relative duality gap to stop at, and limit of epochs of coordinate descent.

    finish: iteration limit of the full solver, for fits that miss the tolerance; 0 disables it.
    """

    tolerance: float = 1e-3
    max_epochs: int = 300
    finish: int = 100


@dataclass(frozen=True, slots=True, eq=False)
class Fold:
    """One fold for one class.

    number, target: of the fold, and the code of the class. problem: of all n rows, with the scores of the
    teacher that was fitted to the rows of the other folds. is_training: the rows to fit to, (n,).
    single: Φ in float32, (n, m); sums over it stay float64. norms: ‖φ_i‖², (n,).
    """

    number: int
    target: int
    problem: Problem
    is_training: BoolArray
    single: Matrix
    norms: FloatArray

    @property
    def held_out(self) -> IntArray:
        """Numbers of the rows that are held out."""
        return np.flatnonzero(~self.is_training)

    def fit(self, spec: StudentSpec, run: Run) -> Student:
        """A student of the training rows."""
        return spec.fit(self.problem.take(np.flatnonzero(self.is_training)), run)

    def held_out_scores(self, student: Student) -> FloatArray:
        """Scores of the held-out rows, in their order."""
        return student.scores(self.problem.examples.take(self.held_out))


@dataclass(frozen=True, slots=True, eq=False)
class FoldResult:
    """Scores of the fold's held-out rows at each point, (points, rows); gaps and seconds, (points,).

    gaps: relative duality gaps reached, 0 where a student has none. seconds: wall time of the fits.
    """

    scores: NDArray[np.float32]
    gaps: FloatArray
    seconds: FloatArray


def fit_each(specs: Sequence[StudentSpec], fold: Fold, run: Run) -> FoldResult:
    """Fit every point on its own. Raises InvalidProblem, Cancelled."""
    scores = np.empty((len(specs), len(fold.held_out)), dtype=np.float32)
    gaps, seconds = np.zeros(len(specs)), np.empty(len(specs))
    for index, spec in enumerate(specs):
        run.check_cancel()
        started = time.perf_counter()
        student = fold.fit(spec, run.silent())
        scores[index] = fold.held_out_scores(student)
        gaps[index] = student.summary.relative_gap or 0.0
        seconds[index] = time.perf_counter() - started
    return FoldResult(scores, gaps, seconds)
