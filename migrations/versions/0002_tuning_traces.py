"""Tuning traces, and the selected point of each student"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "student_traces",
        sa.Column("job_id", sa.String(length=40), nullable=False),
        sa.Column("class_index", sa.Integer(), nullable=False),
        sa.Column("method", sa.String(length=16), nullable=False),
        sa.Column("trace", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(
            ["job_id"], ["jobs.id"], name=op.f("fk_student_traces_job_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("job_id", "class_index", "method", name=op.f("pk_student_traces")),
    )
    op.add_column("job_students", sa.Column("chosen", sa.JSON(), nullable=True))


def downgrade() -> None:
    with op.batch_alter_table("job_students") as table:
        table.drop_column("chosen")
    op.drop_table("student_traces")
