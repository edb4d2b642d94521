"""Estimates precision, recall and false-positive rate in production, from feedback on sampled answers.

Each sample is weighted by the inverse of its sampling probability (Horvitz and Thompson 1952). Feedback that
people give without being asked has no such probability and is never used for a rate, because people mostly
report wrong answers. It is only used by ``most_precise``.
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
"""With fewer labelled rows, no rate is given."""
ENOUGH_ANSWERS: Final = 0.9
"""Share of the samples; if fewer are answered, the worst case is also given."""
_BINS: Final = 5


@dataclass(frozen=True, slots=True, eq=False)
class Samples:
    """Sampled answers of one class and people's feedback about them, all (n,). Raises InvalidProblem.

    accepted: whether the answer was yes. truth: whether the row is of the class, if known. known: whether
    somebody told the truth. inclusion: q, the sampling probability, in (0, 1]. probability: of the class, in
    [0, 1]; it is used to compensate for samples without feedback.
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
        """1/(q r) for the known samples, 0 for the others, (n,).

        r: share of known samples in the same cell. A cell has the yes or the no answers in one of five bins
        of the probability; if none of its samples is known, the same answers in all bins are used.
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

    interval: for a single evaluation at a fixed time; None with fewer than ``FEWEST`` rows. rows: number of
    labelled rows that the rate refers to. answered: share of the samples with feedback. bounds: the rate if
    all samples without feedback lowered it, and if all raised it (Manski 1989); None if ``ENOUGH_ANSWERS``
    of the samples, or none, have feedback.
    """

    interval: Interval | None
    rows: int
    answered: float
    bounds: tuple[float, float] | None = None

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return asdict(self)


def precision(samples: Samples, level: float = LEVEL) -> SampledRate:
    """Share of right answers among the yes answers, which must all have the same sampling probability.

    Raises InvalidProblem if their probabilities differ.
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
    """The largest possible precision if ``wrong`` of ``yes`` answers are reported wrong by anybody.

    Raises InvalidProblem.
    """
    refuse(not_whole("yes", yes, 1, MOST))
    refuse(not_whole("wrong", wrong, 0, yes))
    return 1.0 - wrong / yes


def _ratio(samples: Samples, side: bool, level: float) -> SampledRate:
    """R = Σ w a / Σ w over the rows whose truth is ``side``; a: whether the answer was yes.

    The standard error is that of a ratio of weighted sums, s² = Σ w² (a − R)² / (Σ w)² (Särndal, Swensson and
    Wretman, Model Assisted Survey Sampling, 1992, 5.6). The queries are treated as a sample of future
    queries, so the factor 1 − q is missing. The limits are those of R on the logit scale. If all answers are
    equal, s is 0, and the limits are the exact ones for (Σ w)²/Σ w² rows.
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
    """R if the rows without feedback lower it most, and if they raise it most; None without rows."""
    w, yes, known = 1.0 / samples.inclusion, samples.accepted, samples.known
    of_side = known & (samples.truth == side)
    hits, misses = (float(w[of_side & (yes == answer)].sum()) for answer in (True, False))
    open_yes, open_no = (float(w[~known & (yes == answer)].sum()) for answer in (True, False))
    low, high = hits + misses + open_no, hits + open_yes + misses
    return (hits / low, (hits + open_yes) / high) if low > 0.0 and high > 0.0 else None
