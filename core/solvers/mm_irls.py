"""Majorise-minimise (iteratively reweighted least squares) for gated hinge problems: Algorithm 2.

The paper bounds |ϑ| at the current point v by (ϑ²/|v| + |v|)/2 and guards the division as |v| + 1e-6. This
guarded form is not a majoriser at v, and its objective can rise. Here the hinge is first replaced by its
smooth
upper bound

    h_δ(u) = (u + √(u² + δ²)) / 2,   [u]_+ ≤ h_δ(u) ≤ [u]_+ + δ/2,

for which the same weighted least squares step, with c = √(ϑ² + δ²) in place of |ϑ|, is the exact
majorise-minimise step:

    h_δ(u) ≤ ((u + c)² + δ²) / (4c)   for all u, with equality at u = ϑ.

So P_δ(θ) = ½‖θ‖² + Σ U_i h_δ(u_i) never rises in a step, nor when δ shrinks, because h_δ grows with δ.
The objective is then minimised over the span of this step and the three previous ones, which needs no further
pass over the data (majorise-minimise memory gradient: Chouzenoux, Idier and Moussaoui 2011). This reduces
hundreds of steps to tens.
"""

from __future__ import annotations

from collections import deque

import numpy as np
from scipy.linalg import LinAlgError

from core.errors import InvalidProblem
from core.run import Run
from core.solvers.checks import positive_fault
from core.solvers.gated_hinge import GatedHingeProblem
from core.solvers.iterate import Certificate, iterate
from core.solvers.products import matvec
from core.solvers.ridge_system import solve_ridge_system
from core.solvers.solution import Solution
from core.types import FloatArray

_MEMORY = 3
_SPAN_STEPS = 5
_SHRINK = 0.1
_IDLE_STEPS = 20


def solve_mm_irls(
    problem: GatedHingeProblem,
    *,
    tolerance: float = 1e-6,
    max_iterations: int = 1000,
    guard: float = 1e-8,
    run: Run = Run(),
) -> Solution:
    """Minimise Eq. (12) by Algorithm 2: value θ (m,), dual α (n,) with α_i = U_i h_δ'(u_i).

    tolerance: relative duality gap at which to stop. guard: the smallest δ, in units of the targets. It
    changes the objective by at most guard/2 · Σ U_i; the status is STALLED if δ reaches it before the
    tolerance. δ shrinks only as far as the tolerance requires, so the guard may be below the paper's 1e-6.
    Each step solves (I + Φᵀ diag(q) Φ) x = b, in its n-dimensional form if m > n.
    run: reports each step as stage ``"mm_irls"``; checked for a cancel every few milliseconds.

    The trace is P_δ(θ), an upper bound of P(θ), and never rises beyond rounding.

    Raises InvalidProblem for arguments out of range and Cancelled when asked to stop.
    """
    faults = positive_fault("guard", guard)
    if faults:
        raise InvalidProblem(*faults)
    return iterate(
        _MajoriseMinimise(problem, guard),
        stage="mm_irls",
        tolerance=tolerance,
        max_iterations=max_iterations,
        run=run,
    )


