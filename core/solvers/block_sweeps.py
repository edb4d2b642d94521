"""Compiled kernels of dual block descent: sweeps, duality terms, and combining the workers' steps."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from core.solvers.jit import Rows, compiled, loaded_axpy, loaded_dot, row_load
from core.solvers.sorted_block import solve_block
from core.types import FloatArray


@compiled
def duality_terms(
    scores: FloatArray,
    labels: NDArray[np.int64],
    bound: float,
    slack: float,
    alpha: FloatArray,
    classes: NDArray[np.int32],
    counts: NDArray[np.int32],
) -> tuple[float, float, float]:
    """Sum of losses, largest KKT violation and largest |score| of a block of rows; updates its active set.

    With g_k = w_k·φ + e_k, an example is optimal if max_k g_k <= min g_j over the classes j with α_j below
    its bound. A class at its bound is active if g_k >= min g_j − slack.

    scores: W φ (b, K), overwritten with g. labels: (b,). alpha: (b, K). classes (b, K) and counts (b,): the
    active set, overwritten.
    """
    losses = 0.0
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
        losses += top - scores[i, own]
        worst = max(worst, top - low)
        count = 0
        for k in range(scores.shape[1]):
            upper = bound if k == own else 0.0
            if alpha[i, k] < upper or scores[i, k] >= low - slack:
                classes[i, count] = k
                count += 1
        counts[i] = count
    return losses, worst, scale


@compiled
def hinge_losses(scores: FloatArray, labels: NDArray[np.int64]) -> float:
    """Σ_i max_k (e_ik + s_ik − s_i,y_i) of a block of scores."""
    losses = 0.0
    for i in range(scores.shape[0]):
        top = scores[i, labels[i]] - 1.0
        for k in range(scores.shape[1]):
            if k != labels[i]:
                top = max(top, scores[i, k])
        losses += top + 1.0 - scores[i, labels[i]]
    return losses


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
) -> tuple[int, float]:
    """Exact block steps for the examples in ``order``, keeping W = W(α).

    Drops classes from the active set by the rule of ``duality_terms``. Returns the number of row products and
    Σ_i Δα_i,y_i.
    """
    K = alpha.shape[1]
    row = np.empty(W.shape[1], dtype=W.dtype)
    gained = 0.0
    g, linear, upper, scratch, x = np.empty(K), np.empty(K), np.empty(K), np.empty(K), np.empty(K)
    work = 0
    for i in order:
        count = counts[i]
        work += count
        top = -np.inf
        low = np.inf
        row_load(rows, i, row)
        for p in range(count):
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
    return work, gained
