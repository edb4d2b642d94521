"""A teacher that is linear in the features: one weight vector a class, whoever learnt it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from core.run import Run
from core.solvers.products import project
from core.solvers.solution import Summary
from core.types import FloatArray, IntArray, Matrix


@dataclass(frozen=True, slots=True, eq=False)
class LinearTeacher:
    """Scores S = Φ Wᵀ, Eq. (3); the class with the largest is the answer, Eq. (2).

    weights: W, shape (K, m), in the features' order, the constant last.
    summary: how the fit ended; None for weights from elsewhere.
    dual: the solver's dual variables (n, K), a warm start for a neighbouring C; None when read back.
    C: loss weight of the fit, with which ``dual`` scales; None for weights from elsewhere.
    """

    weights: FloatArray
    summary: Summary | None = None
    dual: FloatArray | None = None
    C: float | None = None

    def scores(self, features: Matrix, run: Run = Run()) -> FloatArray:
        """S, shape (n, K), float64, for features Φ (n, m); with cancel checks between blocks of rows."""
        return project(features, self.weights, run)

    def class_score(self, features: Matrix, target: int) -> FloatArray:
        """S^y of one class, shape (n,): the gate of its student."""
        return project(features, self.weights[target], Run())

    def predict(self, features: Matrix) -> IntArray:
        """Class codes, shape (n,); the first of equal scores wins."""
        codes: IntArray = self.scores(features).argmax(axis=1)
        return codes


def classes_evaluated(scores: FloatArray, target: int) -> IntArray:
    """How many class scores Remark 2 needs to answer "is it ``target``?", shape (n,), in [2, K].

    The traversal takes the target's own score, then the others in order of their codes, and stops at the
    first
    that beats it: a larger score, or an equal one of a class with a smaller code, as argmax decides.

    scores: S, (n, K) with K >= 2.
    """
    own = scores[:, target, None]
    beats = np.delete(scores > own, target, axis=1)
    beats[:, :target] |= scores[:, :target] == own
    K = scores.shape[1]
    counts: IntArray = np.where(beats.any(axis=1), beats.argmax(axis=1) + 2, K)
    return counts
