"""Measures how well a version answers for one class on labelled rows, with intervals for shares of rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from core.model_selection.metrics import binary_metrics
from core.monitoring.interval import Interval
from core.monitoring.intervals import share_interval
from core.types import BoolArray, FloatArray


@dataclass(frozen=True, slots=True)
class ClassMeasures:
    """Measures of one class.

    n: number of rows of the class. f1: harmonic mean of precision and recall; None without rows of the class.
    auc: area under the ROC curve; None unless there are rows of the class and others. precision: share of
    right answers among yes answers. recall: share of accepted rows among those of the class.
    false_positive_rate: share of accepted rows among all others. Each share is None without such rows.
    """

    n: int
    f1: float | None
    auc: float | None
    precision: Interval | None
    recall: Interval | None
    false_positive_rate: Interval | None

    @classmethod
    def of(cls, truth: BoolArray, yes: BoolArray, scores: FloatArray) -> ClassMeasures:
        """The measures, from truth, answers and scores (n,).

        Raises InvalidProblem for unequal or no lengths.
        """
        metrics = binary_metrics(truth, yes, scores.astype(np.float64, copy=False))
        tp, fp, fn, tn = metrics.tp, metrics.fp, metrics.fn, metrics.tn
        return cls(
            tp + fn, metrics.f1, metrics.auc, _share(tp, tp + fp), _share(tp, tp + fn), _share(fp, fp + tn)
        )

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready, field by field."""
        shares = ("precision", "recall", "false_positive_rate")
        intervals = {name: getattr(self, name) for name in shares}
        of_shares = {name: None if one is None else one.as_dict() for name, one in intervals.items()}
        return {"n": self.n, "f1": self.f1, "auc": self.auc} | of_shares


def _share(hits: int, trials: int) -> Interval | None:
    return share_interval(hits, trials) if trials else None
