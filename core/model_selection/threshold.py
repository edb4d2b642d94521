"""The decision threshold: 0 as in the paper, or chosen on held-out scores."""

from __future__ import annotations

from dataclasses import dataclass
from typing import get_args

import numpy as np

from core.data.validation import out_of_bounds, refuse, unknown_choice
from core.errors import Fault, InvalidProblem
from core.model_selection.options import ThresholdRule
from core.types import BoolArray, FloatArray, IntArray


def choose_threshold(
    truth: BoolArray, scores: FloatArray, rule: ThresholdRule, budget: float | None = None
) -> float:
    """The threshold t that is best for "yes where score >= t" on the examples given.

    rule: ``"zero"`` gives 0. ``"accuracy"`` and ``"f1"`` maximise that measure. ``"fpr"`` finds the most true
    positives with a false-positive rate of at most ``budget``, in [0, 1).

    Candidates lie in the middle between two neighbouring scores. Of equally good ones the one in the widest
    gap is chosen, then the highest, because new examples are least likely to cross it. A threshold that
    rejects all examples is the next number above the largest score; one that accepts all is the smallest
    score.

    truth, scores: (n,). Raises InvalidProblem for an unknown rule, a missing budget, unequal lengths, scores
    that are not finite, and a truth with only one class.
    """
    refuse(
        unknown_choice("threshold.rule", rule, get_args(ThresholdRule)),
        out_of_bounds("threshold.budget", budget, 0.0, 1.0, open_high=True) if rule == "fpr" else None,
    )
    if rule == "zero":
        return 0.0
    _check_scores(truth, scores)
    cuts = _Cuts.of(truth, scores)
    value = cuts.values(rule, budget)
    best = np.flatnonzero(value == value.max())
    return cuts.threshold(int(best[np.argmax(cuts.gaps[best])]))


@dataclass(frozen=True, slots=True, eq=False)
class _Cuts:
    """All distinct thresholds, from "reject all" to "accept all".

    levels: the q distinct scores, falling. Cut c in 0..q accepts levels[:c].
    true_positives, false_positives: at each cut, (q + 1,). gaps: width of the gap that the cut lies in,
        (q + 1,); 0 for the first and the last cut.
    """

    levels: FloatArray
    true_positives: IntArray
    false_positives: IntArray
    gaps: FloatArray

    @classmethod
    def of(cls, truth: BoolArray, scores: FloatArray) -> _Cuts:
        levels, level_of = np.unique(-scores, return_inverse=True)
        positives = np.bincount(level_of, weights=truth, minlength=len(levels)).astype(np.int64)
        examples = np.bincount(level_of, minlength=len(levels))
        return cls(
            levels=-levels,
            true_positives=np.concatenate(([0], np.cumsum(positives))),
            false_positives=np.concatenate(([0], np.cumsum(examples - positives))),
            gaps=np.concatenate(([0.0], np.diff(levels), [0.0])),
        )

    def values(self, rule: ThresholdRule, budget: float | None) -> FloatArray:
        """Objective of the rule at each cut, (q + 1,); computed from integers, so that ties are exact."""
        tp, fp = self.true_positives, self.false_positives
        positives, negatives = int(tp[-1]), int(fp[-1])
        if rule == "accuracy":
            return (tp - fp).astype(np.float64)
        if rule == "f1":
            return 2.0 * tp / (tp + fp + positives)
        # Of the cuts with the most true positives the first has the fewest false ones.
        allowed = fp / negatives <= (0.0 if budget is None else budget)
        return np.where(allowed, tp - fp / (negatives + 1.0), -1.0)

    def threshold(self, cut: int) -> float:
        """A number t with levels[cut − 1] >= t > levels[cut]."""
        if cut == 0:
            return float(np.nextafter(self.levels[0], np.inf))
        above = float(self.levels[cut - 1])
        if cut == len(self.levels):
            return above
        below = float(self.levels[cut])
        middle = below + (above - below) / 2.0
        # Between neighbouring floats the middle rounds to one of them, and must not round to the lower.
        return middle if middle > below else above


def _check_scores(truth: BoolArray, scores: FloatArray) -> None:
    if not (truth.ndim == 1 and truth.shape == scores.shape):
        message = (
            f"truth and scores must be vectors of one length, got shapes {truth.shape} and {scores.shape}"
        )
        raise InvalidProblem(Fault("scores", "wrong_shape", message))
    if not np.isfinite(scores).all():
        row = int(np.flatnonzero(~np.isfinite(scores))[0])
        raise InvalidProblem(Fault("scores", "not_finite", f"scores must be finite; row {row} is not", row))
    if truth.all() or not truth.any():
        message = "a threshold can only be chosen on examples of the class and of the rest"
        raise InvalidProblem(Fault("truth", "single_class", message))
