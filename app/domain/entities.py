"""Entities of the service and the states of jobs.

Times are seconds since the epoch, UTC. Identifiers made by `new_id` sort by creation time.
"""

from __future__ import annotations

import math
import secrets
import time
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Any, Final, NamedTuple, TypeAlias

from pydantic import computed_field

from app.domain.document import OWN, Document, Time
from app.domain.names import DEFAULT_TENANT, qualified

Json: TypeAlias = dict[str, Any]
AUTO: Final = "auto"
"""The value of a hyper-parameter that the job chooses itself."""


def new_id(prefix: str, at: float | None = None) -> str:
    """``prefix_``, 15 hex digits of time and 9 random ones: sortable and unguessable enough.

    Time is in milliseconds with a fraction of 12 bits: a quarter of a microsecond, so that identifiers that a
    process makes for one row after another sort by creation, too. at: the time, by default the current one.
    """
    now = time.time() if at is None else at
    return f"{prefix}_{int(now * 1000 * 4096):015x}{secrets.randbits(36):09x}"


@dataclass(frozen=True, slots=True)
class ListedDataset(Document):
    """A data set in a list. digest: SHA-256 of the uploaded bytes."""

    id: str
    digest: str
    name: str
    source_format: str
    size_bytes: int
    rows: int
    test_rows: int
    columns: int
    class_count: int
    created_at: Time
    created_by: str
    tenant: str


@dataclass(frozen=True, slots=True)
class PlannedUpload:
    """A file of ``bytes`` with a SHA-256 that a client puts into the object store itself, for a data set."""

    id: str
    tenant: str
    bytes: int
    sha256: str
    created_by: str
    created_at: float
    expires_at: float


@dataclass(frozen=True, slots=True)
class Dataset:
    """A validated data set, identified in its tenant by ``digest``, the SHA-256 of the uploaded bytes.

    The names of its classes may take many MiB, so they are read by themselves, see `Datasets.classes`.

    blob_digest: of the safetensors file with its rows (see `app.ingest.dataset_format`). series: of a
    revision, the id of the first data set of its series; None of that itself. revision: its number in the
    series, from 1. parent: id of the data set that was changed; change: what changed, see
    `app.services.revisions`.
    """

    id: str
    digest: str
    name: str
    source_format: str
    size_bytes: int
    blob_digest: str
    rows: int
    test_rows: int
    columns: int
    class_count: int
    summary: Json
    created_at: float
    created_by: str
    tenant: str = DEFAULT_TENANT
    series: str | None = None
    revision: int = 1
    parent: str | None = None
    change: Json | None = None

    @property
    def first(self) -> str:
        """The id of the first data set of its series, which may be this one."""
        return self.series or self.id

    @property
    def reading(self) -> list[Json]:
        """The decisions of the reader of its file, each with name, value and reason."""
        found: list[Json] = self.summary.get("reading", [])
        return found

    @property
    def confirmed_rows(self) -> list[int]:
        """Numbers of training rows whose labels people have confirmed where a job had found them suspect."""
        found: list[int] = self.summary.get("confirmed_rows", [])
        return found

    @property
    def inputs(self) -> Json:
        """What a version keeps of the columns: ``columns``, ``label_column``, ``ranges``, ``means`` and
        ``index_base``.

        columns: their names in order, with that of the label column; ranges: the smallest and the largest
        value of each, and means: their means, unless a summary does not list all of them. index_base: the
        first index in the svmlight file.
        """
        listed = self.summary.get("features", [])
        if len(listed) != self.columns:
            listed = []
        names = [column.get("name") for column in listed]
        known: Json = {}
        if listed and None not in names:
            known |= {"columns": names, "label_column": self.summary.get("label_column")}
        if listed and all("min" in column and "max" in column for column in listed):
            known["ranges"] = [[column["min"], column["max"]] for column in listed]
        if listed and all("mean" in column for column in listed):
            known["means"] = [column["mean"] for column in listed]
        base = next((one["value"] for one in self.reading if one["name"] == "index_base"), None)
        return known if base is None else known | {"index_base": int(base)}


class Priority(StrEnum):
    """Priority of a job. Workers take units of a higher priority before all those of a lower one."""

    LOW = "low"
    NORMAL = "normal"
    HIGH = "high"


class JobState(StrEnum):
    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    PARTIALLY_SUCCEEDED = "partially_succeeded"
    FAILED = "failed"
    CANCELLING = "cancelling"
    CANCELLED = "cancelled"

    @property
    def ended(self) -> bool:
        return self in _ENDED


_ENDED = frozenset(
    {JobState.SUCCEEDED, JobState.PARTIALLY_SUCCEEDED, JobState.FAILED, JobState.CANCELLED},
)

