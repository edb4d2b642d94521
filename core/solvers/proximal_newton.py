"""One proximal step on the dual of a gated hinge problem, by a semismooth Newton method.

Coordinate descent converges slowly if C/n is large: the free variables (0 < α < U) then form an
ill-conditioned least squares problem. A proximal point step around α⁰ with width σ

    max_α  D(α) − ½ Σ_i (σ / U_i) (α_i − α⁰_i)²,   0 ≤ α_i ≤ U_i

has the primal

    min_θ  ½‖θ‖² + Σ_i ψ_i(u_i),   ψ_i'(u) = a_i(u) = clip(α⁰_i + U_i u / σ, 0, U_i),   u = t + z ∘ Φθ,

which is strongly convex, once differentiable and piecewise quadratic: Newton's method with an exact line
search converges in a few steps. Only free rows enter the Hessian I + Σ_free (U_i/σ) φ_i φ_iᵀ.
(Proximal point method: Rockafellar 1976. Semismooth Newton inside it for SVMs: Li, Sun and Toh 2018.)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.linalg import LinAlgError

from core.run import Run
from core.solvers.gated_hinge import GatedHingeProblem
from core.solvers.products import matvec_rows
from core.solvers.proximal_point import MAX_NEWTON_STEPS, best_share, exact_step
from core.solvers.ridge_system import solve_ridge_system
from core.types import FloatArray, IntArray


@dataclass(frozen=True, slots=True)
class ProximalStep:
    """A feasible dual point (n,) with D(alpha) >= D(start), its θ(α) (m,), and the number of Newton steps.

    point: the primal minimiser of the step (m,), often much closer to the optimum than θ(α), which
    accumulates the errors of α.
    """

    alpha: FloatArray
    theta: FloatArray
    point: FloatArray
    newton_steps: int


def proximal_step(
    problem: GatedHingeProblem,
    start: FloatArray,
    theta: FloatArray,
    *,
    width: float,
    accuracy: float,
    run: Run,
    active: IntArray | None = None,
) -> ProximalStep:
    """One proximal step from ``start`` (n,) with θ(start) = ``theta`` (m,), over α of the ``active`` rows.

    width: σ > 0 in units of the targets; a smaller σ gives a longer step and a worse conditioned system.
    accuracy: Newton's method stops when the duality gap of the proximal problem, ½‖gradient‖², is at most
        this.
    active: row numbers, all by default. The α of the other rows are constant, so D rises for any choice;
        leaving out rows that will stay at a bound saves their products.
    """
    active = np.arange(len(start)) if active is None else active
    features, signs, bounds = problem.features, problem.signs[active], problem.bounds[active]
    steepness = bounds / width
    slacks = problem.targets[active] + signs * matvec_rows(features, theta, active, run)
    before = start[active]
    moving = np.zeros(len(start))
    moving[active] = before
    fixed = theta - problem.theta_of(moving, run)  # contribution of the inactive rows to θ
    point, steps = theta.copy(), 0
    while True:
        alpha = np.clip(before + steepness * slacks, 0.0, bounds)
        moving[active] = alpha
        target = fixed + problem.theta_of(moving, run)
        gradient = point - target
        if 0.5 * (gradient @ gradient) <= accuracy or steps == MAX_NEWTON_STEPS:
            break
        free = np.flatnonzero((alpha > 0.0) & (alpha < bounds))
        try:
            direction = -solve_ridge_system(features, steepness[free], gradient, run, index=active[free])
        except LinAlgError:  # the identity is lost to rounding; a larger σ may help
            break
        drift = signs * matvec_rows(features, direction, active, run)
        unclipped = before + steepness * slacks
        derivative = _derivative(point - fixed, direction, unclipped, steepness * drift, drift, bounds)
        step = exact_step(derivative)
        if step <= 0.0:  # the direction is below rounding
            break
        point += step * direction
        slacks += step * drift
        steps += 1
    change = np.zeros(len(start))
    change[active] = alpha - before
    share = best_share(
        float(change @ problem.targets - theta @ (target - theta)), float(np.sum((target - theta) ** 2))
    )
    # start + 1.0 · change may exceed the bounds by a rounding error
    alpha = np.clip(start + share * change, 0.0, problem.bounds)
    return ProximalStep(alpha, theta + share * (target - theta), point, steps)


def _derivative(
    point: FloatArray,
    direction: FloatArray,
    unclipped: FloatArray,
    unclipped_change: FloatArray,
    slack_change: FloatArray,
    bounds: FloatArray,
) -> Callable[[float], float]:
    """The increasing, piecewise linear derivative of the step's primal along point + s·direction.

    point: without the contribution of the inactive rows to θ.
    """
    linear, quadratic = point @ direction, direction @ direction

    def derivative(s: float) -> float:
        alpha = np.clip(unclipped + s * unclipped_change, 0.0, bounds)
        return float(linear + s * quadratic + slack_change @ alpha)

    return derivative
