"""How well a version answers for one class on labelled rows, with intervals of what is a share of rows."""

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

    n: its rows. f1: harmonic mean of precision and recall; None without a row of the class. auc: area under
    the ROC curve; None unless there are rows of the class and others. precision: of the yes answers those
    that are right; None without any. recall: of the rows of the class those that are accepted.
    false_positive_rate: of all others those that are accepted. Each None where there are no such rows.
    """

    n: int
    f1: float | None
    auc: float | None
    precision: Interval | None
    recall: Interval | None
    false_positive_rate: Interval | None

    @classmethod
    def of(cls, truth: BoolArray, yes: BoolArray, scores: FloatArray) -> ClassMeasures:
        """From truth, answers and scores (n,). Raises InvalidProblem for unequal lengths, or without rows."""
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