ACTIVE_STATES = (JobState.QUEUED, JobState.RUNNING)
"""States in which a job's attempt goes on. A job is queued until its first work unit starts."""

TRANSITIONS: dict[JobState, frozenset[JobState]] = {
    # An attempt that cannot go on is followed by another one: the job returns to the queue.
    JobState.QUEUED: frozenset(
        {JobState.QUEUED, JobState.RUNNING, JobState.CANCELLING, JobState.CANCELLED, JobState.FAILED}
    ),
    JobState.RUNNING: frozenset({*_ENDED, JobState.CANCELLING, JobState.QUEUED}),
    JobState.CANCELLING: frozenset({JobState.CANCELLED, JobState.FAILED}),
    JobState.SUCCEEDED: frozenset(),
    # a retry puts an ended job back in the queue
    JobState.PARTIALLY_SUCCEEDED: frozenset({JobState.QUEUED}),
    JobState.FAILED: frozenset({JobState.QUEUED}),
    JobState.CANCELLED: frozenset({JobState.QUEUED}),
}


@dataclass(frozen=True, slots=True)
class Resources:
    """What a tenant uses or may use.

    stored_bytes: of data sets, models and jobs, and of the rows about them. keys: valid API keys.
    """

    stored_bytes: int
    datasets: int
    versions: int
    unfinished_jobs: int
    keys: int


WAITING = "waiting"
"""Stage of a queued job that has not been admitted to the queue of jobs yet."""
STARVES = "solver_starves"
"""Code of the warning that a running job's solver waits for the processor; in its provenance, whether."""
STAGES = "stages"
"""Of a running job's provenance: when each stage of this attempt began, in seconds since the epoch."""
BUSY_PROCESSOR = "other programs use the processor"


@dataclass(frozen=True, slots=True)
class Job:
    """One training job.

    attempt: 0 for the first run, one more for each retry; names the workflow together with the id.
    revision: counts every change; the job's ETag.
    spec: the TrainingSpec as JSON. provenance: seed, library versions and digests, to repeat the run.
    preparation_digest, teacher_digest: blobs written at the end of the teacher stage. labels_digest: blob of
    the labels that the job found for the rows of its data set; None without a labelling. suspects_digest:
    blob of the rows whose labels it found suspect; None if it has not looked for any. encoder_digest,
    profile_digest: blobs of the encoder of its records, and of their columns in training; None where rows are
    numbers.
    progress_done / progress_total: in students, the teacher counted as one more.
    created_by: id of the API key. Workers alternate between tenants, and within one between its keys.
    alias_revision: of the alias that the job moves, when the job was submitted; 0 if it did not exist.
    student_bytes: size of the packed students that it stored.
    queued_at: when this attempt was queued; None of one that never was. traceparent: of the request that
    submitted it, if that is traced.
    base_job_id: of the record of a version that is made of another one, the job that trained its students;
    the record has rows of those that differ. rows_digest: blob of the numbers of its training rows, see
    `core.data.row_identity`. examples_digest: blob of the examples of a class that the job adds;
    addition_digest: blob of what all classes share that are added to the students of the job.
    """

    id: str
    dataset_id: str
    model: str
    spec: Json
    state: JobState
    attempt: int
    stage: str
    progress_done: int
    progress_total: int
    created_at: float
    created_by: str
    started_at: float | None = None
    finished_at: float | None = None
    error_code: str | None = None
    error_message: str | None = None
    provenance: Json = field(default_factory=dict)
    preparation_digest: str | None = None
    teacher_digest: str | None = None
    version: int | None = None
    revision: int = 0
    priority: Priority = Priority.NORMAL
    tenant: str = DEFAULT_TENANT
    alias_revision: int = 0
    student_bytes: int = 0
    queued_at: float | None = None
    traceparent: str | None = None
    labels_digest: str | None = None
    suspects_digest: str | None = None
    encoder_digest: str | None = None
    profile_digest: str | None = None
    base_job_id: str | None = None
    rows_digest: str | None = None
    addition_digest: str | None = None
    examples_digest: str | None = None

    @property
    def addition(self) -> Json | None:
        """Which class the job adds to a version, and how; None for a job that trains one."""
        return self.provenance.get("addition")

    @property
    def workflow_id(self) -> str:
        return workflow_id(self.id, self.attempt)

    @property
    def warnings(self) -> list[Json]:
        """What it does not repeat of the version that it trains again, then what is doubtful of its columns
        and of its first students. Only the last ones name a class.

        Between them, while it runs, that its solver waits for the processor.
        """
        provenance, starves = self.provenance, []
        if self.state is JobState.RUNNING and provenance.get(STARVES):
            starves = [{"code": STARVES, "message": f"The solver waits: {BUSY_PROCESSOR}."}]
        about_all = [*provenance.get("not_repeated", ()), *provenance.get("schema_warnings", ())]
        return [*about_all, *starves, *provenance.get("warnings", ())]


