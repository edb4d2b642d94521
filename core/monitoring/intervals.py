"""Confidence intervals of shares and of Poisson rates."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from scipy.special import betainccinv, betaincinv, gammainccinv, gammaincinv
from scipy.stats import binomtest

from core.data.validation import not_whole, out_of_bounds, refuse
from core.monitoring.interval import LEVEL, Interval
from core.types import FloatArray

FEW: Final = 40
"""With fewer trials ``share_interval`` is exact, because Wilson's interval may cover clearly less than its
level.
"""
MOST: Final = 2**53
"""Largest count; float64 represents all whole numbers up to it."""


def exact_ends(hits: Any, trials: Any, alpha: Any) -> tuple[FloatArray, FloatArray]:
    """Clopper-Pearson limits (1934), each of which is wrong with probability ``alpha`` at most.

    hits, trials: arrays or numbers that broadcast, 0 <= hits <= trials. They need not be whole numbers,
    because effective sample sizes are not. The lower limit is 0 without hits, the upper limit 1 without
    misses.
    """
    hits, trials = (np.asarray(counts, dtype=np.float64) for counts in (hits, trials))
    misses = trials - hits
    low = np.where(hits > 0.0, betaincinv(np.maximum(hits, 1e-300), misses + 1.0, alpha), 0.0)
    high = np.where(misses > 0.0, betainccinv(hits + 1.0, np.maximum(misses, 1e-300), alpha), 1.0)
    return low, high


def exact_interval(hits: int, trials: int, level: float = LEVEL) -> Interval:
    """The exact interval of a share (Clopper and Pearson 1934). Raises InvalidProblem for impossible
    counts.
    """
    _check(hits, trials, level)
    low, high = exact_ends(hits, trials, (1.0 - level) / 2.0)
    return Interval(hits / trials, float(low), float(high), "exact", level)


def wilson_interval(hits: int, trials: int, level: float = LEVEL) -> Interval:
    """The score interval of a share (Wilson 1927). Raises InvalidProblem for impossible counts."""
    _check(hits, trials, level)
    ends = binomtest(hits, trials).proportion_ci(level, "wilson")
    return Interval(hits / trials, float(ends.low), float(ends.high), "wilson", level)


def share_interval(hits: int, trials: int, level: float = LEVEL) -> Interval:
    """Wilson's interval, or the exact one with fewer than ``FEW`` trials. Raises InvalidProblem."""
    return (exact_interval if trials < FEW else wilson_interval)(hits, trials, level)


def rate_interval(count: int, exposure: float, level: float = LEVEL) -> Interval:
    """The exact interval of a Poisson rate (Garwood 1936): events per unit of exposure.

    count: number of observed events, at least 0. exposure: length of the observation in any unit, above 0.
    Raises InvalidProblem.
    """
    refuse(
        not_whole("count", count, 0, MOST),
        out_of_bounds("exposure", exposure, 0.0, np.inf, open_low=True, open_high=True),
        out_of_bounds("level", level, 0.0, 1.0, open_low=True, open_high=True),
    )
    alpha = (1.0 - level) / 2.0
    low = float(gammaincinv(count, alpha)) if count else 0.0
    high = float(gammainccinv(count + 1, alpha))
    return Interval(count / exposure, low / exposure, high / exposure, "poisson", level)


def largest_mean(most: int, confidence: float = LEVEL) -> float:
    """The largest mean of a Poisson count that exceeds ``most`` with probability 1 − ``confidence`` at most.

    For 20 a day and 95 % it is 14.07. Raises InvalidProblem.
    """
    refuse(
        not_whole("most", most, 0, MOST),
        out_of_bounds("confidence", confidence, 0.0, 1.0, open_low=True, open_high=True),
    )
    # P(N <= c) = Q(c + 1, mean), which falls with the mean.
    return float(gammainccinv(most + 1, confidence))


def _check(hits: int, trials: int, level: float) -> None:
    refuse(
        not_whole("trials", trials, 1, MOST),
        out_of_bounds("level", level, 0.0, 1.0, open_low=True, open_high=True),
    )
    refuse(not_whole("hits", hits, 0, trials))