class _MajoriseMinimise:
    """Solver state: θ, its slacks ϑ (u in the problem's notation), smoothing δ, previous steps, best α."""

    def __init__(self, problem: GatedHingeProblem, guard: float) -> None:
        self.problem = problem
        self.guard = guard
        self.value: FloatArray = np.zeros(problem.shape[1])
        self.slacks = problem.targets.copy()
        self.smoothing = max(guard, float(np.max(np.abs(problem.targets))))
        self.steps: deque[FloatArray] = deque(maxlen=_MEMORY)
        self.changes: deque[FloatArray] = deque(maxlen=_MEMORY)
        self.dual: FloatArray = np.zeros(problem.shape[0])  # D(0) = 0: a bound from the start
        self.dual_objective = 0.0
        self.gradient = self.value - problem.theta_of(self._current_dual())
        self.iterations = 0
        self.idle = 0

    def advance(self, run: Run) -> Certificate:
        """One step of Algorithm 2 and its certificate; reduces δ once P_δ is nearly minimal."""
        # P_δ(θ), which a majorise-minimise step never increases
        before = self._smoothed_objective()
        self.iterations += 1
        try:
            self._step(run)
        except LinAlgError:  # the system is numerically singular at this δ
            objective = self.problem.objective_at(self.value, self.slacks)
            return Certificate(objective, self.dual_objective, recorded=before, stalled=True)
        smoothed = self._smoothed_objective()
        self.idle = self.idle + 1 if before - smoothed <= 1e-14 * abs(smoothed) else 0
        objective = self.problem.objective_at(self.value, self.slacks)
        smoothing_is_most = self._certify(objective, run)
        at_guard = self.smoothing <= self.guard
        certificate = Certificate(
            objective=objective,
            dual_objective=self.dual_objective,
            recorded=smoothed,
            stalled=at_guard and self.idle >= _IDLE_STEPS,
        )
        if smoothing_is_most or self.idle:
            self.smoothing = max(_SHRINK * self.smoothing, self.guard)
            self.gradient = self.value - self.problem.theta_of(self._current_dual(), run)
        return certificate

    def _step(self, run: Run) -> None:
        # Line 8 of Algorithm 2 as a correction, θ⁺ = θ − H⁻¹∇P_δ(θ): rounding errors of an
        # ill-conditioned H then affect the step and not θ.
        problem = self.problem
        curvature = problem.bounds / (2.0 * np.hypot(self.slacks, self.smoothing))
        newest = -solve_ridge_system(problem.features, curvature, self.gradient, run)
        newest_change = problem.signs * matvec(problem.features, newest, run)
        span = np.column_stack([newest, *self.steps])
        change = np.column_stack([newest_change, *self.changes])
        mix = self._best_mix(span, change)
        self.steps.appendleft(span @ mix)
        self.changes.appendleft(change @ mix)
        self.value = self.value + self.steps[0]
        # Recompute the slacks: accumulated rounding errors would be divided by δ.
        self.slacks = problem.slacks(self.value, run)

    def _best_mix(self, span: FloatArray, change: FloatArray) -> FloatArray:
        """Minimise P_δ over θ + span·mix by Newton's method, starting from the MM step, mix = (1, 0, ...).

        span: (m, s), the MM step and the previous steps. change: (n, s), their effects on the slacks.
        Returns mix (s,).
        """
        bounds, smoothing = self.problem.bounds, self.smoothing

        def value_at(mix: FloatArray) -> float:
            theta = self.value + span @ mix
            return float(
                0.5 * (theta @ theta) + bounds @ smoothed_hinge(self.slacks + change @ mix, smoothing)
            )

        mix = np.zeros(span.shape[1])
        mix[0] = 1.0
        value = value_at(mix)
        for _ in range(_SPAN_STEPS):
            slacks = self.slacks + change @ mix
            second = bounds * smoothing**2 / (2.0 * np.hypot(slacks, smoothing) ** 3)
            gradient = span.T @ (self.value + span @ mix) + change.T @ smoothed_dual(
                slacks, bounds, smoothing
            )
            hessian = span.T @ span + (change * second[:, None]).T @ change
            newton = -np.linalg.lstsq(hessian, gradient, rcond=1e-14)[0]
            shares = 0.5 ** np.arange(8)
            values = [value_at(mix + share * newton) for share in shares]
            best = int(np.argmin(values))
            if not values[best] < value:
                break
            mix, value = mix + shares[best] * newton, values[best]
        return mix

    def _certify(self, objective: float, run: Run) -> bool:
        """Keep the best dual point. Returns whether δ contributes more to the gap than P_δ − min P_δ does."""
        dual = self._current_dual()
        theta = self.problem.theta_of(dual, run)
        bound = self.problem.dual_objective_at(dual, theta)
        if bound > self.dual_objective:
            self.dual, self.dual_objective = dual, bound
        self.gradient = self.value - theta
        # P_δ is strongly convex with modulus 1, so P_δ(θ) − min P_δ <= ½‖∇P_δ(θ)‖².
        return float(self.gradient @ self.gradient) <= objective - bound

    def _current_dual(self) -> FloatArray:
        return smoothed_dual(self.slacks, self.problem.bounds, self.smoothing)

    def _smoothed_objective(self) -> float:
        loss = self.problem.bounds @ smoothed_hinge(self.slacks, self.smoothing)
        return float(0.5 * (self.value @ self.value) + loss)


def smoothed_hinge(slacks: FloatArray, smoothing: float) -> FloatArray:
    """h_δ(u) = (u + √(u² + δ²)) / 2, evaluated without cancellation for u < 0."""
    root = np.hypot(slacks, smoothing)
    return np.where(
        slacks >= 0.0, 0.5 * (slacks + root), 0.5 * smoothing**2 / (root - np.minimum(slacks, 0.0))
    )


def smoothed_dual(slacks: FloatArray, bounds: FloatArray, smoothing: float) -> FloatArray:
    """α = U h_δ'(u) = U (1 + u/√(u² + δ²)) / 2 = U h_δ(u) / √(u² + δ²). 0 <= α <= U, so dual feasible."""
    return bounds * smoothed_hinge(slacks, smoothing) / np.hypot(slacks, smoothing)


def majoriser(slacks: FloatArray, at: FloatArray, smoothing: float) -> FloatArray:
    """((u + c)² + δ²) / (4c) with c = √(at² + δ²): touches h_δ at u = ``at`` and lies above it elsewhere."""
    root = np.hypot(at, smoothing)
    return ((slacks + root) ** 2 + smoothing**2) / (4.0 * root)
