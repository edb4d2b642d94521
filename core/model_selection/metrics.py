"""Metrics of binary classifiers. Undefined values are None with a reason, never NaN."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass

import numpy as np

from core.errors import Fault, InvalidProblem
from core.types import BoolArray, FloatArray

CLASS_ABSENT = "The test part has no example of this class."
ONLY_THIS_CLASS = "The test part has no example of any other class."


@dataclass(frozen=True, slots=True)
class BinaryMetrics:
    """Measures of one binary classifier on one test part.

    accuracy: share of right answers, in [0, 1].
    f1: harmonic mean of precision and recall; None when the truth has no positive.
    auc: area under the ROC curve; None when the truth has one class only.
    tp, fp, tn, fn: the contingency table, in examples.
    reason: why a measure is None; None when all are defined.
    """

    accuracy: float
    f1: float | None
    auc: float | None
    tp: int
    fp: int
    tn: int
    fn: int
    reason: str | None = None

    def as_dict(self) -> dict[str, float | int | str | None]:
        """JSON-ready, field by field."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class MeanMetrics:
    """Means over classes; each over the classes for which it is defined, None if there is none."""

    accuracy: float | None
    f1: float | None
    auc: float | None
    classes: int

    def as_dict(self) -> dict[str, float | int | None]:
        """JSON-ready, field by field."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class RocCurve:
    """Points of a ROC curve, each array of shape (q,); an example is accepted where score >= threshold."""

    false_positive_rate: FloatArray
    true_positive_rate: FloatArray
    thresholds: FloatArray


def binary_metrics(truth: BoolArray, decision: BoolArray, score: FloatArray) -> BinaryMetrics:
    """Accuracy, F and AUC of decisions (n,) and scores (n,) against the truth (n,).

    Raises InvalidProblem for empty or unequal lengths, or scores that are not finite.
    """
    _check_lengths(truth, decision, score)
    tp = int(np.count_nonzero(truth & decision))
    fp, fn = int(np.count_nonzero(decision)) - tp, int(np.count_nonzero(truth)) - tp
    tn = len(truth) - tp - fp - fn
    has_positive, has_negative = tp + fn > 0, tn + fp > 0
    pairs = (tp + fn) * (tn + fp)
    return BinaryMetrics(
        accuracy=(tp + tn) / len(truth),
        f1=2 * tp / (2 * tp + fp + fn) if has_positive else None,
        auc=float(pairs_won(truth, score[None])[0]) / pairs if pairs else None,
        tp=tp,
        fp=fp,
        tn=tn,
        fn=fn,
        reason=None if has_positive and has_negative else ONLY_THIS_CLASS if has_positive else CLASS_ABSENT,
    )


def pairs_won(truth: BoolArray, scores: FloatArray) -> FloatArray:
    """Mann-Whitney's U of every row of ``scores`` (q, n) against the truth (n,); shape (q,).

    It is the number of pairs of a positive and a negative in which the positive has the higher score; a tie
    counts one half. Its share of all pairs is the area under the ROC curve.
    """
    won = np.empty(len(scores))
    for row, values in enumerate(scores):
        positives, negatives = values[truth], np.sort(values[~truth])
        won[row] = sum(np.searchsorted(negatives, positives, side).sum() for side in ("left", "right")) / 2.0
    return won


def roc(truth: BoolArray, score: FloatArray) -> RocCurve:
    """The ROC curve of scores (n,) against the truth (n,).

    Raises InvalidProblem for empty or unequal lengths, scores that are not finite, or a truth of one class
    only.
    """
    _check_lengths(truth, truth, score)
    if truth.all() or not truth.any():
        reason = ONLY_THIS_CLASS if truth.any() else CLASS_ABSENT
        raise InvalidProblem(Fault("truth", "single_class", reason))
    from sklearn.metrics import roc_curve  # importing it takes a second, and jobs do not need it

    false_positive_rate, true_positive_rate, thresholds = roc_curve(truth, score)
    # scikit-learn starts the curve at an infinite threshold, which JSON cannot represent.
    thresholds = np.minimum(thresholds, np.nextafter(np.max(score), np.inf))
    return RocCurve(false_positive_rate, true_positive_rate, thresholds)


def mean_metrics(metrics: Iterable[BinaryMetrics]) -> MeanMetrics:
    """Mean of each measure over the classes where it is defined."""
    rows = list(metrics)
    return MeanMetrics(
        accuracy=_mean(row.accuracy for row in rows),
        f1=_mean(row.f1 for row in rows),
        auc=_mean(row.auc for row in rows),
        classes=len(rows),
    )


def _mean(values: Iterable[float | None]) -> float | None:
    defined = [value for value in values if value is not None]
    return float(np.mean(defined)) if defined else None


def _check_lengths(truth: BoolArray, decision: BoolArray, score: FloatArray) -> None:
    if not (truth.ndim == 1 and truth.size > 0 and truth.shape == decision.shape == score.shape):
        message = (
            "truth, decision and score must be vectors of one length, at least 1;"
            f" got shapes {truth.shape}, {decision.shape} and {score.shape}"
        )
        raise InvalidProblem(Fault("truth", "wrong_shape", message))
    if not np.isfinite(score).all():
        row = int(np.flatnonzero(~np.isfinite(score))[0])
        raise InvalidProblem(Fault("score", "not_finite", f"score must be finite; row {row} is not", row))


def f1_shares(truth: BoolArray, decision: BoolArray) -> tuple[float, FloatArray]:
    """F in [0, 1] of decisions (n,), and each row's contribution to its deviation, (n,).

    F is N/D with N = 2 TP and D = 2 TP + FP + FN, which are sums over the rows. So to first order the rows
    contribute (N_i − F D_i)/D. The truth must contain a positive row.
    """
    numerator = 2.0 * (truth & decision)
    denominator = truth.astype(np.float64) + decision
    total = float(denominator.sum())
    f1 = float(numerator.sum()) / total
    return f1, (numerator - f1 * denominator) / total


def mean_f1_shares(decided: Iterable[tuple[BoolArray, BoolArray]]) -> tuple[float, FloatArray]:
    """Mean F of classes and the rows' shares in it, (n,). decided: truth and decisions (n,) of each class."""
    measured = [f1_shares(truth, decision) for truth, decision in decided]
    return float(np.mean([f1 for f1, _ in measured])), np.mean([shares for _, shares in measured], axis=0)


def paired_error(shares: FloatArray, others: FloatArray) -> float:
    """Standard error of the difference of two F, from the shares (n,) that the same rows have in each."""
    return float(np.sqrt(np.sum((shares - others) ** 2)))
