"""A teacher that is linear in the features: one weight vector per class, from a fit or from elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from core.errors import Fault, InvalidProblem
from core.packed import PackedTeacher
from core.packed.codec import Arrays, take_array
from core.packed.maps import frozen_array
from core.run import Run
from core.solvers.products import matvec
from core.solvers.solution import Summary
from core.teachers.base import Teacher
from core.types import FloatArray, IntArray, Matrix

if TYPE_CHECKING:
    from core.features.examples import Examples


@dataclass(frozen=True, slots=True, eq=False)
class LinearTeacher(Teacher):
    """Scores S = Φ Wᵀ, Eq. (3); the class with the largest is the answer, Eq. (2).

    weights: W, shape (K, m), in the order of the features, with the constant last.
    summary: how the fit ended; None for weights from elsewhere.
    dual: the solver's dual variables (n, K), a warm start for a similar C; None for a restored teacher.
    C: loss weight of the fit, to which ``dual`` is proportional; None for weights from elsewhere.
    """

    weights: FloatArray
    summary: Summary | None = None
    dual: FloatArray | None = None
    C: float | None = None

    @classmethod
    def restore(
        cls, arrays: Arrays, n_classes: int, n_features: int, summary: Summary | None, C: float | None = None
    ) -> LinearTeacher:
        """The teacher with these ``arrays``. Raises InvalidPackage, InvalidProblem."""
        weights = frozen_array(take_array(arrays, "weights"), "weights", (n_classes, n_features))
        return cls(weights, summary, C=C)

    def scores(self, examples: Examples, run: Run = Run()) -> FloatArray:
        """S, shape (n, K), with cancel checks between blocks of rows."""
        return self.feature_scores(examples.features, run)

    def feature_scores(self, features: Matrix, run: Run = Run()) -> FloatArray:
        """S of features Φ (n, m), shape (n, K), float64."""
        return matvec(features, self.weights, run)

    @property
    def class_weights(self) -> FloatArray:
        """W, (K, m)."""
        return self.weights

    def pack(
        self, examples: Examples, classes: tuple[str, ...], metadata: Mapping[str, Any]
    ) -> PackedTeacher:
        """The teacher on the basis of the feature map."""
        if examples.feature_map is None:
            raise InvalidProblem(Fault("features", "no_map", "features without a map cannot be packed"))
        return PackedTeacher(*examples.feature_map.fold(self.weights), classes, metadata)

    def arrays(self) -> Arrays:
        """W."""
        return {"weights": self.weights}

    def without_solver_state(self) -> LinearTeacher:
        """The same weights without the dual."""
        return replace(self, dual=None)


def classes_evaluated(scores: FloatArray, target: int) -> IntArray:
    """How many class scores Remark 2 needs to answer "is it ``target``?", shape (n,), in [2, K].

    The evaluation computes the target's own score, then the others in the order of their codes, and stops at
    the first that beats it: a larger score, or an equal score of a class with a smaller code, as in argmax.

    scores: S, (n, K) with K >= 2.
    """
    own = scores[:, target, None]
    beats = np.delete(scores > own, target, axis=1)
    beats[:, :target] |= scores[:, :target] == own
    K = scores.shape[1]
    counts: IntArray = np.where(beats.any(axis=1), beats.argmax(axis=1) + 2, K)
    return counts
