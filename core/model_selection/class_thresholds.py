"""Thresholds after a joint search: one that all classes share, or one for each class."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np

from core.model_selection.contest import is_better, mean_f1
from core.model_selection.options import ThresholdRule
from core.model_selection.threshold import choose_threshold
from core.types import BoolArray, FloatArray, IntArray

OWN_RULES: Final[frozenset[ThresholdRule]] = frozenset({"accuracy", "f1", "expected_f1"})
"""Rules that a shared threshold may replace; the other rules are promises to the user."""

_THRESHOLDS = 1000


@dataclass(frozen=True, slots=True)
class ThresholdComparison:
    """Mean F on held-out rows, in [0, 1], with one threshold for all classes and with one for each.

    threshold: the shared one, if it is clearly better; None if each class has its own by the run's rule.
    """

    shared_f1: float
    own_f1: float
    threshold: float | None

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return asdict(self)


def compare_thresholds(
    labels: IntArray, targets: Sequence[int], scores: FloatArray, fold_of: IntArray, rule: ThresholdRule
) -> ThresholdComparison:
    """Compare one threshold for all classes with one for each class by ``rule``.

    For every fold, both are chosen on the other folds. The shared threshold must be better by two standard
    errors of the difference (``contest.is_better``); it is then chosen again on all rows.

    labels: class codes, (n,). targets: the T classes. scores: of each class and row by students that were not
    fitted to the row, (T, n). fold_of: the fold that each row was held out in, (n,).
    """
    truth = labels == np.asarray(targets)[:, None]
    shared, own = np.zeros(truth.shape, dtype=bool), np.zeros(truth.shape, dtype=bool)
    for fold in np.unique(fold_of):
        inside = fold_of == fold
        known, others = truth[:, ~inside], scores[:, ~inside]
        present = known.any(axis=1) & ~known.all(axis=1)
        one = shared_threshold(known[present], others[present]) if present.any() else 0.0
        shared[:, inside] = scores[:, inside] >= one
        each = [
            choose_threshold(truths, values, rule) if there else 0.0
            for truths, values, there in zip(known, others, present, strict=True)
        ]
        own[:, inside] = scores[:, inside] >= np.array(each)[:, None]
    (shared_f1, new), (own_f1, old) = (mean_f1(labels, says, targets) for says in (shared, own))
    better = is_better(shared_f1, new, own_f1, old)
    return ThresholdComparison(shared_f1, own_f1, shared_threshold(truth, scores) if better else None)


def class_thresholds(truth: BoolArray, scores: FloatArray, fold_of: IntArray) -> FloatArray:
    """The threshold of each class, (T,): the shared one, or its own if that gains more than a standard error.

    A threshold chosen on the few positives of one class is noisy, while one for all classes is not. But if a
    class has a hundredth of the others' positives, all its scores may be below the shared threshold. The gain
    of an own threshold is the gain of accuracy + F of the pooled folds, with the threshold for each fold
    chosen on the other folds; its standard error is that of the jackknife that leaves out one fold.

    truth, scores: (T, n), each row with positives. fold_of: the fold that each example was held out in, (n,).
    """
    shared = shared_threshold(truth, scores)
    thresholds = np.full(len(truth), shared)
    folds = [fold_of == fold for fold in np.unique(fold_of)]
    for target, (own, score) in enumerate(zip(truth, scores, strict=True)):
        decision = np.zeros(len(own), dtype=bool)
        for held_out in folds:
            others = own[~held_out]
            t = shared if not others.any() else _best_threshold(others[None], score[None, ~held_out], shared)
            decision[held_out] = score[held_out] >= t
        gain = _value(own, decision) - _value(own, score >= shared)
        left_out = [
            _value(own[~held_out], decision[~held_out]) - _value(own[~held_out], score[~held_out] >= shared)
            for held_out in folds
        ]
        if gain > np.sqrt(len(folds) - 1.0) * np.std(left_out):
            thresholds[target] = _best_threshold(own[None], score[None], shared)
    return thresholds


def shared_threshold(truth: BoolArray, scores: FloatArray) -> float:
    """The threshold t with the best accuracy + F of "yes where score >= t", mean over classes.

    F alone sacrifices accuracy for recall if classes are rare, and accuracy alone rejects every row; Table 3
    needs both. t is the paper's 0 or a quantile of the scores; among equally good ones the nearest to 0.

    truth, scores: (T, n), each row with positives.
    """
    return _best_threshold(truth, scores, 0.0)


def _best_threshold(truth: BoolArray, scores: FloatArray, standard: float) -> float:
    """The best threshold; among equally good ones the nearest to ``standard``, which is a candidate too."""
    levels = np.linspace(0.0, 1.0, _THRESHOLDS + 1)
    positives = scores[truth]
    # Scores of rare positives may lie between two quantiles of all scores.
    rare = positives if len(positives) <= _THRESHOLDS else np.empty(0)
    candidates = np.unique(np.concatenate([np.quantile(scores, levels), rare, [standard]]))
    value = _at_thresholds(truth, scores, candidates)
    equal = candidates[value >= value.max() - 1e-12]
    return float(equal[np.argmin(np.abs(equal - standard))])


def _value(truth: BoolArray, decision: BoolArray) -> float:
    """accuracy + F; F is 0 if there are neither positives nor accepted rows."""
    tp = int((truth & decision).sum())
    return float(np.mean(truth == decision)) + 2.0 * tp / max(1, int(truth.sum()) + int(decision.sum()))


def _at_thresholds(truth: BoolArray, scores: FloatArray, candidates: FloatArray) -> FloatArray:
    """Mean over classes of accuracy + F at each candidate, (candidates,)."""
    value, n = np.zeros(len(candidates)), truth.shape[1]
    for own, score in zip(truth, scores, strict=True):
        positives = int(own.sum())
        accepted = n - np.searchsorted(np.sort(score), candidates, side="left")
        tp = positives - np.searchsorted(np.sort(score[own]), candidates, side="left")
        value += (n - positives - accepted + 2 * tp) / n + 2.0 * tp / np.maximum(1, accepted + positives)
    return value / len(truth)
