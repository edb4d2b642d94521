"""When a version of a model is trained again by itself, and what becomes of the new one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final, Literal, Self

from pydantic import ConfigDict, Field, StringConstraints, model_validator

from app.domain.document import Document, Time
from app.domain.names import ALIAS, DATASET_REF
from app.domain.parameter_fields import SpecModel

EVERY_SECONDS: Final = {"daily": 86_400.0, "weekly": 7 * 86_400.0}
LEAST_PAUSE: Final = 86_400.0
"""Seconds between two trainings that new rows or alarms begin."""
MAX_SCHEDULES: Final = 1000
"""Most schedules of a tenant."""

_Alias = Annotated[str, StringConstraints(pattern=ALIAS)]


class ScheduleSettings(SpecModel):
    """When a model is trained again, and what becomes of the new version.

    base: the alias whose version is trained again. dataset_id: any data set of the series whose newest
    revision is trained on; null: of the series that the version was trained on. every: by time. new_rows:
    when the newest revision has so many rows more than the data set that was trained on last. alarm: when a
    monitor of the model has given an alarm. classes: as of a retraining. alias: that the new version is for.
    promote: ``if_gate_passes`` evaluates the new version as the gate of the alias wants it, and moves the
    alias if it passes; without a gate, nothing is moved. stop_after_failures: after so many failed jobs in a
    row it stops.
    """

    model_config = ConfigDict(
        json_schema_extra={
            "allOf": [
                {
                    "anyOf": [
                        {"required": ["every"], "properties": {"every": {"type": "string"}}},
                        {"required": ["new_rows"], "properties": {"new_rows": {"not": {"type": "null"}}}},
                        {"required": ["alarm"], "properties": {"alarm": {"const": True}}},
                    ]
                },
                {
                    "anyOf": [
                        {"properties": {"promote": {"const": "never"}}},
                        {"required": ["alias"], "properties": {"alias": {"type": "string"}}},
                    ]
                },
            ]
        }
    )

    base: _Alias = "latest"
    dataset_id: Annotated[str, StringConstraints(pattern=DATASET_REF)] | None = None
    every: Literal["daily", "weekly"] | None = None
    new_rows: int | None = Field(None, ge=1, le=2**31 - 1)
    alarm: bool = False
    classes: Literal["all", "changed"] = "all"
    alias: _Alias | None = None
    promote: Literal["never", "if_gate_passes"] = "never"
    stop_after_failures: int = Field(3, ge=1, le=100)

    @model_validator(mode="after")
    def _has_a_trigger(self) -> Self:
        if self.every is None and self.new_rows is None and not self.alarm:
            raise ValueError("say when: every, new_rows or alarm")
        if self.promote != "never" and self.alias is None:
            raise ValueError("promote needs the alias that may move")
        return self


@dataclass(frozen=True, slots=True)
class Schedule(Document):
    """A schedule of a model, and what it did last.

    next_at: when it is due by time; null without. dataset_id: of the last training, whose rows are not new.
    started_at: when that began, 0 if never; job_id: its job, evaluation_id: of its version. outcome: what
    became of it: ``queued``, ``trained``, ``failed``, ``evaluating``, ``promoted``, ``not_promoted`` with a
    code behind a colon, or ``skipped`` with the code of the error. failures: failed jobs in a row. stopped:
    whether these were too many; the schedule begins again when it is changed.
    """

    id: str
    tenant: str
    model: str
    settings: ScheduleSettings
    revision: int
    created_by: str
    created_at: Time
    updated_at: Time
    next_at: Time | None
    dataset_id: str | None
    alarm_at: float
    started_at: Time
    job_id: str | None
    evaluation_id: str | None
    outcome: str | None
    failures: int
    stopped: bool