def workflow_id(job_id: str, attempt: int) -> str:
    """Id of the workflow of one attempt at a job."""
    return f"{job_id}.{attempt}"


class StudentState(StrEnum):
    PENDING = "pending"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class StudentRow(Document):
    """The student of one class and method. id: the number of the class, used for pagination.

    method: of the student, or ``teacher`` (the teacher as a binary classifier; only metrics). metrics: on the
    test part, empty without one; for calibrated students also ``brier``, ``base_brier`` (of predicting the
    class frequency for every row), ``calibration_error`` and the bins of ``reliability``. ``guard``: F of
    student and teacher on held-out rows, with ``warning`` and ``message`` if the student is clearly worse;
    ``false_positives``: budget and expected rate, likewise. ``own_rows``: answers on the rows that it was
    trained on, with both, if it accepts none of its class or answers all rows alike. digest: of the packed
    student, null for ``teacher`` and before it is trained. map_digest: of the map that the packed student
    names, null where it holds its map.
    chosen: the selected hyper-parameters with their cross-validated ``score`` and ``standard_error``; for
    compact students ``n_landmarks`` and ``relative_cost``; null without a search.
    """

    job_id: Annotated[str, OWN]
    class_index: int
    label: str
    method: str
    state: StudentState
    objective: float | None = None
    gap: float | None = None
    iterations: int | None = None
    seconds: float | None = None
    status: str | None = None
    threshold: float | None = None
    metrics: Json = field(default_factory=dict)
    digest: str | None = None
    error: str | None = None
    chosen: Json | None = None
    map_digest: str | None = None

    @computed_field  # type: ignore[prop-decorator]
    @property
    def id(self) -> int:
        """The number of the class."""
        return self.class_index


@dataclass(frozen=True, slots=True)
class Event(Document):
    """An event of a job. id, seq: its number, counted from 1 within the job."""

    job_id: Annotated[str, OWN]
    seq: int
    at: Time
    type: str
    data: Json

    @computed_field  # type: ignore[prop-decorator]
    @property
    def id(self) -> int:
        """The number of the event."""
        return self.seq


@dataclass(frozen=True, slots=True)
class ModelVersion:
    """A published, immutable version.

    method: of the students that answer queries; of an imported version "head" (rows of a teacher) or "linear"
        (trained students). An imported version has neither job nor data set.
    classes: all labels in order, or none if there are more than `app.services.models.LISTED_CLASSES`.
    class_count: number of classes. class_table: blob of all labels (`core.packed.PackedLabels`), if any.
    teacher_digest: blob of the packed teacher, None if the version came from a bundle without it, or of the
        packed head of an imported version.
    encoder_digest: blob of the encoder of records, `core.packed.encoder`; None where rows are numbers.
    profile_digest: blob of their columns in training, `core.packed.input_profile`; None also where
        a bundle had none.
    """

    model: str
    version: int
    job_id: str | None
    dataset_digest: str | None
    method: str
    classes: tuple[str, ...]
    columns: int
    teacher_digest: str | None
    metrics: Json
    created_at: float
    class_count: int = -1
    class_table: str | None = None
    tenant: str = DEFAULT_TENANT
    encoder_digest: str | None = None
    profile_digest: str | None = None

    def __post_init__(self) -> None:
        if self.class_count < 0:
            object.__setattr__(self, "class_count", len(self.classes))

    @property
    def inputs(self) -> Json:
        """What is kept of the columns of its rows, see `Dataset.inputs`; nothing of an imported head."""
        found: Json = self.metrics.get("inputs", {})
        return found

    @property
    def qualified_model(self) -> str:
        """The tenant and the model, see `qualified`."""
        return qualified(self.tenant, self.model)

    @property
    def imported(self) -> bool:
        """Whether the version was imported instead of trained by a job."""
        return self.job_id is None


@dataclass(frozen=True, slots=True)
class Alias(Document):
    """A movable name of a version. revision: its ETag, for If-Match."""

    model: str
    alias: str
    version: int
    revision: int
    updated_at: Time
    tenant: Annotated[str, OWN] = DEFAULT_TENANT
    manual_revision: Annotated[int, OWN] = 0
    """The revision of the last move by an operator, 0 if there was none."""


@dataclass(frozen=True, slots=True)
class ModelSummary(Document):
    """A model in a list. id: its name. updated_at: when its newest version was published."""

    name: str
    versions: int
    latest_version: int
    updated_at: Time
    aliases: tuple[Alias, ...]
    tenant: str = DEFAULT_TENANT

    @computed_field  # type: ignore[prop-decorator]
    @property
    def id(self) -> str:
        """The name of the model."""
        return self.name


