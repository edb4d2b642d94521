"""Shadows of aliases: another version that answers a share of the queries after they were answered.

Its answers go to nobody. They are counted beside those that were given, by class and hour; no row is kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Final, NamedTuple

from pydantic import Field

from app.domain.document import OWN, Document, Time
from app.domain.parameter_fields import SpecModel

MAX_SHADOWS: Final = 100
"""Most shadows of a tenant."""
MAX_SHADOW_CLASSES: Final = 1000
"""Most classes that a shadow is counted of: those that were asked first."""


class ShadowSettings(SpecModel):
    """Which version answers as well. share: of the answers, each chosen by itself. days: until it ends."""

    version: int = Field(ge=1, le=2**31 - 1)
    share: float = Field(0.1, gt=0, le=1)
    days: float = Field(7.0, gt=0, le=90)


@dataclass(frozen=True, slots=True)
class Shadow(Document):
    """A shadow of an alias. version: of the candidate. until: when it ends by itself."""

    id: Annotated[str, OWN]
    model: str
    alias: str
    version: int
    share: float
    started_at: Time
    until: Time
    created_by: str
    tenant: str


class ActiveShadow(NamedTuple):
    """What a server process knows of a shadow. version: that answers. candidate: that is asked as well."""

    id: str
    tenant: str
    model: str
    version: int
    candidate: int
    share: float
    until: float


class ShadowCounts(NamedTuple):
    """Answers to a class that a shadow was asked about, too.

    present: the version that answered. both_yes, only_present, only_candidate, both_no: by who said yes.
    failed: that the candidate could not answer, for example since it lacks the class. dropped: for which
    there was no room.
    """

    shadow_id: str
    present: int
    label: str
    both_yes: int = 0
    only_present: int = 0
    only_candidate: int = 0
    both_no: int = 0
    failed: int = 0
    dropped: int = 0

    def plus(self, **more: int) -> ShadowCounts:
        """These counts with some more."""
        return self._replace(**{name: getattr(self, name) + number for name, number in more.items()})


@dataclass(frozen=True, slots=True)
class ClassAgreement(Document):
    """How often two versions gave the same answer about a class.

    asked: answers of both. agreement: {estimate, low, high} of the share of equal ones, with 95 %; null
    without any.
    """

    label: str
    asked: int
    both_yes: int
    only_present: int
    only_candidate: int
    both_no: int
    agreement: dict[str, Any] | None


@dataclass(frozen=True, slots=True)
class ShadowReport(Document):
    """A shadow and what was counted beside the version that answers now.

    present: that version. active: whether it is asked now. asked: its own traffic, answers of all classes.
    failed: that it could not answer. dropped: for which there was no room, for example under load.
    last_asked_at: the start of the last hour with traffic; null without any. classes: those with the largest
    share of different answers first. left_out: further classes.
    """

    shadow: Shadow
    present: int
    active: bool
    asked: int
    failed: int
    dropped: int
    last_asked_at: Time | None
    classes: list[ClassAgreement]
    left_out: int
