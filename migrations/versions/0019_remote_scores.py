"""Scores of remote teachers, batch by batch"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "remote_scores",
        sa.Column("job_id", sa.String(length=40), nullable=False),
        sa.Column("part", sa.Integer(), nullable=False),
        sa.Column("first", sa.BigInteger(), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("data", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(
            ["job_id"], ["jobs.id"], name=op.f("fk_remote_scores_job_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("job_id", "part", "first", name=op.f("pk_remote_scores")),
    )


def downgrade() -> None:
    op.drop_table("remote_scores")
