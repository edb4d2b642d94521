"""Evaluations of versions, gates of aliases, and the numbers of the rows that jobs were trained on"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0031"
down_revision = "0030"
branch_labels = None
depends_on = None

_NAME, _ID = sa.String(100), sa.String(40)
_UNFINISHED = sa.text("state IN ('queued', 'running', 'cancelling')")
_OF_USE = (
    *("tenant", "state", "student_bytes", "row_bytes", "preparation_digest", "teacher_digest"),
    *("labels_digest", "encoder_digest", "profile_digest"),
)


def upgrade() -> None:
    op.execute(
        "ALTER TABLE jobs ADD COLUMN rows_digest VARCHAR(64)"
        " CONSTRAINT fk_jobs_rows_digest REFERENCES blobs (digest)"
    )
    op.create_index("ix_jobs_rows_digest", "jobs", ["rows_digest"])
    op.drop_index("ix_jobs_tenant_use", "jobs")
    op.create_index("ix_jobs_tenant_use", "jobs", [*_OF_USE, "rows_digest"])
    _create_gates()
    _create_evaluations()


def _create_gates() -> None:
    op.create_table(
        "gates",
        sa.Column("tenant", _NAME, server_default="default", nullable=False),
        sa.Column("model", _NAME, nullable=False),
        sa.Column("alias", _NAME, nullable=False),
        sa.Column("rule", sa.String(20), nullable=False),
        sa.Column("dataset_id", _ID, nullable=False),
        sa.Column("tolerance", sa.Double(), nullable=False),
        sa.Column("alpha", sa.Double(), nullable=False),
        sa.Column("least_rows", sa.Integer(), nullable=False),
        sa.Column("revision", sa.Integer(), nullable=False),
        sa.Column("updated_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("tenant", "model", "alias", name="pk_gates"),
        sa.ForeignKeyConstraint(
            ["tenant", "model", "alias"],
            ["aliases.tenant", "aliases.model", "aliases.alias"],
            ondelete="CASCADE",
            name="fk_gates_tenant_model_alias",
        ),
    )


def _create_evaluations() -> None:
    op.create_table(
        "evaluations",
        sa.Column("id", _ID, nullable=False),
        sa.Column("tenant", _NAME, server_default="default", nullable=False),
        sa.Column("version", sa.String(201), nullable=False),
        sa.Column("baseline", sa.String(201)),
        sa.Column("dataset_id", _ID, nullable=False),
        sa.Column("part", sa.String(8), nullable=False),
        sa.Column("tolerance", sa.Double(), nullable=False),
        sa.Column("alpha", sa.Double(), nullable=False),
        sa.Column("unknown_classes", sa.String(8), nullable=False),
        sa.Column("state", sa.String(24), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("created_by", _NAME, nullable=False),
        sa.Column("started_at", sa.Double()),
        sa.Column("finished_at", sa.Double()),
        sa.Column("error_code", sa.String(64)),
        sa.Column("error_message", sa.Text()),
        sa.Column("progress_done", sa.Integer(), nullable=False),
        sa.Column("progress_total", sa.Integer(), nullable=False),
        sa.Column("rows_used", sa.BigInteger()),
        sa.Column("rows_left_out", sa.JSON(), nullable=False),
        sa.Column("verdict", sa.String(16)),
        sa.Column("warnings", sa.JSON(), nullable=False),
        sa.Column("report", sa.LargeBinary()),
        sa.Column("starts", sa.Integer(), server_default="0", nullable=False),
        sa.Column("row_bytes", sa.BigInteger(), server_default="0", nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_evaluations"),
    )
    op.create_index("ix_evaluations_tenant_id", "evaluations", ["tenant", "id", "row_bytes"])
    op.create_index("ix_evaluations_tenant_version", "evaluations", ["tenant", "version", "dataset_id"])
    op.create_index(
        "ix_evaluations_unfinished",
        "evaluations",
        ["id"],
        sqlite_where=_UNFINISHED,
        postgresql_where=_UNFINISHED,
    )
