"""Coordinate descent on the dual of a gated hinge problem, 0 ≤ α ≤ U: the step, and which rows take part."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from core.solvers.jit import Rows, compiled, row_axpy, row_dot
from core.types import FloatArray


def push_of(slacks: FloatArray, alpha: FloatArray, bounds: FloatArray) -> FloatArray:
    """How hard each row pushes to move, (n,): |u_i| between the bounds, and at one what points inwards.

    Negative where a row is pushed into the bound it sits at: by how much its slack would have to change.
    """
    at_zero, at_bound = alpha <= 0.0, alpha >= bounds
    push: FloatArray = np.where(at_zero, slacks, np.where(at_bound, -slacks, np.abs(slacks)))
    return push


def may_move(push: FloatArray) -> NDArray[np.bool_]:
    """All but rows that are pushed into their bound by more than the worst violation left."""
    keep: NDArray[np.bool_] = push >= -max(0.0, float(push.max()))
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
    """Coordinate steps α_i ← clip(α_i + u_i / ‖φ_i‖², 0, U_i) in the given order, keeping θ = θ(α)."""
    for _ in range(epochs):
        for i in order:
            slack = targets[i] + signs[i] * row_dot(rows, i, theta)
            new = min(max(alpha[i] + slack / norms[i], 0.0), bounds[i])
            step = new - alpha[i]
            if step != 0.0:
                alpha[i] = new
                row_axpy(rows, i, -step * signs[i], theta)
