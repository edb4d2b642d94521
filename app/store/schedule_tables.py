"""The table of schedules: when a version of a model is trained again by itself."""

from __future__ import annotations

from sqlalchemy import JSON, BigInteger, Boolean, Column, Double, Index, Integer, String, Table, false

from app.store.tables import metadata

schedules = Table(
    "schedules",
    metadata,
    Column("id", String(40), primary_key=True),
    Column("tenant", String(100), nullable=False),
    Column("model", String(100), nullable=False),
    # See `app.domain.schedules.ScheduleSettings`.
    Column("settings", JSON, nullable=False),
    Column("revision", Integer, nullable=False),
    Column("created_by", String(100), nullable=False),
    Column("created_at", Double, nullable=False),
    Column("updated_at", Double, nullable=False),
    # When it is due by time; NULL where it is not due by time.
    Column("next_at", Double, index=True),
    # The data set of the last training, whose rows are not new, and the last alarm that was looked at.
    Column("dataset_id", String(40)),
    Column("alarm_at", Double, nullable=False, server_default="0"),
    # The last training, its job, and what became of the last time that it was due.
    Column("started_at", Double, nullable=False, server_default="0"),
    Column("job_id", String(40)),
    Column("evaluation_id", String(40)),
    Column("outcome", String(100)),
    # Jobs that have failed one after the other; it is stopped after so many as it says.
    Column("failures", Integer, nullable=False, server_default="0"),
    Column("stopped", Boolean, nullable=False, server_default=false()),
    Column("row_bytes", BigInteger, nullable=False, server_default="0"),
    Index("ix_schedules_tenant_model", "tenant", "model", unique=True),
    Index("ix_schedules_tenant_use", "tenant", "row_bytes"),
)
