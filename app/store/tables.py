"""Tables of the service, the same on SQLite and PostgreSQL. The job engine has its own tables.

Times are seconds since the epoch. JSON columns contain text that the services have validated. Every reference
to a blob is an indexed foreign key, which makes the check for unreferenced blobs cheap.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Double,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
    bindparam,
    text,
    true,
)
from sqlalchemy.types import JSON

from app.domain.names import DEFAULT_TENANT

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)

_ID = String(40)
_DIGEST = String(64)
_NAME = String(100)
_LABEL = String(400)


def tenant_column(*, primary_key: bool = False) -> Column[str]:
    """The column of the tenant that a row belongs to."""
    return Column("tenant", _NAME, primary_key=primary_key, nullable=False, server_default=DEFAULT_TENANT)


_IN_OBJECTS = text("place = 'objects'")

blobs = Table(
    "blobs",
    metadata,
    Column("digest", _DIGEST, primary_key=True),
    Column("size", BigInteger, nullable=False),
    Column("created_at", Double, nullable=False),
    # False while a large blob is being stored in several transactions; readers ignore it until then.
    Column("complete", Boolean, nullable=False, server_default=true()),
    # Where the bytes are, see `app.store.bodies.Place`.
    Column("place", String(16), nullable=False, server_default="database"),
    # Blobs in an object store are searched separately; without an object store there are none.
    Index("ix_blobs_objects", "digest", sqlite_where=_IN_OBJECTS, postgresql_where=_IN_OBJECTS),
)

blob_chunks = Table(
    "blob_chunks",
    metadata,
    Column("digest", _DIGEST, ForeignKey("blobs.digest", ondelete="CASCADE"), primary_key=True),
    Column("position", Integer, primary_key=True),
    Column("data", LargeBinary, nullable=False),
)

UNFINISHED = text("state IN ('queued', 'running', 'cancelling')")

datasets = Table(
    "datasets",
    metadata,
    Column("id", _ID, primary_key=True),
    tenant_column(),
    Column("digest", _DIGEST, nullable=False),
    Column("name", String(200), nullable=False),
    Column("source_format", String(20), nullable=False),
    Column("size_bytes", BigInteger, nullable=False),
    Column("blob_digest", _DIGEST, ForeignKey("blobs.digest"), nullable=False, index=True),
    Column("rows", BigInteger, nullable=False),
    Column("test_rows", BigInteger, nullable=False),
    Column("columns", BigInteger, nullable=False),
    Column("summary", JSON, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("created_by", _NAME, nullable=False),
    Column("class_count", Integer, nullable=False, server_default="0"),
    # Size of its name, its summary and the names of its classes.
    Column("row_bytes", BigInteger, nullable=False, server_default="0"),
    # The first data set of the series, which is the series of itself; null if nothing was revised.
    Column("series", _ID),
    Column("revision", Integer, nullable=False, server_default="1"),
    Column("parent", _ID),
    Column("change", JSON),
    UniqueConstraint("tenant", "digest"),
    Index("ix_datasets_tenant_id", "tenant", "id", "row_bytes"),
    Index("ix_datasets_tenant_series", "tenant", "series", "revision"),
)

# By which the subjects of rows and of answers get their pseudonyms.
subject_keys = Table(
    "subject_keys",
    metadata,
    tenant_column(primary_key=True),
    Column("key", LargeBinary, nullable=False),
    Column("created_at", Double, nullable=False),
)

# Files that clients put into the object store at presigned addresses, until they become data sets.
uploads = Table(
    "uploads",
    metadata,
    Column("id", _ID, primary_key=True),
    tenant_column(),
    Column("bytes", BigInteger, nullable=False),
    Column("sha256", _DIGEST, nullable=False),
    Column("created_by", _NAME, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("expires_at", Double, nullable=False, index=True),
    Index("ix_uploads_tenant_expires_at", "tenant", "expires_at", "bytes"),
)

# The names of the classes of data sets, in pieces, so that a page of them is read without the others. They
# have a
# table of their own, because they may take many MiB, and most queries on data sets do not need them.
dataset_classes = Table(
    "dataset_classes",
    metadata,
    Column(
        "dataset_id",
        _ID,
        ForeignKey("datasets.id", ondelete="CASCADE", name="fk_dataset_classes_dataset_id_datasets"),
        primary_key=True,
    ),
    # Number of the first class of the piece.
    Column("first", Integer, primary_key=True),
    Column("labels", JSON, nullable=False),
)

jobs = Table(
    "jobs",
    metadata,
    Column("id", _ID, primary_key=True),
    tenant_column(),
    # No foreign key: a data set may be deleted when no unfinished job needs it; its jobs stay as history.
    Column("dataset_id", _ID, nullable=False, index=True),
    Column("model", _NAME, nullable=False),
    Column("spec", JSON, nullable=False),
    Column("state", String(24), nullable=False, index=True),
    Column("attempt", Integer, nullable=False),
    Column("stage", String(24), nullable=False),
    Column("progress_done", Integer, nullable=False),
    Column("progress_total", Integer, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("created_by", _NAME, nullable=False),
    Column("started_at", Double),
    Column("finished_at", Double),
    Column("error_code", String(64)),
    Column("error_message", Text),
    Column("provenance", JSON, nullable=False),
    Column("preparation_digest", _DIGEST, ForeignKey("blobs.digest"), index=True),
    Column("teacher_digest", _DIGEST, ForeignKey("blobs.digest"), index=True),
    # Labels that a job found for the rows of its data set.
    Column("labels_digest", _DIGEST, ForeignKey("blobs.digest"), index=True),
    # Rows of the data set whose labels the job found suspect.
    Column("suspects_digest", _DIGEST, ForeignKey("blobs.digest"), index=True),
    # The shared base of classes that are added to the job's students, and the examples of a class that
    # it adds.
    Column("addition_digest", _DIGEST, ForeignKey("blobs.digest"), index=True),
    Column("examples_digest", _DIGEST, ForeignKey("blobs.digest"), index=True),
    Column("encoder_digest", _DIGEST, ForeignKey("blobs.digest"), index=True),
    Column("profile_digest", _DIGEST, ForeignKey("blobs.digest"), index=True),
    # Numbers of the rows that the job was trained on, see `core.data.row_identity`.
    Column("rows_digest", _DIGEST, ForeignKey("blobs.digest"), index=True),
    Column("version", Integer),
    Column("revision", Integer, nullable=False),
    Column("priority", String(8), nullable=False, server_default="normal"),
    # The revision that the alias of the job had when the job was submitted; 0 if it did not exist.
    Column("alias_revision", Integer, nullable=False, server_default="0"),
    # Size of the packed students that the job stored.
    Column("student_bytes", BigInteger, nullable=False, server_default="0"),
    # When the attempt was queued.
    Column("queued_at", Double),
    # W3C trace context of the request that submitted the job, if it is traced.
    Column("traceparent", String(55)),
    # Objects that the specification names, so that searching for them does not read specifications.
    Column("test_dataset_id", _ID),
    Column("teacher_model", String(201)),
    # The record of a version with other thresholds has the students of this job but for its own.
    Column("base_job_id", _ID, ForeignKey("jobs.id"), index=True),
    # Bytes of the job's row and of its students, traces, curves, events and request, as `row_bytes` counts.
    Column("row_bytes", BigInteger, nullable=False, server_default="0"),
    Index("ix_jobs_tenant_id", "tenant", "id"),
    # Everything that the use of a tenant is made of: its sums do not read the jobs' long columns.
    Index(
        "ix_jobs_tenant_use",
        "tenant",
        "state",
        "student_bytes",
        "row_bytes",
        "preparation_digest",
        "teacher_digest",
        "labels_digest",
        "encoder_digest",
        "profile_digest",
        "rows_digest",
        "suspects_digest",
        "addition_digest",
        "examples_digest",
    ),
    # Few of many jobs are unfinished, and they are looked at all the time.
    Index("ix_jobs_unfinished", "id", sqlite_where=UNFINISHED, postgresql_where=UNFINISHED),
    # All that admission and the reconciler read every second.
    Index(
        "ix_jobs_unfinished_turns",
        "state",
        "stage",
        "id",
        "tenant",
        "created_by",
        "attempt",
        "priority",
        sqlite_where=UNFINISHED,
        postgresql_where=UNFINISHED,
    ),
    Index(
        "ix_jobs_unfinished_owner",
        "tenant",
        "created_by",
        sqlite_where=UNFINISHED,
        postgresql_where=UNFINISHED,
    ),
)

# The states are in the statement's text, because with parameters the databases would not use partial indices.
is_unfinished = jobs.c.state.in_(
    bindparam("unfinished", ["queued", "running", "cancelling"], expanding=True, literal_execute=True)
)

# Units of work that are queued or running. owner: the API key of the job. turn: the queue position, from fair
# queueing between tenants and, within each, between owners.
job_units = Table(
    "job_units",
    metadata,
    Column("job_id", _ID, ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True),
    Column("attempt", Integer, primary_key=True),
    Column("number", Integer, primary_key=True),
    Column("tenant", _NAME, nullable=False, index=True),
    Column("owner", _NAME, nullable=False, server_default=""),
    Column("level", Integer, nullable=False),
    Column("turn", Integer, nullable=False),
    Column("executor_id", String(64)),
    Column("started_at", Double),
    # Workers that started it since it last stored a result. A unit that ends its workers is given up.
    Column("starts", Integer, nullable=False, server_default="0"),
)

job_students = Table(
    "job_students",
    metadata,
    Column("job_id", _ID, ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True),
    Column("class_index", Integer, primary_key=True),
    Column("method", String(16), primary_key=True),
    Column("label", _LABEL, nullable=False),
    Column("state", String(16), nullable=False),
    Column("objective", Double),
    Column("gap", Double),
    Column("iterations", BigInteger),
    Column("seconds", Double),
    Column("status", String(24)),
    Column("threshold", Double),
    Column("metrics", JSON, nullable=False),
    Column("digest", _DIGEST, ForeignKey("blobs.digest"), index=True),
    Column("error", Text),
    Column("chosen", JSON(none_as_null=True)),
    # Digest of the map that packages of several students share; NULL if the package contains its map.
    Column("map_digest", _DIGEST, ForeignKey("blobs.digest")),
    Index("ix_job_students_job_id_label", "job_id", "label"),
    Index("ix_job_students_map_digest", "map_digest", "job_id"),
)

# A table of its own, because job_students is read often and in long pages.
student_traces = Table(
    "student_traces",
    metadata,
    Column("job_id", _ID, ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True),
    Column("class_index", Integer, primary_key=True),
    Column("method", String(16), primary_key=True),
    # JSON, compressed with zlib.
    Column("trace", LargeBinary, nullable=False),
)

# Points of the ROC curves, of students and teachers that were measured.
student_curves = Table(
    "student_curves",
    metadata,
    Column("job_id", _ID, ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True),
    Column("class_index", Integer, primary_key=True),
    Column("method", String(16), primary_key=True),
    # JSON, compressed with zlib: see `app.domain.curves`.
    Column("curve", LargeBinary, nullable=False),
)

# Scores of remote teachers, until the job succeeds: float64, little endian, one row for each batch of rows.
remote_scores = Table(
    "remote_scores",
    metadata,
    Column("job_id", _ID, ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True),
    # 0: training rows, 1: test rows.
    Column("part", Integer, primary_key=True),
    # Number of the batch's first row.
    Column("first", BigInteger, primary_key=True),
    Column("size", BigInteger, nullable=False),
    Column("data", LargeBinary, nullable=False),
)

job_events = Table(
    "job_events",
    metadata,
    Column("job_id", _ID, ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True),
    Column("seq", Integer, primary_key=True),
    Column("at", Double, nullable=False),
    Column("type", String(40), nullable=False),
    Column("data", JSON, nullable=False),
)

idempotency_keys = Table(
    "idempotency_keys",
    metadata,
    tenant_column(primary_key=True),
    Column("owner", _NAME, primary_key=True),
    Column("key", String(255), primary_key=True),
    Column("body_digest", _DIGEST, nullable=False),
    Column("job_id", _ID, nullable=False),
    Column("created_at", Double, nullable=False),
)

model_versions = Table(
    "model_versions",
    metadata,
    tenant_column(primary_key=True),
    Column("model", _NAME, primary_key=True),
    Column("version", Integer, primary_key=True),
    # An imported version has neither a job nor a data set.
    Column("job_id", _ID, ForeignKey("jobs.id"), unique=True),
    Column("dataset_digest", _DIGEST),
    Column("method", String(16), nullable=False),
    # All labels if they are few; otherwise empty, and the labels are in the blob `class_table`.
    Column("classes", JSON, nullable=False),
    Column("class_count", Integer, nullable=False),
    Column("class_table", _DIGEST, ForeignKey("blobs.digest"), index=True),
    Column("columns", BigInteger, nullable=False),
    # A bundle can be without the teacher; the head of an imported version is always here.
    Column("teacher_digest", _DIGEST, ForeignKey("blobs.digest"), index=True),
    Column("encoder_digest", _DIGEST, ForeignKey("blobs.digest"), index=True),
    Column("profile_digest", _DIGEST, ForeignKey("blobs.digest"), index=True),
    Column("metrics", JSON, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("row_bytes", BigInteger, nullable=False, server_default="0"),
    # Bytes of its rows in input_counts and answer_counts.
    Column("input_bytes", BigInteger, nullable=False, server_default="0"),
    # As of jobs.
    Index(
        "ix_model_versions_tenant_use",
        *("tenant", "row_bytes", "input_bytes", "teacher_digest"),
        *("class_table", "encoder_digest", "profile_digest"),
    ),
)

aliases = Table(
    "aliases",
    metadata,
    tenant_column(primary_key=True),
    Column("model", _NAME, primary_key=True),
    Column("alias", _NAME, primary_key=True),
    Column("version", Integer, nullable=False),
    Column("revision", Integer, nullable=False),
    Column("updated_at", Double, nullable=False),
    # The revision of the last move by an operator; 0 if all moves were made by publications.
    Column("manual_revision", Integer, nullable=False, server_default="0"),
    ForeignKeyConstraint(
        ["tenant", "model", "version"],
        ["model_versions.tenant", "model_versions.model", "model_versions.version"],
    ),
)

# The last moves of the aliases of each model: ids sort by time. No foreign key: a version may be deleted.
alias_moves = Table(
    "alias_moves",
    metadata,
    Column("id", _ID, primary_key=True),
    tenant_column(),
    Column("model", _NAME, nullable=False),
    Column("alias", _NAME, nullable=False),
    Column("at", Double, nullable=False),
    Column("version", Integer),
    Column("previous", Integer),
    Column("actor", _NAME, nullable=False),
    Column("actor_name", _NAME, nullable=False),
    Index("ix_alias_moves_tenant_model_alias_id", "tenant", "model", "alias", "id"),
    Index("ix_alias_moves_tenant_model_id", "tenant", "model", "id"),
)

# The highest version number and alias revision that were deleted from a model, so that neither is reused.
# The row with the empty name is for all models that have neither a row nor a version.
retired_numbers = Table(
    "retired_numbers",
    metadata,
    tenant_column(primary_key=True),
    Column("model", _NAME, primary_key=True),
    Column("version", Integer, nullable=False),
    Column("revision", Integer, nullable=False),
)

api_keys = Table(
    "api_keys",
    metadata,
    Column("id", _ID, primary_key=True),
    tenant_column(),
    Column("name", _NAME, nullable=False),
    Column("digest", _DIGEST, nullable=False),
    Column("scopes", JSON, nullable=False),
    Column("models", JSON, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("revoked_at", Double),
    Column("expires_at", Double),
    Column("rate_limit", Double),
    Column("rate_burst", Integer),
    Column("previous_digest", _DIGEST),
    Column("previous_until", Double),
    Column("rotated_at", Double),
    Column("last_used_at", Double),
    # Whether monitors may choose its answers: allowed or never.
    Column("samples", String(8), nullable=False, server_default="allowed"),
    # Where the rate limit of the key is counted, see `app.auth.rate_limit`.
    Column("cell", Integer),
    # Size of the names of its models.
    Column("row_bytes", BigInteger, nullable=False, server_default="0"),
    Index("ix_api_keys_tenant_id", "tenant", "id", "row_bytes"),
    # Active and recently ended keys are few among all.
    Index("ix_api_keys_revoked_at", "revoked_at", "expires_at"),
    Index("ix_api_keys_tenant_revoked_at", "tenant", "revoked_at", "expires_at"),
    Index("ix_api_keys_cell", "cell", unique=True),
)

# Tokens of issuers that are not accepted any more, as long as they could be valid otherwise.
token_revocations = Table(
    "token_revocations",
    metadata,
    Column("id", _ID, primary_key=True),
    tenant_column(),
    Column("issuer", String(200), nullable=False),
    Column("sub", String(255)),
    Column("jti", String(255)),
    Column("reason", String(200), nullable=False),
    Column("created_by", _NAME, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("expires_at", Double, nullable=False, index=True),
    Index("ix_token_revocations_tenant_id", "tenant", "id"),
)

# Sessions of people who use the dashboard, each begun with an API key.
sessions = Table(
    "sessions",
    metadata,
    Column("id", _ID, primary_key=True),
    Column("key_id", _ID, ForeignKey("api_keys.id", ondelete="CASCADE"), nullable=False, index=True),
    Column("digest", _DIGEST, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("expires_at", Double, nullable=False, index=True),
)

# Receivers of events, see `app.domain.webhook`. Their secrets are made from the root secret, not stored.
webhooks = Table(
    "webhooks",
    metadata,
    Column("id", _ID, primary_key=True),
    tenant_column(),
    Column("name", _NAME, nullable=False),
    Column("url", Text, nullable=False),
    Column("events", JSON, nullable=False),
    Column("models", JSON, nullable=False),
    Column("form", String(16), nullable=False),
    Column("created_at", Double, nullable=False),
    Column("created_by", _NAME, nullable=False),
    Column("secret_check", String(16), nullable=False),
    # NULL while it is enabled.
    Column("disabled_reason", String(16)),
    Column("dead_in_row", Integer, nullable=False, server_default="0"),
    Column("row_bytes", BigInteger, nullable=False, server_default="0"),
    Index("ix_webhooks_tenant_id", "tenant", "id", "row_bytes"),
)

_IS_DUE = text("due_at IS NOT NULL")

# One event for one webhook. due_at is NULL once it has ended, and while its webhook is disabled.
webhook_deliveries = Table(
    "webhook_deliveries",
    metadata,
    Column("id", _ID, primary_key=True),
    tenant_column(),
    Column("webhook_id", _ID, ForeignKey("webhooks.id", ondelete="CASCADE"), nullable=False),
    Column("event_id", _ID, nullable=False),
    Column("type", String(40), nullable=False),
    Column("subject", Text, nullable=False),
    Column("at", Double, nullable=False),
    Column("data", JSON, nullable=False),
    Column("state", String(16), nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("due_at", Double),
    Column("status", Integer),
    Column("error", String(300)),
    Column("ended_at", Double),
    Column("row_bytes", BigInteger, nullable=False, server_default="0"),
    UniqueConstraint("webhook_id", "event_id"),
    Index("ix_webhook_deliveries_tenant_id", "tenant", "id", "row_bytes"),
    Index("ix_webhook_deliveries_webhook_id_id", "webhook_id", "id", "state"),
    Index("ix_webhook_deliveries_due_at", "due_at", sqlite_where=_IS_DUE, postgresql_where=_IS_DUE),
    Index(
        "ix_webhook_deliveries_webhook_id_due_at",
        "webhook_id",
        "due_at",
        sqlite_where=_IS_DUE,
        postgresql_where=_IS_DUE,
    ),
)

# Quotas that an operator has set; NULL means the default of the settings.
tenant_quotas = Table(
    "tenant_quotas",
    metadata,
    Column("tenant", _NAME, primary_key=True),
    Column("stored_bytes", BigInteger),
    Column("datasets", BigInteger),
    Column("versions", BigInteger),
    Column("unfinished_jobs", BigInteger),
    Column("keys", BigInteger),
)

# Append-only; old rows are deleted. Ids sort by time. The tenant is empty in rows about the installation.
audit_log = Table(
    "audit_log",
    metadata,
    Column("id", _ID, primary_key=True),
    tenant_column(),
    Column("at", Double, nullable=False),
    Column("actor", _NAME, nullable=False),
    Column("actor_name", _NAME, nullable=False),
    Column("scope", String(40), nullable=False),
    Column("action", String(60), nullable=False),
    Column("object", String(500), nullable=False),
    Column("outcome", String(64), nullable=False),
    Column("request_id", String(128)),
    Column("address", String(64)),
    Column("details", JSON, nullable=False),
    Index("ix_audit_log_tenant_id", "tenant", "id"),
    Index("ix_audit_log_actor_id", "actor", "id"),
    Index("ix_audit_log_action_id", "action", "id"),
    Index("ix_audit_log_object_id", "object", "id"),
)

# One row. Its revision grows with every published version, moved alias and changed key. A server polls it to
# learn whether its caches are up to date.
registry_clock = Table(
    "registry_clock",
    metadata,
    Column("id", Integer, CheckConstraint("id = 1", name="one_row"), primary_key=True, autoincrement=False),
    Column("revision", BigInteger, nullable=False),
)

# The last changes of the registry, one row for each revision: the name of a model, or the id of an API key.
registry_changes = Table(
    "registry_changes",
    metadata,
    Column("revision", BigInteger, primary_key=True, autoincrement=False),
    Column("kind", String(8), nullable=False),
    # The id of a key or a revocation, or tenant and name of a model, see `app.domain.names.qualified`.
    Column("name", String(201), nullable=False),
)
