"""Rules that choose the threshold of a class on its curve, and what is expected of the choice."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Self

import numpy as np
from pydantic import Field, model_validator

from app.domain.curves import Curve
from app.domain.document import Document, Time
from app.domain.parameter_fields import SpecModel
from core.types import FloatArray

RULES: Final = ("max_false_positive_rate", "recall", "cost")
ALL_OTHERS: Final = "*"
"""Stands for all classes of a version for which nothing else is given."""
_RESAMPLES: Final = 200
_INTERVAL: Final = (2.5, 97.5)


class Costs(SpecModel):
    """What a wrong answer costs. false_yes: a row of another class that is accepted. missed_yes: a row of the
    class that is not.
    """

    false_yes: float = Field(gt=0, le=1e9)
    missed_yes: float = Field(gt=0, le=1e9)


class ThresholdRule(SpecModel):
    """How a threshold is chosen, by one of the first three.

    max_false_positive_rate: the lowest threshold that accepts at most this share of the other test rows.
    recall: the highest one that accepts at least this share of the test rows of the class. cost: the one with
    the lowest expected cost. confidence: the rate, or the recall, holds for further rows with this
    probability, and not only on the test rows. share: of the class among the rows of queries, by default
    among the test rows; it decides what a threshold costs, and what precision is expected.
    """

    max_false_positive_rate: float | None = Field(None, ge=0, lt=1)
    recall: float | None = Field(None, gt=0, le=1)
    cost: Costs | None = None
    confidence: float | None = Field(None, ge=0.5, lt=1)
    share: float | None = Field(None, gt=0, lt=1)

    @model_validator(mode="after")
    def _one_rule(self) -> Self:
        given = [name for name in RULES if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(f"give one of {', '.join(RULES)}")
        if self.cost is not None and self.confidence is not None:
            raise ValueError("confidence belongs to a rate or a recall, not to a cost")
        return self

    def point(self, curve: Curve) -> int | None:
        """The number of the point of the curve that the rule chooses; None if no point obeys it."""
        if self.cost is not None:
            # Of equally cheap points the first has the highest threshold.
            return int(np.argmin(_costs(curve, self.cost, self.share_of(curve))))
        if self.recall is not None:
            reached = np.flatnonzero(_least_recall(curve, self.confidence) >= self.recall)
            return int(reached[0]) if len(reached) else None
        rate = self.max_false_positive_rate or 0.0
        if self.confidence is None:
            return curve.loosest_point(round(100 * rate, 9))
        kept = np.flatnonzero(_largest_rate(curve, self.confidence) <= rate)
        return int(kept[-1]) if len(kept) else None

    def share_of(self, curve: Curve) -> float:
        """The share of the class that is expected among the rows of queries."""
        return curve.positives / (curve.positives + curve.negatives) if self.share is None else self.share


@dataclass(frozen=True, slots=True)
class ChosenThreshold(Document):
    """The threshold that a rule chooses for a class, and what is expected of it.

    was: the threshold of the version. tp, fp: accepted rows of the test part, of the positives rows of the
    class and the negatives others. precision: expected of the yes answers where the class has its share;
    null where none is expected. cost_per_1000: expected of 1000 queries by the costs of the rule, with the
    95 % interval of 200 resamples of the test rows; null without costs.
    """

    label: str
    threshold: float
    was: float
    positives: int
    negatives: int
    tp: int
    fp: int
    recall: float | None
    false_positive_rate: float | None
    precision: float | None
    cost_per_1000: float | None
    cost_interval: list[float] | None


@dataclass(frozen=True, slots=True)
class ChosenThresholds(Document):
    """The thresholds that rules choose for classes of version ``base``."""

    base: int
    classes: list[ChosenThreshold]


@dataclass(frozen=True, slots=True)
class VersionThreshold(Document):
    """The threshold of a class in one version.

    rule: by which it was chosen in training, or ``given`` if it was changed afterwards. created_by: id of the
    API key. aliases: those that point to the version.
    """

    version: int
    threshold: float | None
    rule: str | None
    created_at: Time
    created_by: str
    aliases: list[str]


def chosen(label: str, was: float, curve: Curve, point: int, rule: ThresholdRule) -> ChosenThreshold:
    """What a rule has chosen. was: the present threshold. point: the number of the point chosen."""
    confusion, share = curve.confusion(point), rule.share_of(curve)
    recall, rate = confusion.recall, confusion.false_positive_rate
    precision = cost = interval = None
    if recall is not None and rate is not None:
        accepted = share * recall + (1.0 - share) * rate
        precision = share * recall / accepted if accepted else None
        if rule.cost is not None:
            cost = 1000.0 * float(_costs(curve, rule.cost, share)[point])
            interval = [1000.0 * float(end) for end in _cost_interval(curve, point, rule.cost, share)]
    return ChosenThreshold(
        label, curve.thresholds[point], was, curve.positives, curve.negatives, confusion.tp, confusion.fp,
        recall, rate, precision, cost, interval,
    )  # fmt: skip


def _costs(curve: Curve, costs: Costs, share: float) -> FloatArray:
    """The expected cost of a query at each point, (points,) (Elkan, IJCAI 2001)."""
    missed = 1.0 - np.asarray(curve.tp) / max(curve.positives, 1)
    accepted = np.asarray(curve.fp) / max(curve.negatives, 1)
    return costs.false_yes * accepted * (1.0 - share) + costs.missed_yes * missed * share


def _cost_interval(curve: Curve, point: int, costs: Costs, share: float) -> FloatArray:
    """The middle 95 % of the cost of a query at a point in resamples of the test rows, (2,)."""
    draws = np.random.default_rng(0)
    positives, negatives = max(curve.positives, 1), max(curve.negatives, 1)
    found = draws.binomial(positives, curve.tp[point] / positives, _RESAMPLES) / positives
    accepted = draws.binomial(negatives, curve.fp[point] / negatives, _RESAMPLES) / negatives
    values = costs.false_yes * accepted * (1.0 - share) + costs.missed_yes * (1.0 - found) * share
    ends: FloatArray = np.percentile(values, _INTERVAL)
    return ends


def _largest_rate(curve: Curve, confidence: float) -> FloatArray:
    """The upper limit of the false-positive rate at each point, (points,) (Clopper and Pearson 1934)."""
    from scipy.special import betaincinv

    accepted, n = np.asarray(curve.fp, np.float64), curve.negatives
    return np.where(accepted < n, betaincinv(accepted + 1.0, np.maximum(n - accepted, 1.0), confidence), 1.0)


def _least_recall(curve: Curve, confidence: float | None) -> FloatArray:
    """The recall at each point, (points,), or its lower limit (Clopper and Pearson 1934)."""
    found, n = np.asarray(curve.tp, np.float64), curve.positives
    if confidence is None:
        return found / max(n, 1)
    from scipy.special import betaincinv

    return np.where(found > 0, betaincinv(np.maximum(found, 1.0), n - found + 1.0, 1.0 - confidence), 0.0)
