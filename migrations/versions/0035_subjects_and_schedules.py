"""Keys of the pseudonyms of subjects, subjects of samples and feedback, and schedules of training"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0035"
down_revision = "0034"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "subject_keys",
        sa.Column("tenant", sa.String(100), nullable=False, server_default="default"),
        sa.Column("key", sa.LargeBinary, nullable=False),
        sa.Column("created_at", sa.Double, nullable=False),
        sa.PrimaryKeyConstraint("tenant", name="pk_subject_keys"),
    )
    op.add_column("samples", sa.Column("subject", sa.String(32), nullable=True))
    op.create_index("ix_samples_tenant_subject", "samples", ["tenant", "subject"])
    op.add_column("feedback", sa.Column("subject", sa.String(32), nullable=True))
    op.create_index("ix_feedback_subject", "feedback", ["subject"])
    op.create_table(
        "schedules",
        sa.Column("id", sa.String(40), nullable=False),
        sa.Column("tenant", sa.String(100), nullable=False),
        sa.Column("model", sa.String(100), nullable=False),
        sa.Column("settings", sa.JSON, nullable=False),
        sa.Column("revision", sa.Integer, nullable=False),
        sa.Column("created_by", sa.String(100), nullable=False),
        sa.Column("created_at", sa.Double, nullable=False),
        sa.Column("updated_at", sa.Double, nullable=False),
        sa.Column("next_at", sa.Double, nullable=True),
        sa.Column("dataset_id", sa.String(40), nullable=True),
        sa.Column("alarm_at", sa.Double, nullable=False, server_default="0"),
        sa.Column("started_at", sa.Double, nullable=False, server_default="0"),
        sa.Column("job_id", sa.String(40), nullable=True),
        sa.Column("evaluation_id", sa.String(40), nullable=True),
        sa.Column("outcome", sa.String(100), nullable=True),
        sa.Column("failures", sa.Integer, nullable=False, server_default="0"),
        sa.Column("stopped", sa.Boolean, nullable=False, server_default=sa.false()),
        sa.Column("row_bytes", sa.BigInteger, nullable=False, server_default="0"),
        sa.PrimaryKeyConstraint("id", name="pk_schedules"),
    )
    op.create_index("ix_schedules_tenant_model", "schedules", ["tenant", "model"], unique=True)
    op.create_index("ix_schedules_tenant_use", "schedules", ["tenant", "row_bytes"])
    op.create_index("ix_schedules_next_at", "schedules", ["next_at"])
