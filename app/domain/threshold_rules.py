"""Rules that choose the threshold of a class on its curve, and the expected results of the choice."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self

from pydantic import ConfigDict, Field, model_validator

from app.domain.curves import Curve
from app.domain.document import Document, Time
from app.domain.parameter_fields import SpecModel
from core.monitoring.interval import Interval

if TYPE_CHECKING:
    from core.monitoring.thresholds import Aim

RULES: Final = ("max_false_positive_rate", "recall", "cost", "capacity")
_WITH_CONFIDENCE: Final = ("max_false_positive_rate", "recall")


class WrongAnswers(SpecModel):
    """What a wrong answer costs. false_yes: a row of another class that is accepted. missed_yes: a row of the
    class that is not.
    """

    false_yes: float = Field(gt=0, le=1e9)
    missed_yes: float = Field(gt=0, le=1e9)


class DailyAnswers(SpecModel):
    """How many yes answers people can look at a day, of so many queries."""

    yes_per_day: int = Field(ge=0, le=10**9)
    queries_per_day: float = Field(gt=0, le=1e12)


def _given(name: str) -> dict[str, Any]:
    """The schema of a rule in which a field has a value."""
    return {"required": [name], "properties": {name: {"not": {"type": "null"}}}}


class ThresholdRule(SpecModel):
    """How a threshold is chosen, by one of the first four.

    max_false_positive_rate: the most of the class within this rate of wrong yes answers. recall: the highest
    threshold that says yes to this share of the class. Both are to be expected on further rows. cost: the
    lowest expected cost. capacity: the lowest threshold that says yes no more often than people can look, on
    19 of 20 days. confidence: with this probability the threshold itself keeps its rate or recall, which
    holds on average otherwise. share: of the class among the rows of queries, by default among the test rows.
    """

    model_config = ConfigDict(
        json_schema_extra={
            "oneOf": [_given(name) for name in RULES],
            "anyOf": [{"properties": {"confidence": {"type": "null"}}}, *map(_given, _WITH_CONFIDENCE)],
        }
    )

    max_false_positive_rate: float | None = Field(None, ge=0, lt=1)
    recall: float | None = Field(None, gt=0, lt=1)
    cost: WrongAnswers | None = None
    capacity: DailyAnswers | None = None
    confidence: float | None = Field(None, gt=0, lt=1)
    share: float | None = Field(None, gt=0, lt=1)

    @model_validator(mode="after")
    def _one_rule(self) -> Self:
        if sum(getattr(self, name) is not None for name in RULES) != 1:
            raise ValueError(f"give one of {', '.join(RULES)}")
        if self.confidence is not None and self.kind not in _WITH_CONFIDENCE:
            raise ValueError("confidence belongs to a rate or a recall")
        return self

    @property
    def kind(self) -> str:
        """The name of the rule in `RULES` that is given."""
        return next(name for name in RULES if getattr(self, name) is not None)

    def aim(self, curve: Curve) -> Aim:
        """The aim to reach on a curve."""
        from core.monitoring.thresholds import Capacity, Costs, LeastRecall, MostFalsePositives

        if self.cost is not None:
            return Costs(self.cost.false_yes, self.cost.missed_yes, self.share_of(curve))
        if self.capacity is not None:
            daily = self.capacity
            return Capacity(daily.yes_per_day, daily.queries_per_day, self.share_of(curve))
        if self.recall is not None:
            return LeastRecall(self.recall, self.confidence)
        return MostFalsePositives(self.max_false_positive_rate or 0.0, self.confidence)

    def share_of(self, curve: Curve) -> float:
        """The expected share of the class among the rows of queries."""
        return curve.positives / (curve.positives + curve.negatives) if self.share is None else self.share


@dataclass(frozen=True, slots=True)
class ChosenThreshold(Document):
    """The threshold that a rule chooses for a class, and what is expected of it.

    was: the threshold of the version. rule: the one of `RULES` that chooses. positives, negatives: rows of
    the test part that are of the class, and others. recall, false_positive_rate: on them. yes_rate,
    precision: expected of queries where the class has its share; precision is null where no yes is expected.
    cost_per_1000: expected of 1000 queries by the costs of the rule, and threshold_range: where the cheapest
    threshold lies in 95 % of resamples of the test rows; null without costs.
    """

    label: str
    threshold: float
    was: float
    rule: str
    positives: int
    negatives: int
    recall: Interval
    false_positive_rate: Interval
    yes_rate: float
    precision: float | None
    cost_per_1000: Interval | None
    threshold_range: list[float] | None


@dataclass(frozen=True, slots=True)
class ChosenThresholds(Document):
    """The thresholds that rules choose for classes of version ``base``."""

    base: int
    classes: list[ChosenThreshold]


@dataclass(frozen=True, slots=True)
class VersionThreshold(Document):
    """The threshold of a class in one version.

    rule: by which it was chosen, in training or afterwards; ``given`` if a person gave the number.
    created_by: id of the API key. aliases: those that point to the version.
    """

    version: int
    threshold: float | None
    rule: str | None
    created_at: Time
    created_by: str
    aliases: list[str]


def chosen(label: str, was: float, curve: Curve, rule: ThresholdRule) -> ChosenThreshold:
    """The threshold that a rule chooses for a class on its curve. was: its present threshold.

    Raises InvalidProblem if no threshold obeys the rule, or the curve has no rows of the class or of others.
    """
    from core.model_selection.curves import ScoreCurve
    from core.monitoring.thresholds import choose_point

    points = ScoreCurve(curve.positives, curve.negatives, curve.thresholds, curve.tp, curve.fp)
    point, share = choose_point(points, rule.aim(curve)), rule.share_of(curve)
    recall = share * point.recall.estimate
    yes_rate = recall + (1.0 - share) * point.false_positive_rate.estimate
    return ChosenThreshold(
        label=label,
        threshold=point.threshold,
        was=was,
        rule=rule.kind,
        positives=curve.positives,
        negatives=curve.negatives,
        recall=point.recall,
        false_positive_rate=point.false_positive_rate,
        yes_rate=yes_rate,
        precision=recall / yes_rate if yes_rate else None,
        cost_per_1000=point.cost,
        threshold_range=None if point.threshold_range is None else [*point.threshold_range],
    )
