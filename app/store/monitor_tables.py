"""Tables of monitors: their settings, the answers that people are asked about, and people's feedback."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    Double,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    LargeBinary,
    String,
    Table,
)

from app.store.tables import metadata

# A monitor ends with its alias. A run ends when the alias moves or the monitor's settings change; results
# of an
# earlier run counts.
monitors = Table(
    "monitors",
    metadata,
    Column("id", String(40), primary_key=True),
    Column("tenant", String(100), nullable=False),
    Column("model", String(100), nullable=False),
    Column("alias", String(100), nullable=False),
    # See `app.domain.monitors.MonitorSettings`.
    Column("settings", JSON, nullable=False),
    Column("revision", Integer, nullable=False),
    Column("run", Integer, nullable=False),
    Column("started_at", Double, nullable=False),
    Column("updated_at", Double, nullable=False),
    Column("created_by", String(100), nullable=False),
    Column("slope", Double, nullable=False, server_default="0"),
    Column("slope_at", Double, nullable=False, server_default="0"),
    Column("samples", BigInteger, nullable=False, server_default="0"),
    Column("dropped", BigInteger, nullable=False, server_default="0"),
    # When feedback came last, and until which the evidence has it.
    Column("feedback_at", Double, nullable=False, server_default="0"),
    Column("judged_at", Double, nullable=False, server_default="0"),
    # Bytes of the row, and of its rows in samples and feedback.
    Column("row_bytes", BigInteger, nullable=False, server_default="0"),
    Column("sample_bytes", BigInteger, nullable=False, server_default="0"),
    ForeignKeyConstraint(
        ["tenant", "model", "alias"],
        ["aliases.tenant", "aliases.model", "aliases.alias"],
        ondelete="CASCADE",
    ),
    Index("ix_monitors_tenant_model_alias", "tenant", "model", "alias", unique=True),
    Index("ix_monitors_tenant_use", "tenant", "row_bytes", "sample_bytes"),
)


def _monitor(*, primary_key: bool = False) -> Column[str]:
    return Column(
        "monitor_id",
        String(40),
        ForeignKey("monitors.id", ondelete="CASCADE"),
        primary_key=primary_key,
        nullable=False,
    )


# Answers that could have been chosen, by class and hour: the trials of the alarm.
monitor_hours = Table(
    "monitor_hours",
    metadata,
    _monitor(primary_key=True),
    Column("run", Integer, primary_key=True),
    Column("label", String(400), primary_key=True),
    Column("hour", Integer, primary_key=True),
    Column("asked", BigInteger, nullable=False),
    Column("yes", BigInteger, nullable=False),
)

samples = Table(
    "samples",
    metadata,
    Column("id", String(40), primary_key=True),
    _monitor(),
    Column("run", Integer, nullable=False),
    Column("tenant", String(100), nullable=False),
    Column("model", String(100), nullable=False),
    Column("version", Integer, nullable=False),
    Column("label", String(400), nullable=False),
    Column("hour", Integer, nullable=False),
    Column("at", Double, nullable=False),
    Column("request_id", String(128), nullable=False),
    Column("row", Integer, nullable=False),
    Column("answer", Boolean, nullable=False),
    Column("score", Double, nullable=False),
    Column("probability", Double),
    Column("q", Double, nullable=False),
    # The newest feedback about it; NULL without feedback.
    Column("correct", Boolean),
    # Whether somebody has looked at it and does not know.
    Column("skipped", Boolean, nullable=False, server_default=sa.false()),
    # The body of a query in JSON that asks about the row alone; NULL if it was not kept.
    Column("content", LargeBinary),
    # The pseudonym of whom the question was about, hexadecimal.
    Column("subject", String(32)),
    Index("ix_samples_tenant_subject", "tenant", "subject"),
    Index("ix_samples_monitor_id_run_label_at", "monitor_id", "run", "label", "at"),
    Index("ix_samples_monitor_id_at", "monitor_id", "at"),
    Index("ix_samples_tenant_request_id", "tenant", "request_id"),
)

# Of a sample, or a report about an answer that was not sampled (sample_id is NULL).
feedback = Table(
    "feedback",
    metadata,
    Column("id", String(40), primary_key=True),
    _monitor(),
    Column("sample_id", String(40), ForeignKey("samples.id", ondelete="CASCADE"), index=True),
    Column("label", String(400), nullable=False),
    Column("request_id", String(128)),
    Column("row", Integer, nullable=False),
    Column("answer", Boolean),
    Column("correct", Boolean, nullable=False),
    Column("truth", String(400)),
    Column("at", Double, nullable=False),
    Column("created_by", String(100), nullable=False),
    # The id of the feedback that took its place.
    Column("superseded_by", String(40)),
    Column("subject", String(32), index=True),
    Index("ix_feedback_monitor_id_label_at", "monitor_id", "label", "at"),
    Index("ix_feedback_monitor_id_request_id", "monitor_id", "request_id"),
)

# The evidence against a promise of a class, and the alarm that it gave.
promise_evidence = Table(
    "promise_evidence",
    metadata,
    _monitor(primary_key=True),
    Column("run", Integer, primary_key=True),
    Column("label", String(400), primary_key=True),
    Column("promise", String(32), primary_key=True),
    # How often it began: at first, and after each acknowledged alarm; and the first hour that counts.
    Column("number", Integer, nullable=False),
    Column("since_hour", Integer, nullable=False),
    # See `core.monitoring.sequential.Evidence`: after all hours before `hour`, whose samples are deleted.
    Column("evidence", JSON),
    Column("hour", Integer, nullable=False),
    # When the alarm was raised; NULL without an alarm.
    Column("alarm_at", Double),
    # The note given when the last alarm was acknowledged.
    Column("note", String(1000)),
    Index("ix_promise_evidence_alarm_at", "alarm_at"),
)

# Another version that is asked about a share of an alias's answers, too. It ends with its alias.
shadows = Table(
    "shadows",
    metadata,
    Column("id", String(40), primary_key=True),
    Column("tenant", String(100), nullable=False),
    Column("model", String(100), nullable=False),
    Column("alias", String(100), nullable=False),
    Column("version", Integer, nullable=False),
    Column("share", Double, nullable=False),
    Column("started_at", Double, nullable=False),
    Column("until", Double, nullable=False),
    Column("created_by", String(100), nullable=False),
    ForeignKeyConstraint(
        ["tenant", "model", "alias"],
        ["aliases.tenant", "aliases.model", "aliases.alias"],
        ondelete="CASCADE",
    ),
    Index("ix_shadows_tenant_model_alias", "tenant", "model", "alias", unique=True),
)

# Answers of both by class, beside the version that the alias pointed to.
shadow_counts = Table(
    "shadow_counts",
    metadata,
    Column("shadow_id", String(40), ForeignKey("shadows.id", ondelete="CASCADE"), primary_key=True),
    Column("present", Integer, primary_key=True),
    Column("label", String(400), primary_key=True),
    Column("both_yes", BigInteger, nullable=False),
    Column("only_present", BigInteger, nullable=False),
    Column("only_candidate", BigInteger, nullable=False),
    Column("both_no", BigInteger, nullable=False),
    Column("failed", BigInteger, nullable=False),
    Column("dropped", BigInteger, nullable=False),
    Column("last_at", Double, nullable=False),
)
