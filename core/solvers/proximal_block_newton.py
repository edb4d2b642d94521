"""One proximal step on the dual of Crammer and Singer's problem, by a semismooth Newton method.

Block descent converges slowly where C/n is large and features are few: many classes of many examples are
then free and coupled by an ill-conditioned system. A proximal point step around α⁰ with width σ

    max_α  D(α) − (σ / 2b) ‖α − α⁰‖²,   Σ_k α_ik = 0,  α_ik ≤ u_ik

has the primal

    min_W  ½‖W‖² + Σ_i ψ_i(W φ_i),   −∇ψ_i(s) = α_i(s) = the feasible block nearest to α⁰_i − (b/σ)(s + e_i),

which is strongly convex, once differentiable and piecewise quadratic, as in ``proximal_newton``. The Hessian
is I + (b/σ) Σ_i P_i ⊗ φ_i φ_iᵀ with P_i = I_F − 1_F 1_Fᵀ/|F|, where F are the classes of example i below
their bound. It has (K m)² entries, so the method suits small K m only.
(Proximal point method: Rockafellar 1976. Semismooth Newton inside it for SVMs: Li, Sun and Toh 2018.)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import LinAlgError, cho_factor, cho_solve

from core.run import Run
from core.solvers.block_sweeps import solve_block
from core.solvers.jit import compiled
from core.solvers.multiclass_hinge import CrammerSingerProblem
from core.solvers.products import entries_per_row
from core.solvers.proximal_point import MAX_NEWTON_STEPS, best_share, exact_step
from core.types import BoolArray, FloatArray, IntArray

_EPSILON = float(np.finfo(np.float64).eps)
_BLOCK_ENTRIES = 500_000


@dataclass(frozen=True, slots=True)
class BlockStep:
    """Feasible α of the active examples (a, K) that does not decrease D, and the number of Newton steps.

    point: the primal minimiser of the step, (K, m), often much closer to the optimum than W(α).
    """

    alpha: FloatArray
    point: FloatArray
    newton_steps: int


def proximal_block_step(
    problem: CrammerSingerProblem,
    start: FloatArray,
    W: FloatArray,
    active: IntArray,
    *,
    width: float,
    accuracy: float,
    run: Run,
) -> BlockStep:
    """One proximal step from ``start`` (n, K) with W(start) = ``W`` (K, m), for dense features.

    active: numbers of the examples whose α is optimised. width: σ > 0 in units of the scores; a smaller σ
    gives a longer step and a worse conditioned system. accuracy: Newton's method stops when the duality gap
    of the proximal problem, ½‖gradient‖², is at most this.
    """
    rows = _Rows(problem, active, run)
    labels, bound = problem.labels[active].astype(np.int64, copy=False), problem.bound
    steepness, before, upper = bound / width, start[active], _upper(problem, active)
    scores = rows.scores(W) + 1.0
    scores[np.arange(len(active)), labels] -= 1.0
    fixed = W - rows.combined(before)  # contribution of the inactive examples to W
    point, steps = W.copy(), 0
    alpha = np.empty_like(before)
    while True:
        _respond(before, scores, labels, bound, steepness, alpha)
        gradient = point - fixed - rows.combined(alpha)
        if 0.5 * np.vdot(gradient, gradient) <= accuracy or steps == MAX_NEWTON_STEPS:
            break
        try:
            direction = -_solve(rows.hessian(alpha < upper, steepness), gradient)
        except LinAlgError:  # the identity is lost to rounding; a larger σ may help
            break
        drift = rows.scores(direction)
        along = _derivative(point - fixed, direction, before, scores, drift, labels, bound, steepness, run)
        step = exact_step(along)
        if step <= 0.0 or step * np.abs(direction).max() <= _EPSILON * np.abs(point).max():
            break  # the step is below rounding
        point += step * direction
        scores += step * drift
        steps += 1
    change, W_change = alpha - before, point - gradient - W
    slope = float(change[np.arange(len(active)), labels].sum() - np.vdot(W, W_change))
    share = best_share(slope, float(np.vdot(W_change, W_change)))
    # ``balanced`` removes rounding errors of the block sums, which are of the size of steepness · scores · ε.
    return BlockStep(problem.balanced(before + share * change, labels), point, steps)


class _Rows:
    """Products with the active rows of the features, in float64 and in blocks."""

    def __init__(self, problem: CrammerSingerProblem, active: IntArray, run: Run) -> None:
        self._features, self._active, self._run = problem.features, active, run
        self._shape = problem.n_classes, problem.features.shape[1]
        size = max(1, int(_BLOCK_ENTRIES / entries_per_row(problem.features)))
        self._blocks = [slice(at, at + size) for at in range(0, len(active), size)]

    def _of(self, block: slice) -> FloatArray:
        self._run.check_cancel()
        rows: FloatArray = self._features[self._active[block]].astype(np.float64, copy=False)
        return rows

    def scores(self, W: FloatArray) -> FloatArray:
        """W φ_i, (a, K)."""
        result = np.empty((len(self._active), len(W)))
        for block in self._blocks:
            result[block] = self._of(block) @ W.T
        return result

    def combined(self, alpha: FloatArray) -> FloatArray:
        """Σ_i α_i φ_iᵀ, (K, m)."""
        result: FloatArray = np.zeros(self._shape)
        for block in self._blocks:
            result += alpha[block].T @ self._of(block)
        return result

    def hessian(self, free: BoolArray, steepness: float) -> FloatArray:
        """I + steepness Σ_i P_i ⊗ φ_i φ_iᵀ, (K m, K m); only its upper triangle of blocks is computed."""
        K, m = self._shape
        result = np.zeros((K, m, K, m))
        counts = free.sum(axis=1)
        for block in self._blocks:
            rows = self._of(block)
            for k in range(K):
                for other in range(k, K):
                    both = np.flatnonzero(free[block, k] & free[block, other] & (counts[block] > 1))
                    if not len(both):
                        continue
                    self._run.check_cancel()
                    some, share = rows[both], 1.0 / counts[block][both]
                    weights = 1.0 - share if k == other else -share
                    result[k, :, other, :] += (steepness * weights * some.T) @ some
        square: FloatArray = result.reshape(K * m, K * m)
        square[np.diag_indices(K * m)] += 1.0
        return square


def _solve(hessian: FloatArray, gradient: FloatArray) -> FloatArray:
    factor = cho_factor(hessian, lower=False, overwrite_a=True, check_finite=False)
    solution: FloatArray = cho_solve(factor, gradient.ravel(), check_finite=False)
    return solution.reshape(gradient.shape)


def _upper(problem: CrammerSingerProblem, active: IntArray) -> FloatArray:
    """u: the bound for the own class, 0 for the others, (a, K)."""
    upper = np.zeros((len(active), problem.n_classes))
    np.put_along_axis(upper, problem.labels[active, None], problem.bound, axis=1)
    return upper


def _derivative(
    point: FloatArray,
    direction: FloatArray,
    before: FloatArray,
    scores: FloatArray,
    drift: FloatArray,
    labels: NDArray[np.int64],
    bound: float,
    steepness: float,
    run: Run,
) -> Callable[[float], float]:
    """The increasing, piecewise linear derivative of the step's primal along point + s·direction.

    point: without the contribution of the inactive examples to W.
    """
    linear, quadratic = float(np.vdot(point, direction)), float(np.vdot(direction, direction))
    alpha = np.empty_like(before)

    def derivative(s: float) -> float:
        run.check_cancel()
        _respond(before, scores + s * drift, labels, bound, steepness, alpha)
        return linear + s * quadratic - float(np.vdot(alpha, drift))

    return derivative


@compiled
def _respond(
    before: FloatArray,
    scores: FloatArray,
    labels: NDArray[np.int64],
    bound: float,
    steepness: float,
    alpha: FloatArray,
) -> None:
    """Write into ``alpha`` (a, K) the feasible blocks nearest to before − steepness · scores."""
    K = alpha.shape[1]
    linear, upper, scratch, x = np.empty(K), np.empty(K), np.empty(K), np.empty(K)
    for i in range(alpha.shape[0]):
        for k in range(K):
            linear[k] = steepness * scores[i, k] - before[i, k]
            upper[k] = bound if k == labels[i] else 0.0
        solve_block(1.0, linear, upper, bound, K, scratch, x)
        for k in range(K):
            alpha[i, k] = x[k]
