"""What a student would answer at other thresholds, computed from its curve on the test part."""

from __future__ import annotations

import json
import zlib
from base64 import b64decode, b64encode
from bisect import bisect_right
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from app.domain.entities import Json
from core.types import BoolArray

MOST_PAIRED_CLASSES: Final = 100
"""Answers of each row are stored for students of jobs with at most this many classes."""


@dataclass(frozen=True, slots=True)
class Confusion:
    """Rows of the test part by truth and answer. Shares are None where nothing is divided."""

    tp: int
    fp: int
    tn: int
    fn: int

    @property
    def precision(self) -> float | None:
        """Share of the yes answers that are right."""
        return _ratio(self.tp, self.tp + self.fp)

    @property
    def recall(self) -> float | None:
        """Share of the rows of the class that are found: the true-positive rate."""
        return _ratio(self.tp, self.tp + self.fn)

    @property
    def false_positive_rate(self) -> float | None:
        """Share of the other rows that are accepted."""
        return _ratio(self.fp, self.fp + self.tn)

    @property
    def f1(self) -> float | None:
        """Harmonic mean of precision and recall; None without a row of the class."""
        return _ratio(2 * self.tp, 2 * self.tp + self.fp + self.fn) if self.tp + self.fn else None

    @property
    def accuracy(self) -> float | None:
        """Share of right answers."""
        return _ratio(self.tp + self.tn, self.tp + self.fp + self.tn + self.fn)

    def cost(self, ratio: float) -> float:
        """The number of false positives, plus ``ratio`` for each missed row of the class."""
        return self.fp + ratio * self.fn

    def metrics(self) -> Json:
        """The metrics of a student that depend on its threshold."""
        counts = {"tp": self.tp, "fp": self.fp, "tn": self.tn, "fn": self.fn}
        return counts | {"f1": self.f1, "accuracy": self.accuracy}


@dataclass(frozen=True, slots=True)
class Curve:
    """Points of an exact ROC curve by descending threshold, see `core.model_selection.curves.ScoreCurve`."""

    positives: int
    negatives: int
    thresholds: tuple[float, ...]
    tp: tuple[int, ...]
    fp: tuple[int, ...]

    @classmethod
    def unpack(cls, stored: bytes) -> Curve:
        """The curve that `pack` has packed."""
        fields: dict[str, Any] = json.loads(zlib.decompress(stored))
        points = {name: tuple(fields[name]) for name in ("thresholds", "tp", "fp")}
        return cls(fields["positives"], fields["negatives"], **points)

    def point_at(self, threshold: float) -> int:
        """The number of the point with the smallest threshold that is not below ``threshold``, or the first.

        Its counts are those of a threshold that is at least as strict.
        """
        at = bisect_right(self.thresholds, -threshold, key=lambda value: -value)
        return max(at - 1, 0)

    def loosest_point(self, percent: float) -> int | None:
        """The number of the point with the smallest threshold that accepts at most this share of other rows.

        None if the first point accepts more.
        """
        at = bisect_right(self.fp, percent * self.negatives, key=lambda count: 100 * count)
        return at - 1 if at else None

    def is_point(self, threshold: float) -> bool:
        """Whether the counts at a threshold are known."""
        return threshold in self.thresholds

    def confusion(self, point: int) -> Confusion:
        """The counts of the point with this number."""
        tp, fp = self.tp[point], self.fp[point]
        return Confusion(tp, fp, self.negatives - fp, self.positives - tp)


@dataclass(frozen=True, slots=True, eq=False)
class RowAnswers:
    """Truth and answers of a student on each row of its test part, (n,), stored with its curve."""

    truth: BoolArray
    yes: BoolArray

    @classmethod
    def unpack(cls, stored: bytes) -> RowAnswers | None:
        """The answers that `pack` stored with a curve; None if the curve was stored without them."""
        found = json.loads(zlib.decompress(stored)).get("row_answers")
        if found is None:
            return None
        truth, yes = (
            np.unpackbits(np.frombuffer(b64decode(found[name]), np.uint8), count=found["rows"]) > 0
            for name in ("truth", "yes")
        )
        return cls(truth, yes)

    def as_dict(self) -> Json:
        """JSON-ready: a bit for each row."""
        bits = {name: getattr(self, name) for name in ("truth", "yes")}
        packed = {name: b64encode(np.packbits(one).tobytes()).decode() for name, one in bits.items()}
        return {"rows": len(self.yes), **packed}

    @property
    def counts(self) -> tuple[int, int]:
        """Accepted rows of the class, and of others."""
        return int((self.yes & self.truth).sum()), int((self.yes & ~self.truth).sum())


def pack(curve: Json) -> bytes:
    """A curve from the solver as it is stored: JSON, compressed by zlib."""
    return zlib.compress(json.dumps(curve, separators=(",", ":")).encode("ascii"))


def _ratio(part: int, whole: int) -> float | None:
    return part / whole if whole else None
