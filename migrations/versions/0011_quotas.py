"""Quotas of tenants, and the bytes of the students that each job stored"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

_STORED = (
    "UPDATE jobs SET student_bytes = (SELECT COALESCE(SUM(blobs.size), 0) FROM job_students "
    "JOIN blobs ON blobs.digest = job_students.digest WHERE job_students.job_id = jobs.id)"
)


def upgrade() -> None:
    op.create_table(
        "tenant_quotas",
        sa.Column("tenant", sa.String(length=100), nullable=False),
        sa.Column("stored_bytes", sa.BigInteger(), nullable=True),
        sa.Column("datasets", sa.BigInteger(), nullable=True),
        sa.Column("versions", sa.BigInteger(), nullable=True),
        sa.Column("unfinished_jobs", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("tenant", name=op.f("pk_tenant_quotas")),
    )
    op.add_column("jobs", sa.Column("student_bytes", sa.BigInteger(), nullable=False, server_default="0"))
    op.execute(_STORED)


def downgrade() -> None:
    op.drop_column("jobs", "student_bytes")
    op.drop_table("tenant_quotas")
