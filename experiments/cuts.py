"""Where the students of the open grid decide: one threshold for all classes, but where a class needs its own.

A threshold picked by the few positives of one class follows their luck; one for all classes does not. But a
class with a hundredth of the others' positives may have all its scores below it.
"""

from __future__ import annotations

import numpy as np

from core.types import BoolArray, FloatArray, IntArray

_CANDIDATES = 1000


def class_thresholds(truth: BoolArray, scores: FloatArray, fold_of: IntArray) -> FloatArray:
    """The threshold of each class, (T,): the shared one, or its own where that pays by a standard error.

    What its own would pay is measured honestly: on each fold with the threshold chosen on the other folds, as
    accuracy + F of the pooled folds, with the standard error of the jackknife that leaves out one fold.

    truth, scores: (T, n), each row with positives. fold_of: the fold that each example was held out in, (n,).
    """
    shared = shared_threshold(truth, scores)
    thresholds = np.full(len(truth), shared)
    folds = [fold_of == fold for fold in np.unique(fold_of)]
    for target, (own, score) in enumerate(zip(truth, scores, strict=True)):
        says = np.zeros(len(own), dtype=bool)
        for held_out in folds:
            elsewhere = own[~held_out]
            t = shared if not elsewhere.any() else _best(elsewhere[None], score[None, ~held_out], shared)
            says[held_out] = score[held_out] >= t
        gain = _value(own, says) - _value(own, score >= shared)
        left_out = [
            _value(own[~held_out], says[~held_out]) - _value(own[~held_out], score[~held_out] >= shared)
            for held_out in folds
        ]
        if gain > np.sqrt(len(folds) - 1.0) * np.std(left_out):
            thresholds[target] = _best(own[None], score[None], shared)
    return thresholds


def shared_threshold(truth: BoolArray, scores: FloatArray) -> float:
    """The threshold t with the best accuracy + F of "yes where score >= t", mean over classes.

    F alone buys recall with accuracy where classes are rare, accuracy alone says no to everything; Table 3
    asks for both. t is 0, the paper's, or a quantile of the scores; of equal ones the nearest to 0.

    truth, scores: (T, n), each row with positives.
    """
    return _best(truth, scores, 0.0)


def _best(truth: BoolArray, scores: FloatArray, standard: float) -> float:
    """Of the best thresholds the one nearest to ``standard``, which is a candidate too."""
    levels = np.linspace(0.0, 1.0, _CANDIDATES + 1)
    positives = scores[truth]
    # The scores of rare positives lie between two quantiles of all scores.
    rare = positives if len(positives) <= _CANDIDATES else np.empty(0)
    candidates = np.unique(np.concatenate([np.quantile(scores, levels), rare, [standard]]))
    value = _at_thresholds(truth, scores, candidates)
    equal = candidates[value >= value.max() - 1e-12]
    return float(equal[np.argmin(np.abs(equal - standard))])


def _value(truth: BoolArray, says: BoolArray) -> float:
    """accuracy + F; F is 0 where there is nothing to find and nothing said."""
    tp = int((truth & says).sum())
    return float(np.mean(truth == says)) + 2.0 * tp / max(1, int(truth.sum()) + int(says.sum()))


def _at_thresholds(truth: BoolArray, scores: FloatArray, candidates: FloatArray) -> FloatArray:
    """Mean over classes of accuracy + F at each candidate, (candidates,)."""
    value, n = np.zeros(len(candidates)), truth.shape[1]
    for own, score in zip(truth, scores, strict=True):
        positives = int(own.sum())
        said = n - np.searchsorted(np.sort(score), candidates, side="left")
        tp = positives - np.searchsorted(np.sort(score[own]), candidates, side="left")
        value += (n - positives - said + 2 * tp) / n + 2.0 * tp / np.maximum(1, said + positives)
    return value / len(truth)
