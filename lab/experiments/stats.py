"""Bootstrap over test rows, and intervals of means and medians over classes.

The same rows are resampled for every class and method of a split, so the replicates of different classes and
methods belong together, and means, medians and differences over them have honest intervals.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from core.types import BoolArray, FloatArray
from lab.experiments.paper import MEASURES, Measure, Statistic

OVER_CLASSES: dict[Statistic, Callable[..., Any]] = {"mean": np.ma.mean, "median": np.ma.median}
_LEVEL = 0.95
_DIGITS = 5


def bootstrap(
    truth: BoolArray, decision: BoolArray, score: FloatArray, replicates: int, seed: int = 0
) -> dict[Measure, FloatArray]:
    """Accuracy, F and AUC in each replicate, (replicates,); NaN where a replicate leaves one undefined.

    truth, decision, score: (n,). The replicates depend on n and the seed only.
    """
    n = len(truth)
    random = np.random.default_rng([seed, n])
    order = np.argsort(score, kind="stable")
    starts = np.flatnonzero(np.r_[True, np.diff(score[order]) != 0.0])  # where a new score begins
    values = {measure: np.full(replicates, np.nan) for measure in MEASURES}
    for k in range(replicates):
        counts = np.bincount(random.integers(0, n, n), minlength=n)
        positives, accepted, right = counts @ truth, counts @ decision, counts @ (truth & decision)
        values["accuracy"][k] = counts @ (truth == decision) / n
        if positives:
            values["f1"][k] = 2.0 * right / (positives + accepted)
        if 0 < positives < n:
            yes, no = (np.add.reduceat((counts * side)[order], starts) for side in (truth, ~truth))
            # Pairs of a positive and a negative in the right order, ties half.
            values["auc"][k] = yes @ (np.cumsum(no) - 0.5 * no) / (positives * (n - positives))
    return values


def interval(replicates: FloatArray) -> tuple[float, float]:
    """The middle 95 % of the replicates that are defined; NaN without any."""
    defined = replicates[~np.isnan(replicates)]
    if not len(defined):
        return np.nan, np.nan
    low, high = np.quantile(defined, [(1 - _LEVEL) / 2, (1 + _LEVEL) / 2])
    return float(low), float(high)


def completed(replicates: FloatArray) -> FloatArray:
    """Each class's undefined replicates replaced by its next defined one, (classes, replicates).

    Where a class has a row or two, many replicates contain none of them. Without these the mean would be one
    over other classes, and its interval would lie beside it: so they are drawn given that the class is there.
    What is undefined depends on the rows drawn, not on the method: pairs stay pairs. A class that is never
    defined stays so.
    """
    filled = replicates.copy()
    for of_class in filled:
        holes = np.flatnonzero(np.isnan(of_class))
        defined = np.flatnonzero(~np.isnan(of_class))
        if len(holes) and len(defined):
            of_class[holes] = of_class[defined[np.searchsorted(defined, holes) % len(defined)]]
    return filled


def over_classes(replicates: Sequence[Any], statistic: Statistic = "mean") -> FloatArray:
    """The statistic over the classes of ``replicates`` (classes, replicates), (replicates,)."""
    masked = np.ma.masked_invalid(completed(np.array(replicates, dtype=np.float64)))
    over: FloatArray = np.ma.filled(OVER_CLASSES[statistic](masked, axis=0), np.nan)
    return over


def rounded(values: FloatArray) -> list[float | None]:
    """JSON-ready: an undefined value becomes None."""
    return [None if np.isnan(value) else round(float(value), _DIGITS) for value in values]
