"""Precision, recall and false-positive rate in production, from feedback on answers that were sampled.

Each sample has the probability with which it was chosen, whose inverse weighs it (Horvitz and Thompson 1952).
Feedback that somebody gave unasked has none, and never enters a rate: who reports, reports what is wrong. Of
it only ``most_precise`` follows.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np
from scipy.special import expit, logit, ndtri

from core.data.validation import not_whole, refuse
from core.errors import Fault, InvalidProblem
from core.monitoring.interval import LEVEL, Interval
from core.monitoring.intervals import MOST, exact_ends, share_interval
from core.types import BoolArray, FloatArray

FEWEST: Final = 10
"""Labelled rows that a rate is a share of, below which there is none."""
ENOUGH_ANSWERS: Final = 0.9
"""Of the samples; with a smaller share the worst case is told, too."""
_BINS: Final = 5


@dataclass(frozen=True, slots=True, eq=False)
class Samples:
    """Sampled answers of one class and what people said of them, all (n,). Raises InvalidProblem.

    accepted: whether the answer was yes. truth: whether the row is of the class, where it is known. known:
    whether somebody said so. inclusion: q, the probability that it was sampled with, in (0, 1]. probability:
    of the class, in [0, 1], by which samples without an answer are made up for.
    """

    accepted: BoolArray
    truth: BoolArray
    known: BoolArray
    inclusion: FloatArray
    probability: FloatArray

    def __post_init__(self) -> None:
        arrays = (self.accepted, self.truth, self.known, self.inclusion, self.probability)
        if self.accepted.ndim != 1 or any(one.shape != self.accepted.shape for one in arrays):
            message = "all arrays of samples must be vectors of one length"
            raise InvalidProblem(Fault("accepted", "wrong_shape", message))
        for name, low in (("inclusion", np.nextafter(0.0, 1.0)), ("probability", 0.0)):
            values = getattr(self, name)
            if not ((values >= low) & (values <= 1.0)).all():
                raise InvalidProblem(Fault(name, "out_of_bounds", f"{name} must lie between 0 and 1"))

    def weights(self) -> FloatArray:
        """1/(q r) of the known samples, 0 of others, (n,).

        r: the share that is known of the samples in the same cell, of yes or no answers in five bins of the
        probability; in a cell without any, of the same answers in all bins.
        """
        bins = np.minimum((_BINS * self.probability).astype(np.int64), _BINS - 1)
        cells = np.where(self.accepted, _BINS + bins, bins)
        sampled, known = (np.bincount(cells[rows], minlength=2 * _BINS) for rows in (slice(None), self.known))
        side = np.arange(2 * _BINS) // _BINS
        lost = (sampled > 0) & (known == 0)
        weights = np.zeros(len(cells))
        own = known[cells] > 0
        weights[own & self.known] = (sampled / np.maximum(known, 1))[cells][own & self.known]
        for one in (0, 1):
            left = sampled[lost & (side == one)].sum()
            rows = self.known & (side[cells] == one)
            if left and rows.any():
                weights[rows] *= 1.0 + left / (sampled[side == one].sum() - left)
        return weights / self.inclusion


@dataclass(frozen=True, slots=True)
class SampledRate:
    """A rate in production.

    interval: at a fixed time, for one look; None with fewer than ``FEWEST`` rows. rows: labelled rows that
    the rate is a share of. answered: the share of the samples that somebody answered. bounds: the rate if all
    samples without an answer spoke against it, and for it (Manski 1989); None where ``ENOUGH_ANSWERS`` were
    answered, or none.
    """

    interval: Interval | None
    rows: int
    answered: float
    bounds: tuple[float, float] | None = None

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return asdict(self)


def precision(samples: Samples, level: float = LEVEL) -> SampledRate:
    """Share of right ones among the yes answers, which all have the same inclusion probability.

    Raises InvalidProblem for yes answers with several.
    """
    yes = samples.accepted
    if len(np.unique(samples.inclusion[yes])) > 1:
        message = "all yes answers must be sampled with the same probability"
        raise InvalidProblem(Fault("inclusion", "unequal", message))
    known = yes & samples.known
    rows, right = int(known.sum()), int((known & samples.truth).sum())
    sampled = int(yes.sum())
    interval = share_interval(right, rows, level) if rows >= FEWEST else None
    answered = rows / sampled if sampled else 1.0
    bounds = (right / sampled, (right + sampled - rows) / sampled) if answered < ENOUGH_ANSWERS else None
    return SampledRate(interval, rows, answered, bounds)


def recall(samples: Samples, level: float = LEVEL) -> SampledRate:
    """Share of yes answers among the rows of the class, see ``_ratio``."""
    return _ratio(samples, True, level)


def false_positive_rate(samples: Samples, level: float = LEVEL) -> SampledRate:
    """Share of yes answers among the rows of other classes, see ``_ratio``."""
    return _ratio(samples, False, level)


def most_precise(yes: int, wrong: int) -> float:
    """The largest precision that reports of ``wrong`` of ``yes`` answers leave, whoever reported.

    Raises InvalidProblem.
    """
    refuse(not_whole("yes", yes, 1, MOST))
    refuse(not_whole("wrong", wrong, 0, yes))
    return 1.0 - wrong / yes


def _ratio(samples: Samples, side: bool, level: float) -> SampledRate:
    """R = Σ w a / Σ w over the rows whose truth is ``side``; a: whether the answer was yes.

    The standard error is that of a ratio of weighted sums, s² = Σ w² (a − R)² / (Σ w)² (Särndal, Swensson and
    Wretman, Model Assisted Survey Sampling, 1992, 5.6), with the queries themselves as a sample of what
    comes: so without the factor 1 − q. The ends are those of R on the logit scale. Where all such answers are
    the same, s is 0, and the ends are exact ones of (Σ w)²/Σ w² rows.
    """
    weights = samples.weights()
    rows = samples.known & (samples.truth == side)
    w, a = weights[rows], samples.accepted[rows]
    answered = float(samples.known.mean()) if len(samples.known) else 1.0
    bounds = _bounds(samples, side) if answered < ENOUGH_ANSWERS else None
    if len(w) < FEWEST:
        return SampledRate(None, len(w), answered, bounds)
    total = w.sum()
    share = float((w * a).sum() / total)
    if a.all() or not a.any():
        size = float(total**2 / (w**2).sum())
        low, high = exact_ends(share * size, size, (1.0 - level) / 2.0)
        interval = Interval(share, float(low), float(high), "weighted_exact", level)
        return SampledRate(interval, len(w), answered, bounds)
    error = np.sqrt((w**2 * (a - share) ** 2).sum()) / total
    half = ndtri((1.0 + level) / 2.0) * error / (share * (1.0 - share))
    low, high = expit(logit(share) - half), expit(logit(share) + half)
    return SampledRate(
        Interval(share, float(low), float(high), "weighted_logit", level), len(w), answered, bounds
    )


def _bounds(samples: Samples, side: bool) -> tuple[float, float] | None:
    """R if the rows without an answer are those that lower it most, and raise it most; None without any
    row.
    """
    w, yes, known = 1.0 / samples.inclusion, samples.accepted, samples.known
    of_side = known & (samples.truth == side)
    hits, misses = (float(w[of_side & (yes == answer)].sum()) for answer in (True, False))
    open_yes, open_no = (float(w[~known & (yes == answer)].sum()) for answer in (True, False))
    low, high = hits + misses + open_no, hits + open_yes + misses
    return (hits / low, (hits + open_yes) / high) if low > 0.0 and high > 0.0 else None
