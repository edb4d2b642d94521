"""Bootstrap over test rows: the same resampled rows for every class and method of a split.

So replicates of different classes and methods belong together, and means, medians and differences over them
have honest intervals.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from core.types import BoolArray, FloatArray
from experiments.paper import Measure

LEVEL = 0.95
_DIGITS = 5
_CELLS_AT_ONCE = 4_000_000


@dataclass(frozen=True, slots=True)
class Resampling:
    """How often, and from which seed."""

    replicates: int = 500
    seed: int = 0

    def measures(
        self, truth: BoolArray, decision: BoolArray, score: FloatArray
    ) -> dict[Measure, NDArray[np.float64]]:
        """Accuracy, F and AUC in each replicate, (replicates,); NaN where a replicate leaves one undefined.

        truth, decision, score: (n,). The replicates depend on n and the seed only.
        """
        n = len(truth)
        rng = np.random.default_rng([self.seed, n])
        order = np.argsort(score, kind="stable")
        starts = np.flatnonzero(np.r_[True, np.diff(score[order]) != 0.0])
        found: dict[Measure, list[FloatArray]] = {"accuracy": [], "f1": [], "auc": []}
        left = self.replicates
        while left:
            block = min(left, max(1, _CELLS_AT_ONCE // n))
            counts = np.stack([np.bincount(rng.integers(0, n, n), minlength=n) for _ in range(block)])
            found["accuracy"].append((counts @ (truth == decision)) / n)
            found["f1"].append(_f1(counts, truth, decision))
            found["auc"].append(_auc(counts[:, order], truth[order], starts))
            left -= block
        return {measure: np.concatenate(parts) for measure, parts in found.items()}


def interval(replicates: FloatArray) -> tuple[float, float] | None:
    """The middle 95 % of the replicates that are defined; None without any."""
    defined = replicates[~np.isnan(replicates)]
    if not len(defined):
        return None
    low, high = np.quantile(defined, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


def completed(replicates: FloatArray) -> FloatArray:
    """Each class's undefined replicates replaced by its next defined one, (classes, replicates).

    Where a class has a row or two, many replicates hold none of them. Left out, the mean over classes would
    be one over other classes, and its interval lie beside it: so these replicates are drawn given that the
    class is there. What is undefined depends on the rows drawn, not on the method: pairs stay pairs. A class
    that is never defined stays so.
    """
    found = replicates.copy()
    for of_class in found:
        holes = np.flatnonzero(np.isnan(of_class))
        defined = np.flatnonzero(~np.isnan(of_class))
        if len(holes) and len(defined):
            of_class[holes] = of_class[defined[np.searchsorted(defined, holes) % len(defined)]]
    return found


def rounded(values: FloatArray) -> list[float | None]:
    """JSON-ready: what is undefined is None."""
    return [None if np.isnan(value) else round(float(value), _DIGITS) for value in values]


def _f1(counts: NDArray[np.int64], truth: BoolArray, decision: BoolArray) -> FloatArray:
    right = counts @ (truth & decision).astype(np.int64)
    positives, said = counts @ truth.astype(np.int64), counts @ decision.astype(np.int64)
    return np.where(positives > 0, 2.0 * right / np.maximum(positives + said, 1), np.nan)


def _auc(counts: NDArray[np.int64], truth: BoolArray, starts: NDArray[np.intp]) -> FloatArray:
    """Share of pairs of a positive and a negative in the right order, ties half; columns by rising score.

    starts: where a new score begins.
    """
    positives = np.add.reduceat(counts * truth, starts, axis=1).astype(np.float64)
    negatives = np.add.reduceat(counts * ~truth, starts, axis=1).astype(np.float64)
    below = np.cumsum(negatives, axis=1) - 0.5 * negatives
    pairs = positives.sum(axis=1) * negatives.sum(axis=1)
    wins = (positives * below).sum(axis=1)
    areas: FloatArray = np.divide(wins, pairs, out=np.full(len(pairs), np.nan), where=pairs > 0)
    return areas
