"""Compiled kernels of dual block descent: the block sub-problem, sweeps, duality terms, combined steps.

The block sub-problem of multi-class duals is solved exactly (projection on the simplex):

    min_x  Σ_k (A/2) x_k² + B_k x_k    subject to  Σ_k x_k = Σ_k c_k − v,  x_k ≤ c_k

With D_k = B_k + A c_k and y = c − x ≥ 0 it is the projection of D/A on the simplex Σ_k y_k = v, so

    x_k = c_k − [D_k − β]_+ / A,   Σ_k [D_k − β]_+ = A v,

and β is found without sorting (Michelot 1986; Condat 2016).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from core.solvers.jit import Rows, compiled, loaded_axpy, loaded_dot, row_load, row_prefetch
from core.types import FloatArray


@compiled
def simplex_threshold(values: FloatArray, count: int, volume: float) -> float:
    """β with Σ_{k<count} [values_k − β]_+ = volume, for volume >= 0 and count >= 1.

    Michelot's iteration: β is computed as if every value were above it, then again from the values above the
    last β, until all of them are. Overwrites ``values[:count]``.
    """
    total = 0.0
    for p in range(count):
        total += values[p]
    threshold: float = (total - volume) / count
    while True:
        kept = 0
        total = 0.0
        for p in range(count):
            value = values[p]
            if value > threshold:
                values[kept] = value
                total += value
                kept += 1
        if kept == count or kept == 0:  # if the values are equal, rounding can leave none above β
            return threshold
        count = kept
        threshold = (total - volume) / count


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


@compiled
def copy_rows(features: FloatArray, numbers: NDArray[np.int64], copy: FloatArray) -> None:
    """Write the rows ``numbers`` (b,) of ``features`` (n, m) into ``copy`` (b, m), in its dtype."""
    for r in range(len(numbers)):
        i = numbers[r]
        for j in range(features.shape[1]):
            copy[r, j] = features[i, j]


@compiled
def duality_terms(
    scores: FloatArray,
    labels: NDArray[np.int64],
    bound: float,
    slack: float,
    alpha: FloatArray,
    classes: NDArray[np.int32],
    counts: NDArray[np.int32],
) -> tuple[float, float]:
    """Largest KKT violation and largest |score| of a block of rows; updates its active set.

    With g_k = w_k·φ + e_k, an example is optimal if max_k g_k <= min g_j over the classes j with α_j below
    its bound. A class at its bound is active if g_k >= min g_j − slack.

    scores: W φ (b, K), overwritten with g. labels: (b,). alpha: (b, K). classes (b, K) and counts (b,): the
    active set, overwritten.
    """
    worst = 0.0
    scale = 0.0
    for i in range(scores.shape[0]):
        own = labels[i]
        top = -np.inf
        low = np.inf
        for k in range(scores.shape[1]):
            upper = bound if k == own else 0.0
            scores[i, k] += 0.0 if k == own else 1.0
            top = max(top, scores[i, k])
            scale = max(scale, abs(scores[i, k]))
            if alpha[i, k] < upper:
                low = min(low, scores[i, k])
        worst = max(worst, top - low)
        count = 0
        for k in range(scores.shape[1]):
            upper = bound if k == own else 0.0
            if alpha[i, k] < upper or scores[i, k] >= low - slack:
                classes[i, count] = k
                count += 1
        counts[i] = count
    return worst, scale


@compiled
def rivals_ahead(scores: FloatArray, labels: NDArray[np.int64]) -> FloatArray:
    """r_i = max_{k≠y_i} s_ik − s_i,y_i of a block of scores (b, K), shape (b,); row i loses [1 + r_i]_+."""
    ahead = np.full(scores.shape[0], -np.inf)
    for i in range(scores.shape[0]):
        for k in range(scores.shape[1]):
            if k != labels[i]:
                ahead[i] = max(ahead[i], scores[i, k] - scores[i, labels[i]])
    return ahead


@compiled
def line_search_terms(W: FloatArray, one: FloatArray, two: FloatArray) -> tuple[float, float]:
    """−⟨W, ΔW⟩ and ‖ΔW‖² of the combined step ΔW = (W₁ − W) + (W₂ − W) of two workers."""
    slope = 0.0
    curvature = 0.0
    for k in range(W.shape[0]):
        for j in range(W.shape[1]):
            step = np.float64(one[k, j] - W[k, j]) + np.float64(two[k, j] - W[k, j])
            slope -= np.float64(W[k, j]) * step
            curvature += step * step
    return slope, curvature


@compiled
def merge(W: FloatArray, one: FloatArray, two: FloatArray, share: float) -> None:
    """W ← W + share · ΔW in place; both workers' weights become the new W."""
    for k in range(W.shape[0]):
        for j in range(W.shape[1]):
            step = (one[k, j] - W[k, j]) + (two[k, j] - W[k, j])
            W[k, j] += share * step
            one[k, j] = W[k, j]
            two[k, j] = W[k, j]


@compiled
def sweep(
    rows: Rows,
    labels: NDArray[np.int64],
    bound: float,
    norms: FloatArray,
    order: NDArray[np.int64],
    classes: NDArray[np.int32],
    counts: NDArray[np.int32],
    slack: float,
    alpha: FloatArray,
    W: FloatArray,
) -> tuple[int, float, float]:
    """Exact block steps for the examples in ``order``, which keep W = W(α) up to date.

    Drops classes from the active set by the rule of ``duality_terms``. Returns the number of row products,
    Σ_i Δα_i,y_i, and the duality gap of these examples, each at W before its step: P(W(α)) − D(α) is
    Σ_i Σ_k (c_ik − α_ik) (max_l g_il − g_ik) with the upper bounds c.
    """
    K = alpha.shape[1]
    row = np.empty(W.shape[1], dtype=W.dtype)
    gained = 0.0
    gap = 0.0
    g, linear, upper, scratch, x = np.empty(K), np.empty(K), np.empty(K), np.empty(K), np.empty(K)
    work = 0
    for at in range(len(order)):
        i, following = order[at], order[min(at + 1, len(order) - 1)]
        count = counts[i]
        share = W.shape[1] // max(1, count) + 1
        work += count
        top = -np.inf
        low = np.inf
        row_load(rows, i, row)
        for p in range(count):
            row_prefetch(rows, following, p * share, (p + 1) * share)
            k = classes[i, p]
            own = k == labels[i]
            upper[p] = bound if own else 0.0
            g[p] = loaded_dot(rows, i, row, W[k]) + (0.0 if own else 1.0)
            top = max(top, g[p])
            if alpha[i, k] < upper[p]:
                low = min(low, g[p])
        kept = 0
        for p in range(count):
            k = classes[i, p]
            gap += (upper[p] - alpha[i, k]) * (top - g[p])
            if alpha[i, k] < upper[p] or g[p] >= low - slack:
                classes[i, kept] = k
                linear[kept] = g[p] - norms[i] * alpha[i, k]
                upper[kept] = upper[p]
                kept += 1
        counts[i] = kept
        if kept < 2 or top <= low:
            continue
        solve_block(norms[i], linear, upper, bound, kept, scratch, x)
        for p in range(kept):
            k = classes[i, p]
            step = x[p] - alpha[i, k]
            if step != 0.0:
                alpha[i, k] = x[p]
                loaded_axpy(rows, i, row, step, W[k])
                work += 1
                if k == labels[i]:
                    gained += step
    return work, gained, gap
