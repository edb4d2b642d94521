"""Cutting planes for a linear function of several views that optimises a multivariate performance measure.

Wang, Multi-view learning for multivariate performance measures optimization, problem (7). The paper updates
one view after the other. Since the same constraints bind all views, they are solved together here: with the
Cholesky factor of the quadratic part as new coordinates, the problem is that of one view. Clarabel solves the
dual of the quadratic programme over the working set.
"""

from __future__ import annotations

from dataclasses import dataclass

import clarabel
import numpy as np
import scipy.sparse as sp
from scipy.linalg import cholesky, solve_triangular

from core.errors import Fault, InvalidProblem
from core.run import Run
from core.solvers.checks import matrix_faults, positive_fault
from core.solvers.iterate import Certificate, iterate
from core.solvers.measures.violation import Measure, Violation, most_violated
from core.solvers.solution import Solution
from core.solvers.threads import one_blas_thread
from core.types import BoolArray, FloatArray

_IDLE_ROUNDS = 20
"""A constraint leaves the working set after this many rounds with weight 0."""
_ACCURACY = 1e-9
"""Accuracy of the quadratic programmes."""


@dataclass(frozen=True, slots=True, eq=False)
class MeasureProblem:
    """One linear function per view, w = (w_1, …, w_m), whose sum f = Σ_j f_j, f_j = x^j·w_j, is the score.

        P(w) = ½‖w‖² + C (max_ȳ' V(ȳ'; f) + κ/(2n) Σ_i Σ_{j<j'} (f_ij − f_ij')²)

    with V of ``violation``; the true vector counts among the ȳ', so the maximum is at least 0. Up to the
    factor 2n in the scale of f and in C, it is problem (7) of the paper, with its C₂ = C κ/n.

    features: the views side by side, (n, q), dense. widths: columns of each view, their sum is q.
    positive: (n,), with both values. k: as in ``most_violated``. C, consistency: κ ≥ 0.
    Raises InvalidProblem when shapes do not fit or values are out of range.
    """

    features: FloatArray
    widths: tuple[int, ...]
    positive: BoolArray
    measure: Measure
    C: float
    consistency: float
    k: int = 1

    def __post_init__(self) -> None:
        values = np.ascontiguousarray(self.features, dtype=np.float64)
        object.__setattr__(self, "features", values)
        faults = matrix_faults(values) + positive_fault("C", self.C)
        if not (np.isfinite(self.consistency) and self.consistency >= 0.0):
            faults.append(Fault("consistency", "out_of_range", "consistency must be finite and at least 0"))
        if not faults:
            if sum(self.widths) != values.shape[1] or min(self.widths, default=0) < 1:
                faults.append(Fault("widths", "wrong_shape", "the widths must be at least 1 and add up to q"))
            if self.positive.shape != (len(values),) or len(set(self.positive.tolist())) != 2:
                faults.append(Fault("positive", "single_class", "rows of both kinds are needed"))
            if not 1 <= self.k <= len(values):
                faults.append(Fault("k", "out_of_range", f"k must be in [1, {len(values)}], got {self.k}"))
        if faults:
            raise InvalidProblem(*faults)

    def quadratic(self) -> FloatArray:
        """Ω with ½wᵀΩw = ½‖w‖² + C κ/(2n) Σ_i Σ_{j<j'} (f_ij − f_ij')², (q, q).

        Σ_{j<j'} ‖f_j − f_j'‖² = m Σ_j ‖f_j‖² − ‖Σ_j f_j‖².
        """
        weight = self.C * self.consistency / len(self.features)
        view = np.repeat(np.arange(len(self.widths)), self.widths)
        factors = len(self.widths) * (view[:, None] == view) - 1.0
        if weight == 0.0 or not factors.any():
            return np.eye(len(view))
        penalty: FloatArray = weight * factors * (self.features.T @ self.features)
        return np.eye(len(view)) + penalty

    def violation(self, scores: FloatArray) -> Violation:
        """The most violated label vector at scores f (n,)."""
        return most_violated(self.measure, self.positive, scores, self.k)

    def objective(self, w: FloatArray) -> float:
        """P(w)."""
        scores = self.features @ w
        return float(0.5 * w @ self.quadratic() @ w + self.C * max(0.0, self.violation(scores).value(scores)))


