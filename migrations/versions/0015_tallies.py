"""Counters for metrics, and since when a job is queued"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "tallies",
        sa.Column("name", sa.String(40), nullable=False),
        sa.Column("label", sa.String(100), nullable=False),
        sa.Column("value", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("name", "label", name="pk_tallies"),
    )
    op.add_column("jobs", sa.Column("queued_at", sa.Double(), nullable=True))


def downgrade() -> None:
    op.drop_column("jobs", "queued_at")
    op.drop_table("tallies")