@dataclass(frozen=True, slots=True)
class ApiKey:
    """An API key as stored: never the key itself, only the SHA-256 of its random part.

    Also what a caller may do who has no key in the database: then ``digest`` is empty.

    scopes: of "operator", "admin", "train", "download", "query". models: the models of its tenant that a key
        with only the last two may download or query; empty means all.
    rate_limit: requests per second, 0 for unlimited. rate_burst: requests at once. None for either: the
        server's setting.
    previous_digest: of the secret before the last rotation, valid until previous_until; None if invalid.
    last_used_at: accurate to about a minute.
    samples: "never" if monitors may choose none of its answers, "allowed" otherwise.
    cell: where its rate limit is counted, see `app.auth.rate_limit`.
    """

    id: str
    name: str
    digest: str
    scopes: frozenset[str]
    models: frozenset[str]
    created_at: float
    revoked_at: float | None = None
    expires_at: float | None = None
    rate_limit: float | None = None
    rate_burst: int | None = None
    previous_digest: str | None = None
    previous_until: float | None = None
    rotated_at: float | None = None
    last_used_at: float | None = None
    tenant: str = DEFAULT_TENANT
    samples: str = "allowed"
    cell: int | None = field(default=None, compare=False)

    @property
    def ends_at(self) -> float:
        """When it was revoked, or when it expires; infinity for neither."""
        moments = (moment for moment in (self.revoked_at, self.expires_at) if moment is not None)
        return min(moments, default=math.inf)


class Caller(NamedTuple):
    """Who wants work done: a tenant, and the id of one of its API keys."""

    tenant: str
    key: str

    @classmethod
    def of(cls, key: ApiKey) -> Caller:
        """The caller with an API key."""
        return cls(key.tenant, key.id)


@dataclass(frozen=True, slots=True)
class TokenRevocation(Document):
    """Tokens of an issuer that are not accepted any more: the one with the id ``jti``, or all of the subject
    ``sub`` that were issued before; the other is null.

    expires_at: when these tokens have expired themselves.
    """

    id: str
    tenant: str
    issuer: str
    sub: str | None
    jti: str | None
    reason: str
    created_by: str
    created_at: Time
    expires_at: Time


@dataclass(frozen=True, slots=True)
class Session:
    """A session of the dashboard: for a short time it does what the API key ``key_id`` may do.

    digest: SHA-256 of its secret.
    """

    id: str
    key_id: str
    digest: str
    created_at: float
    expires_at: float


@dataclass(frozen=True, slots=True)
class AliasMove(Document):
    """A move of an alias. version: null if it was deleted. previous: null if it was created.

    actor: id of the API key; "system" for the publication of a job; empty if it is not known.
    """

    id: str
    model: Annotated[str, OWN]
    alias: str
    at: Time
    version: int | None
    previous: int | None
    actor: str
    actor_name: str
    tenant: Annotated[str, OWN] = DEFAULT_TENANT


@dataclass(frozen=True, slots=True)
class AuditRecord(Document):
    """An action or a denied request.

    actor: id of the API key, "anonymous", "cli", "system" for the service itself, or "unknown".
    action: for example "dataset.delete". object: the id of its object. outcome: "done", "unchanged", or the
        code of the error. details: additional facts; never a secret or a body. tenant: whose object it is;
        empty for the installation's own.
    """

    id: str
    at: Time
    actor: str
    actor_name: str
    scope: str
    action: str
    object: str
    outcome: str
    request_id: str | None = None
    address: str | None = None
    details: Json = field(default_factory=dict)
    tenant: str = ""


WORKER_ALIVE_SECONDS = 15.0
"""A worker without a heartbeat for longer gets no units of a job, and cancellations do not wait for it."""


@dataclass(frozen=True, slots=True)
class Worker:
    """A worker process.

    beat_at: its last heartbeat. slots: units that it works on at a time. threads: of each of its solvers.
    solver_bytes: memory limit of one of its solvers; 0 without one.
    units: those in progress at its last heartbeat. lost_at: when its peers declared it lost and took over.
    """

    executor_id: str
    host: str
    pid: int
    started_at: float
    beat_at: float
    slots: int = 1
    threads: int = 1
    units: tuple[Json, ...] = ()
    solver_bytes: int = 0
    lost_at: float | None = None

    def is_alive(self, now: float, timeout: float) -> bool:
        """Whether the last heartbeat is at most ``timeout`` seconds old and no peer has taken over."""
        return self.lost_at is None and now - self.beat_at <= timeout