def solve_measure(
    problem: MeasureProblem, *, tolerance: float = 1e-3, max_iterations: int = 1000, run: Run = Run()
) -> Solution:
    """Minimise P: value w (q,), dual the weights of the working set's constraints.

    tolerance: duality gap divided by C at which to stop; no constraint is then violated by more than this
    beyond its slack, which is Joachims' criterion. The objective is that of the best point so far and the
    bound is the best so far, so neither gets worse. Reports stage ``"cutting_planes"``.
    Raises InvalidProblem for arguments out of range, Cancelled.
    """
    with one_blas_thread():
        method = _CuttingPlanes(problem)
        return iterate(
            method, stage="cutting_planes", tolerance=tolerance, max_iterations=max_iterations, run=run
        )


class _CuttingPlanes:
    """Solver state in the coordinates u = Lᵀw, Ω = L Lᵀ: the working set and the best point and bound."""

    def __init__(self, problem: MeasureProblem) -> None:
        self._problem = problem
        self._factor = cholesky(problem.quadratic(), lower=True)
        self._rows = solve_triangular(self._factor, problem.features.T, lower=True).T
        q = problem.features.shape[1]
        self._planes, self._losses = np.empty((0, q)), np.empty(0)
        self._idle = np.empty(0, dtype=np.int64)
        self._best: FloatArray = np.zeros(q)
        self.value: FloatArray = np.zeros(q)
        self._objective, self._bound = np.inf, 0.0
        self.dual: FloatArray = np.empty(0)
        self.iterations = 0
        self._cut(self._best)

    def advance(self, run: Run) -> Certificate:
        run.check_cancel()
        objective, bound = self._objective, self._bound
        point = self._solve_working_set()
        self._drop_idle()
        best = self._best
        self._cut(point)
        if self._best is not point:
            # A cut near the best point prevents the next points from oscillating.
            self._cut(0.5 * (best + point))
        self.value = solve_triangular(self._factor, self._best, lower=True, trans="T")
        self.iterations += 1
        stalled = self._objective >= objective and self._bound <= bound + 1e-14 * abs(bound)
        stalled = stalled and self.iterations > 1
        return Certificate(self._objective, self._bound, stalled=stalled, scale=self._problem.C)

    def _cut(self, point: FloatArray) -> None:
        """Add the constraint that ``point`` (q,) violates most; keep the point if it is the best."""
        problem, scores = self._problem, self._rows @ point
        found = problem.violation(scores)
        value = 0.5 * float(point @ point) + problem.C * max(0.0, found.value(scores))
        if value < self._objective:
            self._best, self._objective = point, value
        self._planes = np.vstack([self._planes, found.coefficients @ self._rows])
        self._losses = np.append(self._losses, found.loss)
        self._idle = np.append(self._idle, 0)

    def _solve_working_set(self) -> FloatArray:
        """The minimiser u (q,) over the working set; raises the bound.

        With α = C β the dual is max_β δ·β − C/2 ‖Σ_k β_k g_k‖², β ≥ 0, Σ β ≤ 1: any such β gives a bound.
        """
        C, count = self._problem.C, len(self._losses)
        gram = C * (self._planes @ self._planes.T)
        settings = clarabel.DefaultSettings()
        settings.verbose = False
        settings.tol_gap_abs = settings.tol_gap_rel = settings.tol_feas = _ACCURACY
        found = clarabel.DefaultSolver(
            sp.csc_matrix(np.triu(gram)),
            -self._losses,
            sp.csc_matrix(np.vstack([-np.eye(count), np.ones((1, count))])),
            np.append(np.zeros(count), 1.0),
            [clarabel.NonnegativeConeT(count + 1)],
            settings,
        ).solve()
        shares = np.maximum(np.array(found.x), 0.0)
        shares /= max(1.0, float(shares.sum()))
        point: FloatArray = C * (shares @ self._planes)
        self._bound = max(self._bound, C * float(self._losses @ shares) - 0.5 * float(point @ point))
        self.dual = C * shares
        self._idle = np.where(shares > 1e-9, 0, self._idle + 1)
        return point

    def _drop_idle(self) -> None:
        kept = self._idle < _IDLE_ROUNDS
        self._planes, self._losses, self._idle = self._planes[kept], self._losses[kept], self._idle[kept]
