"""An interior point method for SVM+, whose slacks are a function of privileged columns.

Vapnik and Vashist, A new learning paradigm: learning using privileged information (Neural Networks 2009).
A strictly feasible point is known at once, because the constant of the privileged features can increase every
slack. So all iterates satisfy the constraints, their objectives are upper bounds, and any multipliers that
are scaled to satisfy the one equation of the dual give a lower bound: the gap is a certificate.
The steps are those of Mehrotra (SIAM J. Optimization 1992), with one step length for both sides.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from scipy.linalg import LinAlgError, cho_factor, cho_solve

from core.errors import InvalidProblem
from core.run import Run
from core.solvers.checks import element_faults, matrix_faults, positive_fault, vector_faults
from core.solvers.iterate import Certificate, iterate
from core.solvers.solution import Solution
from core.solvers.threads import one_blas_thread
from core.types import FloatArray

_PRODUCTS_AT_ONCE = 300_000_000
"""Multiplications between two cancel checks: some ten milliseconds."""
_TO_THE_BOUNDARY = 0.995
_SHORTEST_STEP = 1e-8


@dataclass(frozen=True, slots=True, eq=False)
class PrivilegedHingeProblem:
    """SVM+ with n examples φ_i (m,) and their privileged features ψ_i (p,), the last of which is 1.

        min_{w,u} ½‖w‖² + C (κ/2 ‖u'‖² + 1/n Σ_i u·ψ_i),   z_i w·φ_i ≥ 1 − u·ψ_i,   u·ψ_i ≥ 0
        D(α, β) = Σ_i α_i − ½‖Σ_i α_i z_i φ_i‖² − 1/(2 C κ) ‖Σ_i (α_i + β_i − C/n) ψ'_i‖²,
                  α, β ≥ 0,   Σ_i (α_i + β_i) = C

    u' and ψ' are without the last entry: the mean slack is not penalised. u·ψ_i is the slack of row i; the γ
    of Vapnik and Vashist is C κ.

    features: Φ, (n, m), dense. signs: z, (n,), +1 or −1. privileged: Ψ, (n, p), dense. C: weight of the mean
    slack. correction: κ. Raises InvalidProblem when shapes do not fit or values are out of range.
    """

    features: FloatArray
    signs: FloatArray
    privileged: FloatArray
    C: float
    correction: float

    def __post_init__(self) -> None:
        faults = positive_fault("C", self.C) + positive_fault("correction", self.correction)
        for name in ("features", "privileged", "signs"):
            values = np.ascontiguousarray(getattr(self, name), dtype=np.float64)
            object.__setattr__(self, name, values)
            faults += (
                vector_faults(name, values, len(self.features)) if name == "signs" else matrix_faults(values)
            )
        faults += element_faults("signs", np.abs(self.signs) == 1.0, "out_of_range", "+1 or -1")
        if not faults:
            faults += vector_faults("privileged", self.privileged[:, -1], len(self.features))
            faults += element_faults(
                "privileged", self.privileged[:, -1] == 1.0, "out_of_range", "1 at the end"
            )
        if faults:
            raise InvalidProblem(*faults)

    @property
    def penalties(self) -> FloatArray:
        """Weights of the squares of (w, u) in the objective, (m + p,): 1, C κ, and 0 for the mean slack."""
        penalties = np.ones(self.features.shape[1] + self.privileged.shape[1])
        penalties[self.features.shape[1] :] = self.C * self.correction
        penalties[-1] = 0.0
        return penalties

    @property
    def costs(self) -> FloatArray:
        """The linear part of the objective, (m + p,)."""
        return np.concatenate([np.zeros(self.features.shape[1]), self.C * self.privileged.mean(axis=0)])

    def products(self, x: FloatArray) -> FloatArray:
        """(z w·φ + u·ψ, u·ψ) of x = (w, u), (2 n,)."""
        m = self.features.shape[1]
        slacks = self.privileged @ x[m:]
        return np.concatenate([self.signs * (self.features @ x[:m]) + slacks, slacks])

    def transposed(self, multipliers: FloatArray) -> FloatArray:
        """The transpose of ``products`` at (α, β) (2 n,): (Σ α z φ, Σ (α + β) ψ), (m + p,)."""
        alpha, beta = np.split(multipliers, 2)
        return np.concatenate([(self.signs * alpha) @ self.features, (alpha + beta) @ self.privileged])

    def objective(self, x: FloatArray) -> float:
        """The objective at x = (w, u), whether or not x satisfies the constraints."""
        return float(0.5 * self.penalties @ x**2 + self.costs @ x)

    def dual_objective(self, multipliers: FloatArray) -> float:
        """D at (α, β) ≥ 0 (2 n,), scaled to fulfil the equation."""
        scaled = multipliers * (self.C / multipliers.sum())
        shift = self.transposed(scaled) - self.costs
        squares = shift[:-1] ** 2 / self.penalties[:-1]
        return float(scaled[: len(self.signs)].sum() - 0.5 * squares.sum())


def solve_privileged_hinge(
    problem: PrivilegedHingeProblem,
    *,
    tolerance: float = 1e-6,
    max_iterations: int = 100,
    run: Run = Run(),
) -> Solution:
    """Solve SVM+: value (w, u) (m + p,), which satisfies all constraints, dual (α, β) (2 n,).

    An iteration costs about n (m + p)² multiplications; with more features than rows, n³. Reports stage
    ``"svm+"``. tolerance: relative duality gap at which to stop.
    Raises InvalidProblem for arguments out of range, Cancelled.
    """
    n, m = problem.features.shape
    with one_blas_thread():
        if m <= n:
            return _solve(problem, tolerance, max_iterations, run)
        # w is a combination of the n rows; in an orthonormal basis Q of the rows it has n coordinates.
        basis, triangle = np.linalg.qr(problem.features.T)
        small = PrivilegedHingeProblem(
            triangle.T, problem.signs, problem.privileged, problem.C, problem.correction
        )
        solution = _solve(small, tolerance, max_iterations, run)
    value = np.concatenate([basis @ solution.value[:n], solution.value[n:]])
    return replace(solution, value=value)


def _solve(problem: PrivilegedHingeProblem, tolerance: float, max_iterations: int, run: Run) -> Solution:
    method = _InteriorPoint(problem)
    return iterate(method, stage="svm+", tolerance=tolerance, max_iterations=max_iterations, run=run)


class _InteriorPoint:
    """Solver state: x = (w, u) with the slacks s > 0 of its constraints, and the multipliers λ > 0."""

    def __init__(self, problem: PrivilegedHingeProblem) -> None:
        self._problem = problem
        n, m = problem.features.shape
        self._H, self._q = problem.penalties, problem.costs
        self._b = np.repeat([1.0, 0.0], n)
        self.value: FloatArray = np.zeros(m + problem.privileged.shape[1])
        self.value[-1] = 2.0
        self.dual: FloatArray = np.full(2 * n, 0.5 * problem.C / n)
        self.iterations = 0

    def advance(self, run: Run) -> Certificate:
        problem = self._problem
        stalled = False
        try:
            stalled = self._step(run) < _SHORTEST_STEP
        except LinAlgError:  # rounding has made the system singular
            stalled = True
        self.iterations += 1
        bound = problem.dual_objective(self.dual)
        return Certificate(problem.objective(self.value), bound, stalled=stalled)

    def _step(self, run: Run) -> float:
        """Move x and λ by a predictor and a corrector. Returns the step length."""
        problem, multipliers = self._problem, self.dual
        slacks = problem.products(self.value) - self._b
        residual = self._H * self.value + self._q - problem.transposed(multipliers)
        weights = multipliers / slacks
        factor = cho_factor(self._system(weights, run), lower=True, overwrite_a=True, check_finite=False)

        def direction(complementarity: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
            """Changes of x, s and λ that reduce s λ and the ``complementarity`` of their changes."""
            right = -residual - problem.transposed(complementarity / slacks)
            x = cho_solve(factor, right, check_finite=False)
            s = problem.products(x)
            return x, s, -(complementarity + multipliers * s) / slacks

        together = multipliers * slacks
        _, ds, dl = direction(together)
        share = min(_longest(slacks, ds), _longest(multipliers, dl))
        mean = together.mean()
        after = float(np.mean((slacks + share * ds) * (multipliers + share * dl)))
        centring = (after / mean) ** 3
        dx, ds, dl = direction(together + ds * dl - centring * mean)
        share = min(1.0, _TO_THE_BOUNDARY * min(_longest(slacks, ds), _longest(multipliers, dl)))
        self.value = self.value + share * dx
        self.dual = multipliers + share * dl
        return share

    def _system(self, weights: FloatArray, run: Run) -> FloatArray:
        """diag(H) + Aᵀ diag(weights) A, (m + p, m + p), with A the matrix of ``products``; lower triangle."""
        problem = self._problem
        (n, m), p = problem.features.shape, problem.privileged.shape[1]
        first, second = np.split(weights, 2)
        system = np.diag(self._H)
        size = max(1, _PRODUCTS_AT_ONCE // (m + p) ** 2)
        for start in range(0, n, size):
            run.check_cancel()
            rows = slice(start, start + size)
            signed = problem.signs[rows, None] * problem.features[rows]
            both = np.hstack([signed, problem.privileged[rows]])
            system += both.T @ (first[rows, None] * both)
            lifted = second[rows, None] * problem.privileged[rows]
            system[m:, m:] += problem.privileged[rows].T @ lifted
        return system


def _longest(values: FloatArray, changes: FloatArray) -> float:
    """The largest step length in (0, 1] with which all values stay at least 0."""
    falling = changes < 0.0
    return float(min(1.0, np.min(-values[falling] / changes[falling], initial=1.0)))
