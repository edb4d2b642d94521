"""Request and response bodies of the API, and their conversion from entities."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from typing import Annotated, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints

from app.domain.caller_rules import MAX_ISSUER, MAX_SUBJECT
from app.domain.entities import Alias, Job, JobState, Json, Priority
from app.domain.evaluation import MAX_REASON as MAX_OVERRIDE
from app.domain.job_share import estimated_finish, share_done
from app.domain.moments import timestamp
from app.domain.names import DISPLAY_NAME, MODEL_NAME, DatasetRef, ModelName
from app.domain.strict_json import StrictModel
from app.domain.training_spec import TrainingSpec
from app.services.keys import MAX_MODELS, MAX_OVERLAP_SECONDS, MAX_RATE
from app.services.token_revocations import MAX_REASON

MAX_SECONDS = 10 * 366 * 86400.0
"""Longest lifetime that a request can set for a key; by default a key does not expire."""


Time = Annotated[str, BeforeValidator(timestamp)]
"""RFC 3339 text, converted from seconds since the epoch."""

SortedNames = Annotated[list[str], BeforeValidator(sorted)]


class View(BaseModel):
    """Base of all responses. Infinite numbers, which JSON does not have, become null."""

    model_config = ConfigDict(from_attributes=True, ser_json_inf_nan="null")

    @classmethod
    def of(cls, entity: object) -> Self:
        """The view of an entity whose attributes have the same names."""
        return cls.model_validate(entity)


class Body(StrictModel):
    """Base of all request bodies; unknown fields are errors."""

    model_config = ConfigDict(extra="forbid")


class DecisionView(View):
    """One decision of the reader of a file. name: the parameter that says it. value: what was taken. reason:
    ``given``, or why it was taken.
    """

    name: str
    value: str
    reason: str


class DatasetChangeView(View):
    """What a revision of a data set changed, in numbers of rows. relabelled: training rows that have another
    label. equal_rows_skipped: rows to append that the
    data set had already. classes_changed: the first 1000 that gained or lost rows. appended: id of the data
    set whose rows were appended.
    """

    added: int
    deleted: int
    relabelled: int = 0
    equal_rows_skipped: int
    classes_changed: list[str]
    appended: str | None
    note: str | None


class DatasetView(View):
    """A data set. digest: SHA-256 of the uploaded bytes. reading: what was taken of the file, and why.
    summary: counts, ranges and warnings; of each column, in ``schema`` or of plain numbers in ``features``,
    up to three ``examples``.

    classes: the first 1000; there are more if ``classes_truncated``. series, latest: ids of the first and of
    the newest of the data sets that were revised from each other. revision: its number among them. parent:
    id of the one that was changed, if any, and change: what changed.
    """

    id: str
    digest: str
    name: str
    source_format: str
    size_bytes: int
    rows: int
    test_rows: int
    columns: int
    classes: list[str]
    class_count: int
    classes_truncated: bool
    reading: list[DecisionView]
    summary: Json
    created_at: Time
    created_by: str
    tenant: str
    series: str
    revision: int
    latest: str
    parent: str | None
    change: DatasetChangeView | None


class ReadingView(View):
    """What would be stored of a file that was only read. Fields as those of a data set."""

    source_format: str
    rows: int
    test_rows: int
    columns: int
    classes: list[str]
    class_count: int
    classes_truncated: bool
    reading: list[DecisionView]
    summary: Json


class SparseValues(View):
    """A row of a sparse data set: the columns and values that are stored; others are 0.

    index_base: 0, from which the columns are counted, also where the file counts from 1.
    """

    indices: list[int]
    values: list[float]
    index_base: int


class DatasetRowView(View):
    """A row of a data set. id: its number, counted from 0 in its part. row_id: a number that it keeps in all
    revisions of the data set. label: null if it has none.

    x: its values, in a form that queries take; of a table of raw cells by the names of the columns, null for
    gaps.
    """

    id: int
    row_id: int
    label: str | None
    x: list[float] | SparseValues | Json


class SubmitJob(Body):
    """A training job to submit. model: the name to publish under."""

    dataset_id: DatasetRef
    model: ModelName
    hyperparameters: TrainingSpec = TrainingSpec()
    priority: Priority = Field(
        Priority.NORMAL,
        description="Workers take jobs of a higher priority first; high requires an operator key.",
    )


class ProgressView(View):
    """Progress in students; the teacher counts as one more.

    share: part of the whole work that is done, about, from 0 to 1. It never falls while the job runs.
    """

    done: int
    total: int
    share: float


class ErrorView(View):
    """Why a job failed."""

    code: str
    message: str


class JobView(View):
    """A training job. provenance: everything that is needed to reproduce it bit for bit."""

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
    warnings: list[Json] = Field(
        description="Warnings of students: code, label, class_index, message; at most 20. Before them those"
        " of code schema_change, which have neither label nor class_index: how columns differ from the"
        " version that the job is like, and why the alias stays; those of code not_repeated: what a version"
        " that is trained again had beside its training; and of a running job `solver_starves`, while its"
        " solver waits for the processor."
    )
    labelling: Json | None = Field(
        description="How the labels were found and how many rows each class has; …/labels has them."
    )
    provenance: Json
    priority: Priority
    tenant: str
    workers: list[str] = Field(description="Names of the workers that are working on the job.")

    @classmethod
    def of_job(cls, job: Job, workers: Sequence[str] = ()) -> JobView:
        """The view of a job. workers: names of those that are working on it."""
        now = time.time()
        error = None
        if job.error_code is not None:
            error = {"code": job.error_code, "message": job.error_message or ""}
        values = dataclasses.asdict(job) | {
            "hyperparameters": job.spec,
            "progress": {
                "done": job.progress_done,
                "total": job.progress_total,
                "share": share_done(job, now),
            },
            "estimated_finish": estimated_finish(job, now),
            "error": error,
            "workers": workers,
            "warnings": job.warnings,
            "labelling": job.provenance.get("labelling"),
        }
        return cls.model_validate(values)


class PointAlias(Body):
    """The version that an alias should point to.

    allow_schema_change: also where it refuses what the present version of the alias answers. override: why it
    is moved although the gate of the alias refuses the version; needs the scope admin.
    """

    version: int = Field(ge=1, le=2**31 - 1)
    allow_schema_change: bool = False
    override: Annotated[str, StringConstraints(pattern=DISPLAY_NAME, max_length=MAX_OVERRIDE)] | None = None


class VersionInputs(View):
    """The columns that a version was trained on. columns: their names in order; null if they are not known.

    ranges: the smallest and the largest value of each column in the rows of the data set; null if they are
    not known. index_base: the first index in the svmlight file that it was trained on.
    """

    columns: list[str] | None = None
    label_column: str | None = None
    ranges: list[list[float]] | None = None
    index_base: int | None = None


class VersionView(View):
    """A published, immutable version. method: of the students that answer queries.

    Imported versions have method head or linear, and neither job nor data set; their metrics are the options
    rivals and row_norm of the import, where they were given. Versions of bundles have ``imported`` in their
    metrics: model, version and program where they were made, and the digest of the manifest. inputs:
    names of the columns of rows, and of the label column of the data set; empty if they are not known.
    teacher_digest: null in versions of bundles without teacher. encoder_digest: of what makes numbers of
    records; null where rows are numbers.
    """

    model: str
    version: int
    job_id: str | None
    dataset_digest: str | None
    method: str
    class_count: int
    classes: list[str] = Field(
        description="All labels if there are at most 1000, otherwise none; …/classes lists them."
    )
    columns: int
    teacher_digest: str | None
    encoder_digest: str | None
    inputs: VersionInputs
    metrics: Json
    created_at: Time


class ClassView(View):
    """A class of a version. id: its number, used for pagination."""

    id: int
    label: str

    @classmethod
    def of_number(cls, numbered: tuple[int, str]) -> Self:
        """The view of a number and its label."""
        number, label = numbered
        return cls(id=number, label=label)


class DatasetClassView(View):
    """A class of a data set. id: its number, used for pagination. rows: in the training part, of the first
    1000 classes; null of others.
    """

    id: int
    label: str
    rows: int | None


class ModelView(View):
    """A model with its versions, newest first. has_more: whether older ones follow, linked in Link."""

    name: str
    versions: list[VersionView]
    has_more: bool
    aliases: list[Alias]


class CreateKey(Body):
    """An API key to create, of the caller's tenant; only operators give the scope operator.

    models: the models that a query key may query; empty means all.
    """

    model_config = ConfigDict(
        json_schema_extra={
            "anyOf": [
                {"properties": {"models": {"maxItems": 0}}},
                {"properties": {"scopes": {"items": {"enum": ["query", "download"]}}}},
            ]
        }
    )

    name: str = Field(max_length=100, json_schema_extra={"pattern": DISPLAY_NAME})
    scopes: list[str] = Field(
        max_length=5,
        json_schema_extra={
            "minItems": 1,
            "items": {"enum": ["admin", "download", "operator", "query", "train"]},
        },
    )
    models: list[str] = Field(
        [], max_length=MAX_MODELS, json_schema_extra={"items": {"type": "string", "pattern": MODEL_NAME}}
    )
    expires_in_seconds: float | None = Field(
        None, ge=1, le=MAX_SECONDS, description="Lifetime of the key; null: unlimited."
    )
    rate_limit: float | None = Field(
        None, ge=0, le=MAX_RATE, description="Requests per second; 0: unlimited; null: the server's setting."
    )
    rate_burst: int | None = Field(
        None, ge=1, le=MAX_RATE, description="Requests at once; null: those of one second."
    )
    samples: Literal["allowed", "never"] = Field(
        "allowed", description="Whether monitors may choose answers to queries with the key, or never do."
    )


class RotateKey(Body):
    """Rotation of a key. overlap_seconds: how long the previous secret stays valid."""

    overlap_seconds: float = Field(0.0, ge=0, le=MAX_OVERLAP_SECONDS)


class KeyView(View):
    """An API key without its secret. previous_until: end of the overlap after a rotation."""

    id: str
    name: str
    scopes: SortedNames
    models: SortedNames
    created_at: Time
    revoked_at: Time | None
    expires_at: Time | None
    rate_limit: float | None
    rate_burst: int | None
    samples: str
    rotated_at: Time | None
    previous_until: Time | None
    last_used_at: Time | None
    tenant: str


class RevokeTokens(Body):
    """Tokens of an issuer to revoke: by `sub` those that were issued to a subject, or by `jti` one token.

    reason: for the list and the audit log.
    """

    model_config = ConfigDict(
        json_schema_extra={
            "oneOf": [
                {"required": ["sub"], "properties": {"sub": {"type": "string"}, "jti": {"type": "null"}}},
                {"required": ["jti"], "properties": {"sub": {"type": "null"}, "jti": {"type": "string"}}},
            ]
        }
    )

    issuer: str = Field(max_length=MAX_ISSUER, json_schema_extra={"pattern": DISPLAY_NAME})
    sub: str | None = Field(None, max_length=MAX_SUBJECT, json_schema_extra={"pattern": DISPLAY_NAME})
    jti: str | None = Field(None, max_length=MAX_SUBJECT, json_schema_extra={"pattern": DISPLAY_NAME})
    reason: str | None = Field(None, max_length=MAX_REASON, json_schema_extra={"pattern": DISPLAY_NAME})


class NewKeyView(View):
    """A key that was created or rotated. key: its text, shown only here."""

    key: str
    details: KeyView


class UnitView(View):
    """A unit of work in progress. kind: prepare or chunk. unit: its number in the job. classes: how many."""

    job_id: str
    unit: int
    kind: str
    classes: int
    since: Time
    solver_pid: int | None


class WorkerView(View):
    """A worker process. alive: whether its heartbeat is recent; lost workers are listed for a minute.

    slots: units of work at a time. threads: of each solver. units: those in progress, each the preparation of
    a job or a chunk of its classes.
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
