"""Units of work with their queue positions, job priorities, and the units that each worker runs"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "job_units",
        sa.Column("job_id", sa.String(length=40), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("tenant", sa.String(length=100), nullable=False),
        sa.Column("level", sa.Integer(), nullable=False),
        sa.Column("turn", sa.Integer(), nullable=False),
        sa.Column("executor_id", sa.String(length=64), nullable=True),
        sa.Column("started_at", sa.Double(), nullable=True),
        sa.ForeignKeyConstraint(
            ["job_id"], ["jobs.id"], name=op.f("fk_job_units_job_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("job_id", "attempt", "number", name=op.f("pk_job_units")),
    )
    op.create_index(op.f("ix_job_units_tenant"), "job_units", ["tenant"])
    op.add_column("jobs", sa.Column("priority", sa.String(length=8), nullable=False, server_default="normal"))
    op.add_column("workers", sa.Column("slots", sa.Integer(), nullable=False, server_default="1"))
    op.add_column("workers", sa.Column("threads", sa.Integer(), nullable=False, server_default="1"))
    op.add_column("workers", sa.Column("units", sa.JSON(), nullable=False, server_default="[]"))
    op.add_column("workers", sa.Column("lost_at", sa.Double(), nullable=True))


def downgrade() -> None:
    with op.batch_alter_table("workers") as table:
        for name in ("lost_at", "units", "threads", "slots"):
            table.drop_column(name)
    op.drop_column("jobs", "priority")
    op.drop_table("job_units")
