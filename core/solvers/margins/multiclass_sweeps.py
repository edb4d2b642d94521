"""Compiled kernels of dual block descent for mcODM: the block of K + 1 variables, sweeps, certificates.

One block holds the variables of one example, a_k for the K classes and b. With the other examples fixed it is

    min  Σ_{l≠y} (A/2 a_l² + B_l a_l) + D/2 a_y² − A a_y b + B_y a_y + E/2 b² + F b
    subject to  Σ_l a_l = 0,  a_l ≤ 0 for l ≠ y,  b ≥ 0,

A = ‖φ‖², D = A + 1/c, E = A + 1/(cμ). Its KKT conditions (Zhang, slides, 2023) give with a multiplier ν

    a_l = min(0, (ν − B_l)/A),   b = max(0, (A a_y − F)/E),   D a_y − A b + B_y = ν,

so that a_y is an increasing, piecewise linear function of ν, and Σ_l [B_l − ν]_+ = A a_y(ν). On either piece
ν is (P + Σ_{l∈Φ} B_l)/(Q + |Φ|) with Φ the largest B_l, which are found by sorting, in O(K log K).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from core.solvers.jit import Rows, compiled, loaded_axpy, loaded_dot, row_load
from core.types import FloatArray


@compiled
def multiplier(ordered: FloatArray, count: int, total: float, weight: float) -> float:
    """ν with Q ν − P = Σ_{l<count} [B_l − ν]_+, for P = ``total``, Q = ``weight`` > 0.

    ordered: B ascending in its first ``count`` entries.
    """
    for taken in range(count):
        following: float = ordered[count - 1 - taken]
        if total >= weight * following:
            return total / weight
        total += following
        weight += 1.0
    return total / weight


@compiled
def solve_margin_block(
    norm: float,
    own_curvature: float,
    excess_curvature: float,
    own: float,
    excess: float,
    rivals: FloatArray,
    count: int,
) -> tuple[float, float]:
    """ν and b of the minimiser; a_l = min(0, (ν − B_l)/A), and a_y is minus their sum.

    norm: A > 0. own_curvature: D > A. excess_curvature: E > A. own: B_y. excess: F.
    rivals: B_l of the first ``count`` classes l ≠ y, at least one; sorted in place.
    """
    ordered = rivals[:count]
    ordered.sort()
    share = norm / own_curvature
    nu = multiplier(ordered, count, share * own, share)
    if share * (nu - own) <= excess:
        return nu, 0.0
    determinant = own_curvature * excess_curvature - norm * norm
    share = norm * excess_curvature / determinant
    shift = norm * (excess_curvature * own + norm * excess) / determinant
    nu = multiplier(ordered, count, shift, share)
    level = (excess_curvature * (nu - own) - norm * excess) / determinant
    return nu, max(0.0, (norm * level - excess) / excess_curvature)


@compiled
def margin_sweep(
    rows: Rows,
    labels: NDArray[np.int64],
    weight: float,
    band: float,
    excess: float,
    rivals: FloatArray,
    norms: FloatArray,
    order: NDArray[np.int64],
    classes: NDArray[np.int32],
    counts: NDArray[np.int32],
    slack: float,
    alpha: FloatArray,
    beta: FloatArray,
    W: FloatArray,
) -> int:
    """Exact block steps for the examples in ``order``, keeping W = W(α, β). Returns the row products.

    weight: c. rivals: M (n,). classes (n, K) and counts (n,): the active classes l ≠ y of each example;
    classes with a_l = 0 and B_l below ν by more than ``slack`` are removed.
    """
    K = alpha.shape[1]
    row = np.empty(W.shape[1], dtype=W.dtype)
    linear, scratch, work = np.empty(K), np.empty(K), 0
    for i in order:
        y, count, norm = labels[i], counts[i], norms[i]
        work += count + 1
        row_load(rows, i, row)
        a_y, b = alpha[i, y], beta[i]
        score = loaded_dot(rows, i, row, W[y])
        # ν at the current point; classes below it by more than the slack cannot become active soon.
        level = score + a_y / weight - slack
        kept = 0
        for p in range(count):
            k = classes[i, p]
            g = loaded_dot(rows, i, row, W[k]) + 1.0 - band
            if alpha[i, k] < 0.0 or g >= level:
                classes[i, kept] = k
                linear[kept] = g - norm * alpha[i, k]
                scratch[kept] = linear[kept]
                kept += 1
        counts[i] = kept
        own = score - norm * (a_y - b)
        margin = rivals[i] + 1.0 + band - own
        total = 0.0
        if kept:
            nu, found = solve_margin_block(
                norm, norm + 1.0 / weight, norm + 1.0 / (weight * excess), own, margin, scratch, kept
            )
            for p in range(kept):
                k = classes[i, p]
                value = min(0.0, (nu - linear[p]) / norm)
                total -= value
                step = value - alpha[i, k]
                if step != 0.0:
                    alpha[i, k] = value
                    loaded_axpy(rows, i, row, step, W[k])
        else:
            found = max(0.0, -margin / (norm + 1.0 / (weight * excess)))
        step = (total - a_y) - (found - b)
        alpha[i, y], beta[i] = total, found
        if step != 0.0:
            loaded_axpy(rows, i, row, step, W[y])
    return work


@compiled
def margin_terms(
    scores: FloatArray,
    labels: NDArray[np.int64],
    weight: float,
    band: float,
    excess: float,
    rivals: FloatArray,
    slack: float,
    alpha: FloatArray,
    beta: FloatArray,
    best: FloatArray,
    classes: NDArray[np.int32],
    counts: NDArray[np.int32],
) -> tuple[float, float, float]:
    """Losses of a block of rows for its M, largest KKT violation, largest |score|; updates active classes.

    scores: W φ, (b, K). rivals: M, (b,). best: receives max_{l≠y} s_l, (b,). classes, counts: overwritten; a
    row without active classes whose b is 0, and stays so, gets the count −1.
    """
    losses, worst, scale = 0.0, 0.0, 0.0
    for i in range(scores.shape[0]):
        y = labels[i]
        own = scores[i, y]
        top = -np.inf
        nu = own + alpha[i, y] / weight
        count = 0
        for k in range(scores.shape[1]):
            scale = max(scale, abs(scores[i, k]))
            if k == y:
                continue
            top = max(top, scores[i, k])
            above = scores[i, k] + 1.0 - band - nu
            worst = max(worst, abs(above) if alpha[i, k] < 0.0 else above)
            if alpha[i, k] < 0.0 or above >= -slack:
                classes[i, count] = k
                count += 1
        beyond = own - rivals[i] - 1.0 - band
        worst = max(worst, abs(beyond - beta[i] / (weight * excess)) if beta[i] > 0.0 else beyond)
        counts[i] = -1 if count == 0 and beta[i] == 0.0 and beyond < -slack else count
        best[i] = top
        short = max(0.0, 1.0 - band - own + top)
        losses += 0.5 * weight * (short * short + excess * max(0.0, beyond) ** 2)
    return losses, worst, scale
