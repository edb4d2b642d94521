"""The curve of a student: what it would answer at other thresholds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stms_client.cards import Facts, Shown


@dataclass(frozen=True, slots=True, repr=False)
class Curve(Shown):
    """At most 201 exact points of a ROC curve on the test part, by descending threshold.

    At ``thresholds[i]`` the student accepts ``tp[i]`` of the ``positives`` rows of its class and ``fp[i]`` of
    the ``negatives`` others. threshold: the one in use, None if it is not known.
    """

    label: str
    method: str
    positives: int
    negatives: int
    thresholds: Sequence[float]
    tp: Sequence[int]
    fp: Sequence[int]
    threshold: float | None = None

    @classmethod
    def of(cls, document: Mapping[str, Any], label: str, threshold: float | None) -> Curve:
        """From JSON."""
        names = ("method", "positives", "negatives", "thresholds", "tp", "fp")
        return cls(label=label, threshold=threshold, **{name: document[name] for name in names})

    def _facts(self) -> Facts:
        counts = {"points": len(self.thresholds), "positives": self.positives, "negatives": self.negatives}
        return {"label": self.label, "method": self.method} | counts | {"threshold": self.threshold}

    @property
    def recall(self) -> list[float]:
        """Share of the rows of the class that are found, at each threshold: the true-positive rate."""
        return [_share(tp, self.positives) for tp in self.tp]

    @property
    def false_positive_rate(self) -> list[float]:
        """Share of the other rows that are accepted, at each threshold."""
        return [_share(fp, self.negatives) for fp in self.fp]

    @property
    def precision(self) -> list[float]:
        """Share of the accepted rows that are of the class, at each threshold; 1 where none is accepted."""
        return [_share(tp, tp + fp, 1.0) for tp, fp in zip(self.tp, self.fp, strict=True)]

    @property
    def f1(self) -> list[float]:
        """Harmonic mean of precision and recall at each threshold."""
        return [_share(2 * tp, tp + fp + self.positives) for tp, fp in zip(self.tp, self.fp, strict=True)]

    def point_at(self, threshold: float) -> int:
        """The number of the last point whose threshold is not below this one, or of the first point."""
        return max(sum(value >= threshold for value in self.thresholds) - 1, 0)

    def at(self, *, false_positive_rate: float) -> float:
        """The lowest threshold that accepts at most this share of the other rows.

        Raises ValueError if none of the points does.
        """
        kept = [
            threshold
            for threshold, share in zip(self.thresholds, self.false_positive_rate, strict=True)
            if share <= false_positive_rate
        ]
        if not kept:
            raise ValueError(f"no threshold accepts at most {false_positive_rate:.4g} of the other rows")
        return kept[-1]

    def cheapest(self, miss: float = 1.0) -> float:
        """The threshold of lowest cost. miss: cost of a missed row of the class, in false positives."""
        costs = [fp + miss * (self.positives - tp) for tp, fp in zip(self.tp, self.fp, strict=True)]
        return self.thresholds[costs.index(min(costs))]


def _share(part: int, whole: int, otherwise: float = 0.0) -> float:
    return part / whole if whole else otherwise
