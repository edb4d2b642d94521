"""Tables with information about versions after their training: evaluations, and gates of aliases."""

from __future__ import annotations

from sqlalchemy import (
    JSON,
    BigInteger,
    Column,
    Double,
    ForeignKeyConstraint,
    Index,
    Integer,
    LargeBinary,
    String,
    Table,
    Text,
    bindparam,
)

from app.store.tables import UNFINISHED, metadata, tenant_column

_ID = String(40)
_NAME = String(100)

# Conditions that a version must have passed before its alias is moved to it.
gates = Table(
    "gates",
    metadata,
    tenant_column(primary_key=True),
    Column("model", _NAME, primary_key=True),
    Column("alias", _NAME, primary_key=True),
    Column("rule", String(20), nullable=False),
    # No foreign key: a data set may be deleted, and then nothing passes.
    Column("dataset_id", _ID, nullable=False),
    Column("tolerance", Double, nullable=False),
    Column("alpha", Double, nullable=False),
    Column("least_rows", Integer, nullable=False),
    Column("revision", Integer, nullable=False),
    Column("updated_at", Double, nullable=False),
    ForeignKeyConstraint(
        ["tenant", "model", "alias"],
        ["aliases.tenant", "aliases.model", "aliases.alias"],
        ondelete="CASCADE",
    ),
)

# Versions on data sets. No foreign keys: both may be deleted, and evaluations stay as history.
evaluations = Table(
    "evaluations",
    metadata,
    Column("id", _ID, primary_key=True),
    tenant_column(),
    # Model and number.
    Column("version", String(201), nullable=False),
    Column("baseline", String(201)),
    Column("dataset_id", _ID, nullable=False),
    Column("part", String(8), nullable=False),
    Column("tolerance", Double, nullable=False),
    Column("alpha", Double, nullable=False),
    Column("unknown_classes", String(8), nullable=False),
    Column("state", String(24), nullable=False),
    Column("created_at", Double, nullable=False),
    Column("created_by", _NAME, nullable=False),
    Column("started_at", Double),
    Column("finished_at", Double),
    Column("error_code", String(64)),
    Column("error_message", Text),
    Column("progress_done", Integer, nullable=False),
    Column("progress_total", Integer, nullable=False),
    Column("rows_used", BigInteger),
    Column("rows_left_out", JSON, nullable=False),
    Column("verdict", String(16)),
    Column("warnings", JSON, nullable=False),
    # JSON, compressed with zlib: the entries of thousands of classes.
    Column("report", LargeBinary),
    # Workers that have begun it.
    Column("starts", Integer, nullable=False, server_default="0"),
    Column("row_bytes", BigInteger, nullable=False, server_default="0"),
    Index("ix_evaluations_tenant_id", "tenant", "id", "row_bytes"),
    # The condition that the gate requires.
    Index("ix_evaluations_tenant_version", "tenant", "version", "dataset_id"),
    Index("ix_evaluations_unfinished", "id", sqlite_where=UNFINISHED, postgresql_where=UNFINISHED),
)

is_evaluated = evaluations.c.state.in_(
    bindparam("unfinished", ["queued", "running", "cancelling"], expanding=True, literal_execute=True)
)
