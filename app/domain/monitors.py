"""Monitors of aliases: what was promised for which classes, and which answers are chosen for feedback.

A sample is an answer, stored with the probability q with which it was chosen. Rates are estimated from
feedback on samples, weighted by 1/q. Feedback on other answers is a volunteer's report, and is never used for
a rate.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal, NamedTuple, Self, TypeAlias

from pydantic import ConfigDict, Field, StringConstraints, model_validator
from pydantic.config import JsonDict

from app.domain.document import OWN, Document, Time
from app.domain.names import ALL_OTHERS, MAX_CLASS_NAME, MODEL_NAME, USABLE
from app.domain.parameter_fields import SpecModel
from core.monitoring.sampling import SamplingPlan

MAX_MONITORS: Final = 1000
"""Most monitors of a tenant."""
MAX_MONITORED_CLASSES: Final = 1000
"""Most classes of a monitor."""
MAX_SAMPLES: Final = 1_000_000
"""Most samples that a monitor keeps; further ones are not stored until older ones are deleted."""
MAX_FEEDBACK: Final = 1000
"""Most items of one request with feedback."""
MAX_ROW_BYTES: Final = 64 * 1024
"""Most bytes of the row of a sample; of a larger one only the sample is kept."""
MAX_REPORTS: Final = 100_000
"""Most reports of volunteers that a monitor keeps."""
LEAST_Q: Final = 1e-6

Label: TypeAlias = Annotated[
    str,
    StringConstraints(min_length=1, max_length=MAX_CLASS_NAME),
    Field(json_schema_extra={"pattern": USABLE}),
]
_TEXT: Final[JsonDict] = {"type": "string"}
_NULL: Final[JsonDict] = {"type": "null"}
_Share: TypeAlias = Annotated[float, Field(gt=0, lt=1)]
_Q: TypeAlias = Annotated[float, Field(ge=LEAST_Q, le=1)]


class Promises(SpecModel):
    """What is promised of a class in production.

    max_false_positive_rate: the most of other rows that get a yes; ``promised``: the budget that the class
    was trained with. min_precision: the least share of right ones among the yes answers. min_recall: the
    least share of the class that gets a yes.
    """

    max_false_positive_rate: _Share | Literal["promised"] | None = None
    min_precision: _Share | None = None
    min_recall: _Share | None = None


class Asking(SpecModel):
    """Which answers people are asked about, each with a known probability q.

    yes: q of a yes answer. no: q of a no answer grows with √p of the probability p of the class, so that
    about ``per_day`` answers of all classes are asked about, or is ``floor`` for all. floor: the least q.
    Yes answers and the floor are asked about also where they alone are more than ``per_day``.
    """

    yes: _Q = 0.5
    no: Literal["by_probability", "uniform"] = "by_probability"
    floor: _Q = 0.01
    per_day: int = Field(200, ge=1, le=1_000_000)


class MonitorSettings(SpecModel):
    """What a monitor looks at.

    classes: the promises of each by label; those of ``*`` are of all classes without their own. tolerance: an
    alarm says that the false-positive rate is above so many times the promised one. alpha: how likely a
    monitor ever gives a false alarm, at most. store: what is kept of a sample: everything but its row (ids),
    or its row as well (rows). on_alarm: whether people are told, or the alias also goes back to the version
    before, where that undoes no move of a person. retain_days: how long samples and what people said of them
    are kept.
    """

    classes: dict[Label, Promises] = Field(
        min_length=1,
        max_length=MAX_MONITORED_CLASSES,
        json_schema_extra={"propertyNames": {"minLength": 1, "maxLength": MAX_CLASS_NAME, "pattern": USABLE}},
    )
    tolerance: float = Field(1.25, ge=1, le=10)
    alpha: float = Field(0.05, ge=1e-6, le=0.5)
    store: Literal["ids", "rows"] = "ids"
    ask: Asking = Asking()
    on_alarm: Literal["notify", "rollback"] = "notify"
    retain_days: int = Field(30, ge=1, le=365)


@dataclass(frozen=True, slots=True)
class Monitor(Document):
    """A monitor of an alias.

    run: its number. It ends where the alias moves to another version or what the monitor looks at changes:
    nothing from before ``started_at`` counts. slope: of the probability q = floor + slope · √p of a no
    answer. samples: that are kept. dropped: that were chosen and
    could not be kept.
    """

    id: Annotated[str, OWN]
    model: str
    alias: str
    settings: MonitorSettings
    revision: int
    run: int
    started_at: Time
    updated_at: Time
    created_by: str
    slope: float
    samples: int
    dropped: int
    tenant: str

    @property
    def plan(self) -> SamplingPlan:
        """Which answers are chosen for feedback now."""
        return SamplingPlan(self.settings.ask.yes, self.settings.ask.floor, self.slope)

    def promises(self, label: str) -> Promises | None:
        """The promises of a class; None if it is not monitored."""
        return promises_of(self.settings.classes, label)


class ActiveMonitor(NamedTuple):
    """What a server process knows of a monitor.

    version: to which its alias points now. run: its number. keeps_rows: whether samples have their rows.
    """

    id: str
    run: int
    tenant: str
    model: str
    version: int
    plan: SamplingPlan
    labels: frozenset[str]
    keeps_rows: bool = False

    def covers(self, label: str) -> bool:
        """Whether the monitor covers a class."""
        return label in self.labels or ALL_OTHERS in self.labels


class Sample(NamedTuple):
    """An answer that people are asked about.

    hour: since the epoch, in which it was counted. row: its number in the request. q: the probability that
    it was chosen with. probability: of the class; None if the student is not calibrated. content: the body of
    a query in JSON that asks about the row alone; None if it was not kept.
    """

    id: str
    monitor_id: str
    run: int
    tenant: str
    model: str
    version: int
    label: str
    hour: int
    at: float
    request_id: str
    row: int
    answer: bool
    score: float
    probability: float | None
    q: float
    content: bytes | None = None


class Trials(NamedTuple):
    """Answers of a class that a monitor could have chosen, and those of them that were yes."""

    monitor_id: str
    run: int
    label: str
    asked: int
    yes: int


@dataclass(frozen=True, slots=True)
class SampleView(Document):
    """A sample. request_id, row: of the query and its row, from 0. answer: whether it was yes. correct: what
    people said of it; null while nobody has.
    """

    id: str
    alias: str
    version: int
    label: str
    at: Time
    request_id: str
    row: int
    answer: bool
    score: float
    probability: float | None
    q: float
    correct: bool | None


class FeedbackItem(SpecModel):
    """What somebody says of an answer: of a sample, or of a row of a request and a class.

    correct: whether the answer was right. truth: the class that the row is of, which answers every sampled
    class of the row. skip: that somebody has looked at a sample and does not know. model, answer: of a report
    about an answer that was not sampled, which is kept apart. subject: whom the question was about; a
    pseudonym is stored, by which all about the subject is deleted.
    """

    model_config = ConfigDict(
        json_schema_extra={
            "allOf": [
                {
                    "oneOf": [
                        {
                            "required": ["sample"],
                            "properties": {"sample": _TEXT, "request_id": _NULL},
                        },
                        {
                            "required": ["request_id", "label"],
                            "properties": {"request_id": _TEXT, "label": _TEXT, "sample": _NULL},
                        },
                    ]
                },
                {
                    "anyOf": [
                        {
                            "required": ["correct"],
                            "properties": {"correct": {"type": "boolean"}, "skip": {"const": False}},
                        },
                        {
                            "required": ["truth"],
                            "properties": {"truth": _TEXT, "skip": {"const": False}},
                        },
                        {
                            "required": ["skip", "sample"],
                            "properties": {
                                "skip": {"const": True},
                                "sample": _TEXT,
                                "correct": _NULL,
                                "truth": _NULL,
                            },
                        },
                    ]
                },
            ]
        }
    )

    sample: Annotated[str, StringConstraints(pattern=r"^smp_[0-9a-f]{24}$")] | None = None
    request_id: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9._:/+=@-]{1,128}$")] | None = None
    row: int = Field(0, ge=0, le=2**31 - 1)
    label: Label | None = None
    model: Annotated[str, StringConstraints(pattern=MODEL_NAME)] | None = None
    answer: bool | None = None
    correct: bool | None = None
    truth: Label | None = None
    subject: Label | None = None
    skip: bool = False

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        if (self.sample is None) == (self.request_id is None):
            raise ValueError("give the id of a sample, or a request_id with the class")
        if self.request_id is not None and self.label is None:
            raise ValueError("say of which class the answer was")
        if self.skip and (self.sample is None or self.correct is not None or self.truth is not None):
            raise ValueError("skip a sample by its id, without saying anything of its answer")
        if not self.skip and self.correct is None and self.truth is None:
            raise ValueError("say whether the answer was correct, or of which class the row is")
        return self


@dataclass(frozen=True, slots=True)
class FeedbackResult(Document):
    """What became of an item: the id of the feedback and whether it is of a sample, or why there is none."""

    id: str | None
    sampled: bool | None
    replaced: bool
    code: str | None
    message: str | None


@dataclass(frozen=True, slots=True)
class FeedbackResults(Document):
    """What became of each item, in order. replaced: those accepted that took the place of an earlier one."""

    accepted: int
    replaced: int
    results: list[FeedbackResult]


class Given(NamedTuple):
    """Feedback to store. correct: whether the answer was right, if it is known which it was. subject: the
    pseudonym of whom the question was about, hexadecimal.
    """

    id: str
    monitor_id: str
    sample_id: str | None
    label: str
    request_id: str | None
    row: int
    answer: bool | None
    correct: bool
    truth: str | None
    at: float
    created_by: str
    subject: str | None = None


def promises_of(classes: Mapping[str, Promises], label: str) -> Promises | None:
    """The promises of a class among those of a monitor; None if it is not monitored."""
    return classes.get(label, classes.get(ALL_OTHERS))


def settings_of(stored: Any) -> MonitorSettings:
    """The settings that were stored as JSON."""
    return MonitorSettings.model_validate(stored)
