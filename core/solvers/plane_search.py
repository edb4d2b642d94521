"""Acceleration of dual block descent: the maximum of D over the plane of the last two steps.

Near the solution the set of active bounds no longer changes, D is quadratic in the other variables, and the
epochs of block descent converge linearly. After each epoch, D is maximised over the plane through the current
point that is spanned by the epoch's step and the previous step (a locally optimal conjugate direction method
with the epoch instead of the gradient: Knyazev 2001). D in this plane depends on inner products of (K, m)
matrices. The maximum is projected on the feasible set, row by row, and an exact line search to it ensures
that D never decreases.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from core.solvers.block_sweeps import solve_block
from core.solvers.jit import Rows, compiled, loaded_axpy, row_load
from core.solvers.proximal_point import best_share
from core.types import FloatArray

# In exact arithmetic the share of the epoch's own step is at least −½; a smaller share is a rounding error.
_LEAST_SHARE = -0.3
# Gain of D in units of ‖W‖² below which rounding may decide.
_LEAST_GAIN = 1e-11


class PlaneSearch:
    """The steps of one round over the rows ``order`` (a,).

    dual (n, K), classes (n, K) and counts (n,) are the solver's own arrays, changed in place.
    """

    def __init__(
        self,
        rows: Rows,
        labels: NDArray[np.int64],
        bound: float,
        order: NDArray[np.int64],
        dual: FloatArray,
        classes: NDArray[np.int32],
        counts: NDArray[np.int32],
    ) -> None:
        self.order = order
        self._rows, self._labels, self._bound = rows, labels, bound
        self._dual, self._classes, self._counts = dual, classes, counts
        self._before, self._goal = np.empty((2, len(order), dual.shape[1]))
        # The epoch's step and the whole step before it, 0 if there is none: α (a, K), W (K, m), Σ_i Δα_i,y_i.
        self._steps = np.zeros((2, len(order), dual.shape[1]))
        self._W_steps: FloatArray = np.zeros((2, 0, 0))
        self._gains = np.zeros(2)

    def start(self, W: FloatArray) -> None:
        """Remember the point before an epoch, whose W(α) is ``W`` (K, m)."""
        np.take(self._dual, self.order, axis=0, out=self._before)
        self._W_before = W.astype(np.float64)
        if not self._W_steps.size:
            self._W_steps = np.zeros((2, *W.shape))

    def improve(self, W: FloatArray) -> bool:
        """Move α and W = W(α), in place, to the maximum of the plane. Returns whether they have moved.

        Classes that leave their bound become active again.
        """
        reached = W.astype(np.float64)
        self._measure(0, reached)
        shares = self._maximum(reached)
        moved = shares is not None and self._move(W, reached, shares)
        self._measure(1, W if moved else None)
        return moved

    def _measure(self, which: int, W: FloatArray | None) -> None:
        """Store the step from the point before the epoch to this one; without ``W``, forget it."""
        if W is None:
            self._steps[which], self._W_steps[which], self._gains[which] = 0.0, 0.0, 0.0
            return
        step = self._steps[which]
        self._gains[which] = _difference(self.order, self._labels, self._dual, self._before, step)
        np.subtract(W, self._W_before, out=self._W_steps[which])

    def _maximum(self, W: FloatArray) -> FloatArray | None:
        """The shares of both steps at which D is largest without bounds; None if rounding decides."""
        flat = self._W_steps.reshape(2, -1)
        curvature, slope = flat @ flat.T, self._gains - flat @ W.ravel()
        curvature[np.diag_indices(2)] *= 1.0 + 1e-6
        if curvature[1, 1] == 0.0:
            curvature[1, 1] = 1.0
        try:
            shares: FloatArray = np.linalg.solve(curvature, slope)
        except np.linalg.LinAlgError:  # the epoch has changed nothing
            return None
        return shares if np.isfinite(shares).all() and shares[0] > _LEAST_SHARE else None

    def _move(self, W: FloatArray, reached: FloatArray, shares: FloatArray) -> bool:
        """Project the maximum, search the line to it, and keep W and the active classes up to date."""
        W_step = np.tensordot(shares, self._W_steps, axes=1)
        gain = _project(
            self._rows,
            self.order,
            self._labels,
            self._bound,
            shares,
            self._steps,
            self._dual,
            self._goal,
            W_step,
        )
        slope, curvature = gain - float(np.vdot(reached, W_step)), float(np.vdot(W_step, W_step))
        share = best_share(slope, curvature)
        if share * (slope - 0.5 * share * curvature) <= _LEAST_GAIN * float(np.vdot(reached, reached)):
            return False
        W[:] = reached + share * W_step
        _take(
            self.order, self._labels, self._bound, share, self._goal, self._dual, self._classes, self._counts
        )
        return True


@compiled
def _difference(
    order: NDArray[np.int64],
    labels: NDArray[np.int64],
    alpha: FloatArray,
    before: FloatArray,
    step: FloatArray,
) -> float:
    """Write α_i − before into ``step`` (a, K) for the rows in ``order``. Returns Σ_i step_i,y_i."""
    gain = 0.0
    for r in range(len(order)):
        i = order[r]
        for k in range(alpha.shape[1]):
            step[r, k] = alpha[i, k] - before[r, k]
        gain += step[r, labels[i]]
    return gain


@compiled
def _project(
    rows: Rows,
    order: NDArray[np.int64],
    labels: NDArray[np.int64],
    bound: float,
    shares: FloatArray,
    steps: FloatArray,
    alpha: FloatArray,
    goal: FloatArray,
    W_step: FloatArray,
) -> float:
    """Write the feasible rows nearest to α + Σ_j shares_j steps_j into ``goal`` (a, K).

    W_step: W of that sum, corrected here for the projection. Returns Σ_i goal_i,y_i − α_i,y_i.
    """
    K = goal.shape[1]
    row = np.empty(W_step.shape[1], dtype=W_step.dtype)
    linear, upper, scratch, x = np.empty(K), np.empty(K), np.empty(K), np.empty(K)
    gain = 0.0
    for r in range(len(order)):
        i = order[r]
        feasible = True
        for k in range(K):
            upper[k] = bound if k == labels[i] else 0.0
            goal[r, k] = alpha[i, k] + shares[0] * steps[0, r, k] + shares[1] * steps[1, r, k]
            feasible = feasible and goal[r, k] <= upper[k]
        if not feasible:
            for k in range(K):
                linear[k] = -goal[r, k]
            solve_block(1.0, linear, upper, bound, K, scratch, x)
            row_load(rows, i, row)
            for k in range(K):
                correction = x[k] - goal[r, k]
                if correction != 0.0:
                    goal[r, k] = x[k]
                    loaded_axpy(rows, i, row, correction, W_step[k])
        gain += goal[r, labels[i]] - alpha[i, labels[i]]
    return gain


@compiled
def _take(
    order: NDArray[np.int64],
    labels: NDArray[np.int64],
    bound: float,
    share: float,
    goal: FloatArray,
    alpha: FloatArray,
    classes: NDArray[np.int32],
    counts: NDArray[np.int32],
) -> None:
    """α ← α + share · (goal − α); classes that are below their bound and not active become active."""
    K = alpha.shape[1]
    active = np.zeros(K, dtype=np.bool_)
    for r in range(len(order)):
        i = order[r]
        for p in range(counts[i]):
            active[classes[i, p]] = True
        for k in range(K):
            upper = bound if k == labels[i] else 0.0
            if goal[r, k] != alpha[i, k]:
                alpha[i, k] = min(upper, alpha[i, k] + share * (goal[r, k] - alpha[i, k]))
            if alpha[i, k] < upper and not active[k]:
                classes[i, counts[i]] = k
                counts[i] += 1
            active[k] = False
