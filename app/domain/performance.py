"""How many answers of an alias are right in production, estimated from feedback on samples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final

from pydantic import Field, StringConstraints

from app.domain.answers import EstimatedRates
from app.domain.document import Document, Time
from app.domain.monitors import MAX_MONITORED_CLASSES, Label
from app.domain.names import USABLE
from app.domain.parameter_fields import SpecModel
from core.monitoring.interval import Interval

PROMISES: Final = ("false_positive_rate", "precision", "recall")
MAX_NOTE: Final = 1000


@dataclass(frozen=True, slots=True)
class LiveRate(Document):
    """A rate in production.

    interval: null with fewer than 10 labelled rows that it is a share of. rows: how many there are. answered:
    the share of the samples that somebody answered. worst, best: the rate if all samples without an answer
    spoke against it, and for it; null where 90 % were answered, or none. promised: the limit that the monitor
    names; null without one.
    """

    interval: Interval | None
    rows: int
    answered: float
    worst: float | None
    best: float | None
    promised: float | None


@dataclass(frozen=True, slots=True)
class PromiseEvidence(Document):
    """The evidence against a promise of a class.

    promise: ``false_positive_rate``, ``precision`` or ``recall``. limit: the largest share of mistakes that
    keeps it. evidence: at least 0, and 1 at the beginning; while the promise is kept, its largest value
    reaches ``alarm_at`` with a probability of at most alpha, shared among all promises of the monitor.
    largest: so far. mistakes_to_alarm: how many further mistakes would at once give the alarm. since: when it
    began. alarm_since: when the alarm was given; null without one. number: how often it began.
    """

    promise: str
    limit: float
    evidence: float
    largest: float
    alarm_at: float
    mistakes_to_alarm: int
    since: Time
    alarm_since: Time | None
    number: int
    note: str | None


@dataclass(frozen=True, slots=True)
class ClassPerformance(Document):
    """A class in production.

    asked, yes: answers that could have been sampled. sampled_yes, sampled_no: those that were, and
    labelled_yes, labelled_no: those of which somebody has said whether they were right. reports: about yes
    answers that were not sampled, and reported_wrong: those that say that they were wrong; of them only
    most_precise follows, the largest precision that they leave. if_probabilities_hold: not measured; null
    where there is none. broken: whether a promise has an alarm.
    """

    label: str
    asked: int
    yes: int
    sampled_yes: int
    sampled_no: int
    labelled_yes: int
    labelled_no: int
    precision: LiveRate
    recall: LiveRate
    false_positive_rate: LiveRate
    reports: int
    reported_wrong: int
    most_precise: float | None
    if_probabilities_hold: EstimatedRates | None
    evidence: list[PromiseEvidence]
    broken: bool


@dataclass(frozen=True, slots=True)
class Performance(Document):
    """The monitored classes of an alias, those with alarms first, then by their largest evidence.

    version: that the alias points to. since: from when answers count: the last days, or the beginning of the
    monitor's run. left_out: further classes that are not told of.
    """

    model: str
    alias: str
    version: int
    days: int
    since: Time
    classes: list[ClassPerformance]
    left_out: int


class Acknowledgement(SpecModel):
    """Alarms that somebody has seen. labels: of which classes; by default all. note: what was found."""

    labels: list[Label] | None = Field(None, max_length=MAX_MONITORED_CLASSES)
    note: Annotated[
        str, StringConstraints(max_length=MAX_NOTE), Field(json_schema_extra={"pattern": f"^$|{USABLE}"})
    ] = ""


@dataclass(frozen=True, slots=True)
class Acknowledged(Document):
    """How many alarms were acknowledged."""

    alarms: int
