"""Curves of students: their answers at other thresholds"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "student_curves",
        sa.Column("job_id", sa.String(length=40), nullable=False),
        sa.Column("class_index", sa.Integer(), nullable=False),
        sa.Column("method", sa.String(length=16), nullable=False),
        sa.Column("curve", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(
            ["job_id"], ["jobs.id"], name=op.f("fk_student_curves_job_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("job_id", "class_index", "method", name=op.f("pk_student_curves")),
    )


def downgrade() -> None:
    op.drop_table("student_curves")
