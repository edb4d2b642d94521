"""Counts of answers; monitors of aliases, samples and feedback

Revision ID: 0032
Revises: 0028
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0032"
down_revision = "0031"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "answer_counts",
        sa.Column("tenant", sa.String(100), nullable=False),
        sa.Column("model", sa.String(100), nullable=False),
        sa.Column("version", sa.Integer, nullable=False),
        sa.Column("label", sa.String(400), nullable=False),
        sa.Column("hour", sa.Integer, nullable=False),
        sa.Column("asked", sa.BigInteger, nullable=False),
        sa.Column("yes", sa.BigInteger, nullable=False),
        sa.Column("p", sa.Double, nullable=False),
        sa.Column("p_yes", sa.Double, nullable=False),
        *(sa.Column(f"bin_{number}", sa.BigInteger, nullable=False) for number in range(20)),
        sa.PrimaryKeyConstraint("tenant", "model", "version", "label", "hour", name="pk_answer_counts"),
        sa.ForeignKeyConstraint(
            ["tenant", "model", "version"],
            ["model_versions.tenant", "model_versions.model", "model_versions.version"],
            name="fk_answer_counts_tenant_model_version",
            ondelete="CASCADE",
        ),
    )
    op.create_index("ix_answer_counts_hour", "answer_counts", ["hour"])
    _monitors()
    _samples()
    _feedback()
    _evidence()


def _monitors() -> None:
    op.create_table(
        "monitors",
        sa.Column("id", sa.String(40), nullable=False),
        sa.Column("tenant", sa.String(100), nullable=False),
        sa.Column("model", sa.String(100), nullable=False),
        sa.Column("alias", sa.String(100), nullable=False),
        sa.Column("settings", sa.JSON, nullable=False),
        sa.Column("revision", sa.Integer, nullable=False),
        sa.Column("run", sa.Integer, nullable=False),
        sa.Column("started_at", sa.Double, nullable=False),
        sa.Column("updated_at", sa.Double, nullable=False),
        sa.Column("created_by", sa.String(100), nullable=False),
        sa.Column("slope", sa.Double, nullable=False, server_default="0"),
        sa.Column("slope_at", sa.Double, nullable=False, server_default="0"),
        sa.Column("samples", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("dropped", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("feedback_at", sa.Double, nullable=False, server_default="0"),
        sa.Column("judged_at", sa.Double, nullable=False, server_default="0"),
        sa.Column("row_bytes", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("sample_bytes", sa.BigInteger, nullable=False, server_default="0"),
        sa.PrimaryKeyConstraint("id", name="pk_monitors"),
        sa.ForeignKeyConstraint(
            ["tenant", "model", "alias"],
            ["aliases.tenant", "aliases.model", "aliases.alias"],
            name="fk_monitors_tenant_model_alias",
            ondelete="CASCADE",
        ),
    )
    op.create_index("ix_monitors_tenant_model_alias", "monitors", ["tenant", "model", "alias"], unique=True)
    op.create_index("ix_monitors_tenant_use", "monitors", ["tenant", "row_bytes", "sample_bytes"])
    op.create_table(
        "monitor_hours",
        sa.Column("monitor_id", sa.String(40), nullable=False),
        sa.Column("run", sa.Integer, nullable=False),
        sa.Column("label", sa.String(400), nullable=False),
        sa.Column("hour", sa.Integer, nullable=False),
        sa.Column("asked", sa.BigInteger, nullable=False),
        sa.Column("yes", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("monitor_id", "run", "label", "hour", name="pk_monitor_hours"),
        _of_monitor("monitor_hours"),
    )


def _samples() -> None:
    op.create_table(
        "samples",
        sa.Column("id", sa.String(40), nullable=False),
        sa.Column("monitor_id", sa.String(40), nullable=False),
        sa.Column("run", sa.Integer, nullable=False),
        sa.Column("tenant", sa.String(100), nullable=False),
        sa.Column("model", sa.String(100), nullable=False),
        sa.Column("version", sa.Integer, nullable=False),
        sa.Column("label", sa.String(400), nullable=False),
        sa.Column("hour", sa.Integer, nullable=False),
        sa.Column("at", sa.Double, nullable=False),
        sa.Column("request_id", sa.String(128), nullable=False),
        sa.Column("row", sa.Integer, nullable=False),
        sa.Column("answer", sa.Boolean, nullable=False),
        sa.Column("score", sa.Double, nullable=False),
        sa.Column("probability", sa.Double),
        sa.Column("q", sa.Double, nullable=False),
        sa.Column("correct", sa.Boolean),
        sa.PrimaryKeyConstraint("id", name="pk_samples"),
        _of_monitor("samples"),
    )
    op.create_index("ix_samples_monitor_id_run_label_at", "samples", ["monitor_id", "run", "label", "at"])
    op.create_index("ix_samples_monitor_id_at", "samples", ["monitor_id", "at"])
    op.create_index("ix_samples_tenant_request_id", "samples", ["tenant", "request_id"])


def _feedback() -> None:
    op.create_table(
        "feedback",
        sa.Column("id", sa.String(40), nullable=False),
        sa.Column("monitor_id", sa.String(40), nullable=False),
        sa.Column("sample_id", sa.String(40)),
        sa.Column("label", sa.String(400), nullable=False),
        sa.Column("request_id", sa.String(128)),
        sa.Column("row", sa.Integer, nullable=False),
        sa.Column("answer", sa.Boolean),
        sa.Column("correct", sa.Boolean, nullable=False),
        sa.Column("truth", sa.String(400)),
        sa.Column("at", sa.Double, nullable=False),
        sa.Column("created_by", sa.String(100), nullable=False),
        sa.Column("superseded_by", sa.String(40)),
        sa.PrimaryKeyConstraint("id", name="pk_feedback"),
        _of_monitor("feedback"),
        sa.ForeignKeyConstraint(
            ["sample_id"], ["samples.id"], name="fk_feedback_sample_id", ondelete="CASCADE"
        ),
    )
    op.create_index("ix_feedback_sample_id", "feedback", ["sample_id"])
    op.create_index("ix_feedback_monitor_id_label_at", "feedback", ["monitor_id", "label", "at"])
    op.create_index("ix_feedback_monitor_id_request_id", "feedback", ["monitor_id", "request_id"])


def _evidence() -> None:
    op.create_table(
        "promise_evidence",
        sa.Column("monitor_id", sa.String(40), nullable=False),
        sa.Column("run", sa.Integer, nullable=False),
        sa.Column("label", sa.String(400), nullable=False),
        sa.Column("promise", sa.String(32), nullable=False),
        sa.Column("number", sa.Integer, nullable=False),
        sa.Column("since_hour", sa.Integer, nullable=False),
        sa.Column("evidence", sa.JSON),
        sa.Column("hour", sa.Integer, nullable=False),
        sa.Column("alarm_at", sa.Double),
        sa.Column("note", sa.String(1000)),
        sa.PrimaryKeyConstraint("monitor_id", "run", "label", "promise", name="pk_promise_evidence"),
        _of_monitor("promise_evidence"),
    )
    op.create_index("ix_promise_evidence_alarm_at", "promise_evidence", ["alarm_at"])


def _of_monitor(table: str) -> sa.ForeignKeyConstraint:
    return sa.ForeignKeyConstraint(
        ["monitor_id"], ["monitors.id"], name=f"fk_{table}_monitor_id", ondelete="CASCADE"
    )
