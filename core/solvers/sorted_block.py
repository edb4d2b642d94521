"""The block sub-problem of multi-class duals, solved exactly by sorting (projection on the simplex).

    min_x  Σ_k (A/2) x_k² + B_k x_k    subject to  Σ_k x_k = Σ_k c_k − v,  x_k ≤ c_k

With D_k = B_k + A c_k and y = c − x ≥ 0 it is the projection of D/A on the simplex Σ_k y_k = v, so

    x_k = c_k − [D_k − β]_+ / A,   Σ_k [D_k − β]_+ = A v,

and β follows from the D_k in descending order in O(K log K).
"""

from __future__ import annotations

from core.solvers.jit import compiled
from core.types import FloatArray


@compiled
def simplex_threshold(values: FloatArray, count: int, volume: float) -> float:
    """β with Σ_{k<count} [values_k − β]_+ = volume, for volume >= 0 and count >= 1.

    Sorts ``values[:count]`` in place.
    """
    ordered = values[:count]
    ordered.sort()
    total: float = ordered[count - 1]
    for taken in range(1, count):
        following: float = ordered[count - 1 - taken]
        if total - taken * following >= volume:
            return (total - volume) / taken
        total += following
    return (total - volume) / count


@compiled
def solve_block(
    curvature: float,
    linear: FloatArray,
    upper: FloatArray,
    volume: float,
    count: int,
    scratch: FloatArray,
    x: FloatArray,
) -> None:
    """Write the minimiser into ``x[:count]``.

    curvature: A > 0. linear: B (count,). upper: c (count,). volume: v = Σ_k (c_k − x_k) >= 0.
    scratch: (>= count,), overwritten. All float64; arrays may be longer than ``count``.
    """
    for k in range(count):
        scratch[k] = linear[k] + curvature * upper[k]
    threshold = simplex_threshold(scratch, count, curvature * volume)
    for k in range(count):
        x[k] = min(upper[k], (threshold - linear[k]) / curvature)
