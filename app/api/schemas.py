"""What goes over the wire, and how it is made of the things the service keeps."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints

from app.domain.entities import Job, JobState, Priority, StudentState
from app.domain.names import DISPLAY_NAME, MODEL_NAME, ModelName
from app.domain.strict_json import StrictModel
from app.domain.training_spec import TrainingSpec
from app.services.keys import MAX_OVERLAP_SECONDS, MAX_RATE

Json = dict[str, Any]

MAX_SECONDS = 10 * 366 * 86400.0
"""Longest life that can be wished for a key; without a wish it has no end."""


def timestamp(seconds: float) -> str:
    """Seconds since the epoch as RFC 3339, UTC, to the millisecond."""
    text = datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")
    return text.replace("+00:00", "Z")


Time = Annotated[str, BeforeValidator(timestamp)]
"""RFC 3339 text, made of seconds since the epoch."""

SortedNames = Annotated[list[str], BeforeValidator(sorted)]


class View(BaseModel):
    """Base of all answers, made of an entity by `of`. Infinite numbers, not in JSON, become null."""

    model_config = ConfigDict(from_attributes=True, ser_json_inf_nan="null")

    @classmethod
    def of(cls, entity: object) -> Self:
        """The view of an entity with the same names."""
        return cls.model_validate(entity)


class Body(StrictModel):
    """Base of all request bodies: an unknown field is a mistake, not a wish."""

    model_config = ConfigDict(extra="forbid")


class DatasetView(View):
    """A data set. digest: SHA-256 of the uploaded bytes. summary: counts, ranges and warnings."""

    id: str
    digest: str
    name: str
    source_format: str
    size_bytes: int
    rows: int
    test_rows: int
    columns: int
    classes: list[str]
    summary: Json
    created_at: Time
    created_by: str


class SubmitJob(Body):
    """A wish for training. model: name to publish under."""

    dataset_id: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_-]{1,64}$")]
    model: ModelName
    hyperparameters: TrainingSpec = TrainingSpec()
    priority: Priority = Field(
        Priority.NORMAL,
        description="Jobs of a higher priority get the workers first; high needs an admin key.",
    )


class ProgressView(View):
    """In students; the teacher counts as one more."""

    done: int
    total: int


class ErrorView(View):
    """Why a job failed."""

    code: str
    message: str


class JobView(View):
    """A training job. provenance: what is needed to repeat it bit for bit."""

    id: str
    dataset_id: str
    model: str
    hyperparameters: Json
    state: JobState
    attempt: int
    stage: str
    progress: ProgressView
    created_at: Time
    created_by: str
    started_at: Time | None
    finished_at: Time | None
    estimated_finish: Time | None
    error: ErrorView | None
    version: int | None = Field(description="The version that the job published.")
    provenance: Json
    priority: Priority
    workers: list[str] = Field(description="Names of the workers that are working on the job.")

    @classmethod
    def of_job(cls, job: Job, estimated_finish: float | None, workers: Sequence[str] = ()) -> JobView:
        """The view of a job that will end at ``estimated_finish``, as far as one can tell."""
        error = None
        if job.error_code is not None:
            error = {"code": job.error_code, "message": job.error_message or ""}
        given = dataclasses.asdict(job) | {
            "hyperparameters": job.spec,
            "progress": {"done": job.progress_done, "total": job.progress_total},
            "estimated_finish": estimated_finish,
            "error": error,
            "workers": workers,
        }
        return cls.model_validate(given)


class EventView(View):
    """Something that happened to a job. id, seq: its number, counted from 1 within the job."""

    id: Annotated[int, Field(validation_alias="seq")]
    seq: int
    at: Time
    type: str
    data: Json


class StudentView(View):
    """One learner of one class. ``id`` is the class's number, by which pages go on.

    metrics: on the test part; of a calibrated student also ``brier``, ``base_brier`` (of the class's share as
    everybody's probability), ``calibration_error`` and the bins of ``reliability``.
    chosen: what a search chose, its cross-validated ``score`` and ``standard_error``; of a compact student
    its ``n_landmarks`` and ``relative_cost``; null where nothing was searched.
    """

    id: Annotated[int, Field(validation_alias="class_index")]
    class_index: int
    label: str
    method: str
    state: StudentState
    objective: float | None
    gap: float | None
    iterations: int | None
    seconds: float | None
    status: str | None
    threshold: float | None
    metrics: Json
    chosen: Json | None
    digest: str | None
    error: str | None


class TracePointView(View):
    """One point of a grid as it was last measured.

    margin: ε. floor: ϵ. folds: how many it was measured on. score: the metric, in [0, 1], and its standard
    error over the folds. gap: largest relative duality gap of its fits. seconds: of its fits, together.
    """

    C: float
    margin: float
    floor: float
    folds: int
    score: float
    standard_error: float
    gap: float
    seconds: float


class SizePointView(View):
    """One size of a compact student, and F in [0, 1] on held-out folds."""

    n_landmarks: int
    f1: float


class TraceView(View):
    """How a student was searched for. points: in the order of the grid, or sizes rising."""

    job_id: str
    class_index: int
    label: str
    method: str
    chosen: Json
    points: list[TracePointView] | list[SizePointView]


class AliasView(View):
    """A movable name of a version. revision: its ETag, for If-Match."""

    model: str
    alias: str
    version: int
    revision: int
    updated_at: Time


class PointAlias(Body):
    """Where an alias shall point."""

    version: int = Field(ge=1, le=2**31 - 1)


class VersionView(View):
    """A published version; it never changes. method: of the students that answer queries.

    Of an imported version the method is head or linear, and there is neither job nor data set.
    """

    model: str
    version: int
    job_id: str | None
    dataset_digest: str | None
    method: str
    class_count: int
    classes: list[str] = Field(
        description="All labels where there are at most 1000, else none: they are listed under …/classes."
    )
    columns: int
    teacher_digest: str
    metrics: Json
    created_at: Time


class ClassView(View):
    """A class of a version. ``id`` is its number, by which pages go on."""

    id: int
    label: str


class ModelView(View):
    """A model with all its versions, newest first."""

    name: str
    versions: list[VersionView]
    aliases: list[AliasView]


class ModelSummaryView(View):
    """A model in a list; ``id`` is its name."""

    id: Annotated[str, Field(validation_alias="model")]
    name: Annotated[str, Field(validation_alias="model")]
    versions: int
    latest_version: Annotated[int, Field(validation_alias="newest_version")]
    updated_at: Time
    aliases: list[AliasView]


class CreateKey(Body):
    """A wish for an API key. models: those a query key may ask; empty means all."""

    model_config = ConfigDict(
        json_schema_extra={
            "anyOf": [
                {"properties": {"models": {"maxItems": 0}}},
                {"properties": {"scopes": {"items": {"const": "query"}}}},
            ]
        }
    )

    name: str = Field(max_length=100, json_schema_extra={"pattern": DISPLAY_NAME})
    scopes: list[str] = Field(
        max_length=3, json_schema_extra={"minItems": 1, "items": {"enum": ["admin", "query", "train"]}}
    )
    models: list[str] = Field(
        [], max_length=1000, json_schema_extra={"items": {"type": "string", "pattern": MODEL_NAME}}
    )
    expires_in_seconds: float | None = Field(
        None, ge=1, le=MAX_SECONDS, description="From then on it is refused; null: never."
    )
    rate_limit: float | None = Field(
        None, ge=0, le=MAX_RATE, description="Requests a second; 0: any number; null: as the server is set."
    )
    rate_burst: int | None = Field(
        None, ge=1, le=MAX_RATE, description="How many at once; null: those of one second."
    )


class RotateKey(Body):
    """A wish for another secret. overlap_seconds: how long the old one is good beside it."""

    overlap_seconds: float = Field(0.0, ge=0, le=MAX_OVERLAP_SECONDS)


class KeyView(View):
    """An API key without its secret. previous_until: until then its text before the last rotation is good."""

    id: str
    name: str
    scopes: SortedNames
    models: SortedNames
    created_at: Time
    revoked_at: Time | None
    expires_at: Time | None
    rate_limit: float | None
    rate_burst: int | None
    rotated_at: Time | None
    previous_until: Time | None
    last_used_at: Time | None


class AuditView(View):
    """Something that was done or refused. outcome: done, unchanged, or the code of the error."""

    id: str
    at: Time
    actor: str
    actor_name: str
    scope: str
    action: str
    object: str
    outcome: str
    request_id: str | None
    address: str | None
    details: Json


class NewKeyView(View):
    """A key just made or rotated. key: its text, shown this once."""

    key: str
    details: KeyView


class UnitView(View):
    """Work under way. kind: prepare or chunk. unit: its number in the job. classes: how many it trains."""

    job_id: str
    unit: int
    kind: str
    classes: int
    since: Time
    solver_pid: int | None


class WorkerView(View):
    """A worker process. alive: whether it was heard of lately; one that is not is listed for a minute.

    slots: units of work at once. threads: of each solver. units: those under way, the preparation of a job or
    a chunk of its classes.
    """

    id: str
    host: str
    pid: int
    started_at: Time
    beat_at: Time
    alive: bool
    slots: int
    threads: int
    units: list[UnitView]
