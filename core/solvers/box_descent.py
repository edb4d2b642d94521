"""Coordinate descent on the dual of a gated hinge problem, 0 ≤ α ≤ U: the sweep and its active set."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from core.solvers.jit import Rows, compiled, row_axpy, row_dot, row_prefetch
from core.types import FloatArray


def projected_gradient(slacks: FloatArray, alpha: FloatArray, bounds: FloatArray) -> FloatArray:
    """Projected gradient of the dual, (n,); negative values: slack of the KKT condition at a bound.

    It is |u_i| for 0 < α_i < U_i, u_i for α_i = 0 and −u_i for α_i = U_i. slacks: u. bounds: U.
    """
    at_zero, at_bound = alpha <= 0.0, alpha >= bounds
    gradient: FloatArray = np.where(at_zero, slacks, np.where(at_bound, -slacks, np.abs(slacks)))
    return gradient


def active_set(gradient: FloatArray) -> NDArray[np.bool_]:
    """Mask of the rows to keep (shrinking): all except those with more KKT slack than the worst violation."""
    keep: NDArray[np.bool_] = gradient >= -max(0.0, float(gradient.max()))
    return keep


@compiled
def sweep(
    rows: Rows,
    signs: FloatArray,
    targets: FloatArray,
    bounds: FloatArray,
    norms: FloatArray,
    order: NDArray[np.int64],
    epochs: int,
    alpha: FloatArray,
    theta: FloatArray,
) -> None:
    """Coordinate steps α_i ← clip(α_i + u_i / ‖φ_i‖², 0, U_i) in the given order, which update θ = θ(α)."""
    for _ in range(epochs):
        for at in range(len(order)):
            i = order[at]
            row_prefetch(rows, order[min(at + 1, len(order) - 1)], 0, theta.shape[0])
            slack = targets[i] + signs[i] * row_dot(rows, i, theta)
            new = min(max(alpha[i] + slack / norms[i], 0.0), bounds[i])
            step = new - alpha[i]
            if step != 0.0:
                alpha[i] = new
                row_axpy(rows, i, -step * signs[i], theta)
