"""Score of a grid point and its standard error from held-out scores; never NaN.

Every metric of a fold is a ratio: F is 2 tp / (tp + fp + positives), accuracy is correct decisions / rows,
AUC is pairs in the right order / pairs of a positive and a negative row. The score of a point is the mean of
the ratios over the folds, with the standard error of that mean.

A class with fewer rows than folds is missing from some folds, where F is uninformative and AUC undefined.
Such a class is evaluated on the pooled folds: the ratio of the sums over folds, with the standard error of
the jackknife that leaves out one fold at a time, sqrt((k−1)/k Σ_j (x_j − x̄)²). Pairs are still counted
within folds, because the scores of two students are not comparable. A ratio with denominator 0 is 0.

A threshold is biased if it is evaluated on the rows that it was chosen on. So each fold is evaluated at the
threshold chosen on the other folds (at 0 if all rows of these are on one side). The bias of choosing the best
of many points remains.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from core.model_selection.metrics import pairs_won
from core.model_selection.options import Metric, ThresholdRule
from core.model_selection.threshold import choose_threshold
from core.run import Run
from core.types import BoolArray, FloatArray, IntArray


@dataclass(frozen=True, slots=True)
class Measure:
    """The objective of a search: a metric at the threshold of a rule. AUC needs no threshold.

    budget, confidence: for the rule ``"fpr"``, see ``choose_threshold``.
    """

    metric: Metric = "f1"
    rule: ThresholdRule = "zero"
    budget: float = 0.01
    confidence: float | None = None

    def threshold(self, truth: BoolArray, scores: NDArray[np.floating]) -> float:
        """The threshold that the rule chooses from truth (n,) and scores (n,). Raises InvalidProblem."""
        return choose_threshold(truth, scores, self.rule, self.budget, self.confidence)


@dataclass(frozen=True, slots=True, eq=False)
class HeldOutRows:
    """Held-out rows: truth (r,) and fold of each (r,), with at least two folds.

    pooled: whether some fold of the search lacks the class or the other classes.
    """

    truth: BoolArray
    fold_of: IntArray
    pooled: bool

    def scores_of(
        self, values: NDArray[np.floating], measure: Measure, run: Run = Run()
    ) -> tuple[FloatArray, FloatArray]:
        """Score and standard error of each point, (points,) both, from its held-out scores (points, r).

        run: checked for a cancel between the choices of thresholds, which take most of the time.
        """
        counted = [self._count(values, fold, measure, run) for fold in np.unique(self.fold_of)]
        over = np.array([numerator for numerator, _ in counted])
        under = np.array([np.broadcast_to(denominator, over.shape[1]) for _, denominator in counted])
        k = len(counted)
        if not self.pooled:
            ratios = _ratio(over, under)
            return ratios.mean(axis=0), ratios.std(axis=0, ddof=1) / np.sqrt(k)
        total_over, total_under = over.sum(axis=0), under.sum(axis=0)
        left_out = _ratio(total_over - over, total_under - under)
        return _ratio(total_over, total_under), np.sqrt(k - 1.0) * left_out.std(axis=0)

    def _count(
        self, values: NDArray[np.floating], fold: int, measure: Measure, run: Run
    ) -> tuple[FloatArray, FloatArray | float]:
        """Numerator (points,) and denominator, (points,) or one for all, of the metric in one fold."""
        inside = self.fold_of == fold
        truth, own = self.truth[inside], values[:, inside]
        positives, n = int(truth.sum()), len(truth)
        if measure.metric == "auc":
            return pairs_won(truth, own), float(positives * (n - positives))
        says = own >= self._thresholds(values, ~inside, measure, run)[:, None]
        tp = (says & truth).sum(axis=1).astype(np.float64)
        said = says.sum(axis=1).astype(np.float64)
        if measure.metric == "accuracy":
            return n - positives - said + 2.0 * tp, float(n)
        return 2.0 * tp, said + positives

    def _thresholds(
        self,
        values: NDArray[np.floating],
        others: BoolArray,
        measure: Measure,
        run: Run,
    ) -> FloatArray:
        """Each point's threshold for a fold, chosen on the rows of the other folds, (points,)."""
        truth = self.truth[others]
        thresholds = np.zeros(len(values))
        if measure.rule == "zero" or truth.all() or not truth.any():
            return thresholds
        for point, row in enumerate(values):
            run.check_cancel()
            thresholds[point] = measure.threshold(truth, row[others])
        return thresholds


def _ratio(over: FloatArray, under: FloatArray) -> FloatArray:
    return np.divide(over, under, out=np.zeros(over.shape), where=under > 0)
