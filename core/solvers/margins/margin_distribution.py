"""Newton's method for the binary optimal margin distribution machine (ODM).

Zhang and Zhou, Optimal Margin Distribution Machine (IEEE TKDE 2019). A squared loss pulls the margins of all
rows from both sides into a band around 1; μ weights margins beyond the band. The primal in w is
differentiable, and its gradient gives a dual point whose duality gap is exactly ½‖∇P(w)‖²: with the dual
variables δ_i = −ψ_i'(r_i), the Fenchel terms of every row cancel and P(w) − D(δ) = ½‖w − Σ δ_i z_i φ_i‖².
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.linalg import LinAlgError

from core.errors import InvalidProblem
from core.run import Run
from core.solvers.checks import element_faults, matrix_faults, positive_fault, vector_faults
from core.solvers.iterate import Certificate, iterate
from core.solvers.products import matvec, rmatvec
from core.solvers.proximal_point import exact_step
from core.solvers.ridge_system import solve_ridge_system
from core.solvers.solution import Solution
from core.solvers.threads import one_blas_thread
from core.types import FloatArray, Matrix


@dataclass(frozen=True, slots=True, eq=False)
class MarginDistributionProblem:
    """ODM with an optional gate, with n examples φ_i (m,).

        P(w) = ½‖w‖² + Σ_i ψ_i(r_i),   r_i = z_i w·φ_i
        ψ_i(r) = U/2 ([1 − θ − z_i g_i − r]_+² + μ [r − 1 − θ + z_i g_i]_+²),   U = C / (n (1 − θ)²)
        D(δ) = −½‖Σ_i δ_i z_i φ_i‖² − Σ_i ψ_i*(−δ_i) ≤ min P

    With the gate g = Φ w_y, the decision is v = w_y + w: the margins are those of v, and the regulariser
    pulls to w_y instead of 0.

    features: Φ, shape (n, m), float32 or float64, dense or CSR. signs: z, shape (n,), +1 or −1.
    gate: g, shape (n,), zeros without one. C: λ > 0 of the paper. band: θ in [0, 1), half the width of the
    band without loss. excess: μ in (0, 1], the weight of margins beyond the band.
    row_weights: factors > 0 of U, (n,), or None for 1.

    Raises InvalidProblem when shapes do not fit or values are out of range.
    """

    features: Matrix
    signs: FloatArray
    gate: FloatArray
    C: float
    band: float
    excess: float
    row_weights: FloatArray | None = None

    def __post_init__(self) -> None:
        faults = matrix_faults(self.features) + positive_fault("C", self.C)
        faults += positive_fault("excess", self.excess) + positive_fault("1 - band", 1.0 - self.band)
        for name in ("signs", "gate"):
            values = np.ascontiguousarray(getattr(self, name), dtype=np.float64)
            object.__setattr__(self, name, values)
            faults += vector_faults(name, values, self.features.shape[0])
        faults += element_faults("signs", np.abs(self.signs) == 1.0, "out_of_range", "+1 or -1")
        if self.row_weights is not None:
            faults += vector_faults("row_weights", self.row_weights, self.features.shape[0])
            faults += element_faults("row_weights", self.row_weights > 0.0, "out_of_range", "positive")
        if faults:
            raise InvalidProblem(*faults)

    @property
    def weight(self) -> float:
        """U, the weight of the loss of one row, without the row's own factor."""
        return self.C / (len(self.signs) * (1.0 - self.band) ** 2)

    def margins(self, w: FloatArray, run: Run = Run()) -> FloatArray:
        """r = z ∘ Φw, (n,): the margins without the contribution of the gate."""
        return self.signs * matvec(self.features, w, run)

    def deviations(self, margins: FloatArray) -> FloatArray:
        """How far each row's margin, including the gate, is above the band, or (negative) below it, (n,)."""
        centred = margins + self.signs * self.gate - 1.0
        deviations: FloatArray = np.sign(centred) * np.maximum(np.abs(centred) - self.band, 0.0)
        return deviations

    def curvatures(self, deviations: FloatArray) -> FloatArray:
        """ψ'' of every row, (n,): U below the band, U μ above it, 0 within."""
        above = np.where(deviations > 0.0, self.weight * self.excess, 0.0)
        curvatures: FloatArray = np.where(deviations < 0.0, self.weight, above)
        return curvatures if self.row_weights is None else curvatures * self.row_weights

    def objective(self, w: FloatArray, deviations: FloatArray) -> float:
        """P(w) from w and its deviations."""
        return float(0.5 * (w @ w + self.curvatures(deviations) @ deviations**2))


def solve_margin_distribution(
    problem: MarginDistributionProblem,
    *,
    tolerance: float = 1e-6,
    max_iterations: int = 200,
    start: FloatArray | None = None,
    run: Run = Run(),
) -> Solution:
    """Minimise P: value w (m,), dual δ (n,), positive below the band and negative above it.

    Every step is a Newton step with an exact line search, so the objective never rises; P is piecewise
    quadratic, and near the solution one step reaches it. Reports stage ``"odm"``. tolerance: relative duality
    gap
    at which to stop. start: initial w (m,), by default 0.
    Raises InvalidProblem for arguments out of range, Cancelled.
    """
    with one_blas_thread():
        return iterate(
            _Newton(problem, start), stage="odm", tolerance=tolerance, max_iterations=max_iterations, run=run
        )


class _Newton:
    """Solver state: w, the margins and the gradient at w, its objective, and the smallest gap so far."""

    def __init__(self, problem: MarginDistributionProblem, start: FloatArray | None) -> None:
        self._problem = problem
        n, m = problem.features.shape
        self.value: FloatArray = np.zeros(m) if start is None else start
        self.dual: FloatArray = np.zeros(n)
        self._margins = np.zeros(n) if start is None else problem.margins(start)
        self.iterations = 0
        self._objective = self._gap = np.inf
        self._gradient = self._slope(Run())

    def advance(self, run: Run) -> Certificate:
        problem = self._problem
        step = self._step(run)
        self.iterations += 1
        self._margins = problem.margins(self.value, run)
        self._gradient = self._slope(run)
        objective = problem.objective(self.value, problem.deviations(self._margins))
        gap = 0.5 * float(self._gradient @ self._gradient)
        stalled = step <= 0.0 or (objective >= self._objective and gap >= self._gap)
        self._objective, self._gap = objective, min(gap, self._gap)
        return Certificate(objective, objective - gap, stalled=stalled)

    def _slope(self, run: Run) -> FloatArray:
        """∇P(w), (m,); keeps δ."""
        deviations = self._problem.deviations(self._margins)
        self.dual = -self._problem.curvatures(deviations) * deviations
        return self.value - rmatvec(self._problem.features, self._problem.signs * self.dual, run)

    def _step(self, run: Run) -> float:
        """Move w along the Newton direction to the minimum.

        Returns the step length; 0 if rounding prevents one.
        """
        problem, w, margins = self._problem, self.value, self._margins
        curvatures = problem.curvatures(problem.deviations(margins))
        rows = np.flatnonzero(curvatures)
        try:
            direction = -solve_ridge_system(
                problem.features, curvatures[rows], self._gradient, run, index=rows
            )
        except LinAlgError:  # rounding has removed the identity
            return 0.0
        drift = problem.margins(direction, run)
        linear, quadratic = w @ direction, direction @ direction

        def derivative(s: float) -> float:
            deviations = problem.deviations(margins + s * drift)
            slopes = problem.curvatures(deviations) * deviations
            return float(linear + s * quadratic + drift @ slopes)

        step = exact_step(derivative)
        self.value = w + step * direction
        return step
