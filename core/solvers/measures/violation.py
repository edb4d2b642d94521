"""Losses of whole label vectors, and the vector that violates its margin most.

Joachims, A support vector method for multivariate performance measures (ICML 2005). With scores s_i of the
rows, a label vector ȳ' competes with the true ȳ by

    V(ȳ') = Δ(ȳ', ȳ) − 1/n Σ_{y'_i ≠ y_i} y_i s_i

where Δ is 1 minus the measure, and max_ȳ' V is an upper bound of the loss of the signs of s. With the error
rate, it is the mean hinge loss. Among all vectors with the same true positives a and false positives b, the
best accepts the a positive and the b other rows of the largest scores, so the scores are sorted once and only
(a, b) are searched: no search at all for the error rate; one number where a + b = k is given; and for F1 the
best b of each a by bisection, as Δ and the sum of the b largest scores are both concave in b.

If k is not the number P of positive rows, ȳ itself does not accept k rows, and V as above bounds nothing:
equal scores, all high for k < P or all low for k > P, have no loss. For k < P, precision at k instead uses
vectors that accept P rows, with Δ = b/k: at worst, the b false ones are among the first k. Otherwise ȳ' is
compared with the vectors of k rows in which t = min(P − a, b) of its b false positives are replaced by t of
its P − a rejected positives, and with the mean over all of these:

    V(ȳ') = Δ(ȳ', ȳ) − t/n (mean of s_i over rejected positives − mean of s_j over false positives)

The rows with the largest scores have at least the sum of any others of the same number, so max V is an upper
bound of the loss; for k = P all these are equal.

ROC area has a label for each pair of a positive and another row: Δ is the share of swapped pairs, and V is
their mean hinge loss [1 − s_i + s_j]_+ in the same way.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from core.types import BoolArray, FloatArray, IntArray

Measure: TypeAlias = Literal["error", "f1", "prbep", "precision_at_k", "recall_at_k", "roc_area"]


@dataclass(frozen=True, slots=True, eq=False)
class Violation:
    """A label vector, given by its loss Δ and c (n,) with V = Δ − c·s at all scores s (n,)."""

    loss: float
    coefficients: FloatArray

    def value(self, scores: FloatArray) -> float:
        """V at scores (n,)."""
        return self.loss - float(self.coefficients @ scores)


def most_violated(measure: Measure, positive: BoolArray, scores: FloatArray, k: int) -> Violation:
    """The label vector with the largest V.

    positive: true labels, (n,), with both values. scores: (n,). k: number of rows that precision and recall
    at k accept, in [1, n]; PRBEP accepts as many as are positive, the other measures any number.
    """
    if measure == "error":
        signs = np.where(positive, 1.0, -1.0)
        flipped = signs * scores < 1.0
        return Violation(float(flipped.mean()), signs * flipped / len(scores))
    order = np.argsort(-scores, kind="stable")
    if measure == "roc_area":
        return _swapped_pairs(positive, scores, order)
    accepted, others = order[positive[order]], order[~positive[order]]
    gained = np.concatenate([[0.0], np.cumsum(scores[accepted])]) / len(scores)
    taken = np.concatenate([[0.0], np.cumsum(scores[others])]) / len(scores)
    lost = gained - gained[-1]  # minus the scores of the P − a rejected positives
    if measure == "f1":
        a = np.arange(len(accepted) + 1)
        b = _false_positives_of_f1(a, scores[others] / len(scores))
        losses = 1.0 - 2.0 * a / (a + len(accepted) + b)
        swaps = np.ones((2, len(a)))
    else:
        k = len(accepted) if measure == "prbep" else k
        rows = max(k, len(accepted)) if measure == "precision_at_k" else k
        a = np.arange(max(0, rows - len(others)), min(len(accepted), rows) + 1)
        b = rows - a
        losses = b / k if measure == "precision_at_k" else 1.0 - a / len(accepted)
        flips = np.stack([len(accepted) - a, b])
        swaps = flips.min(axis=0) / np.maximum(flips, 1)
    best = int(np.argmax(losses + swaps[0] * lost[a] + swaps[1] * taken[b]))
    coefficients = np.zeros(len(scores))
    coefficients[accepted[a[best] :]] = swaps[0, best] / len(scores)
    coefficients[others[: b[best]]] = -swaps[1, best] / len(scores)
    return Violation(float(losses[best]), coefficients)


def best_cut(measure: Measure, positive: BoolArray, scores: FloatArray, k: int) -> float:
    """The score from which rows are accepted for the best measure, half-way to the next score.

    F1: where F1 is largest on these rows. PRBEP and measures at k: after the k largest scores, with k as in
    ``most_violated``. 0 for the error rate, whose bound has its cut at 0, and for ROC area, which has no cut.
    """
    if measure in ("error", "roc_area"):
        return 0.0
    order = np.argsort(-scores, kind="stable")
    falling = np.append(scores[order], 2.0 * scores[order[-1]] - scores[order[0]])
    last = (int(positive.sum()) if measure == "prbep" else k) - 1
    if measure == "f1":
        values = np.cumsum(positive[order]) / (np.arange(1, len(scores) + 1) + positive.sum())
        last = int(np.argmax(np.where(np.diff(falling) < 0.0, values, -1.0)))
    return float(falling[last : last + 2].mean())


def _false_positives_of_f1(a: IntArray, others: FloatArray) -> IntArray:
    """The best b for each a, (P + 1,): as long as V = 1 − 2a/(a + P + b) + Σ of the b largest others rises.

    others: scores divided by n of the rows that are not positive, falling.
    """
    low, high = np.zeros_like(a), np.full_like(a, len(others))
    size = a + a[-1]
    while (searching := low < high).any():
        middle = np.where(searching, (low + high) // 2, 0)
        gain = 2.0 * a / ((size + middle) * (size + middle + 1.0)) + others[middle]
        rises = searching & (gain > 0.0)
        low = np.where(rises, middle + 1, low)
        high = np.where(searching & ~rises, middle, high)
    return low


def _swapped_pairs(positive: BoolArray, scores: FloatArray, order: IntArray) -> Violation:
    """The pairs with s_i − s_j < 1, counted by bisection in the sorted scores."""
    own, others = scores[order][positive[order]][::-1], scores[order][~positive[order]][::-1]
    pairs = len(own) * len(others)
    above = len(others) - np.searchsorted(others, scores[positive] - 1.0, side="right")
    below = np.searchsorted(own, scores[~positive] + 1.0, side="left")
    coefficients = np.empty(len(scores))
    coefficients[positive] = above / pairs
    coefficients[~positive] = -below / pairs
    return Violation(float(above.sum() / pairs), coefficients)
