"""Own encoders of tenants"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0037"
down_revision = "0034"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "own_encoders",
        sa.Column("tenant", sa.String(100), nullable=False, server_default="default"),
        sa.Column("name", sa.String(100), nullable=False),
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("kind", sa.String(8), nullable=False),
        sa.Column("width", sa.BigInteger, nullable=False),
        sa.Column("size", sa.BigInteger, nullable=False),
        sa.Column("specification", sa.JSON, nullable=False),
        sa.Column("licence", sa.String(200), nullable=False),
        sa.Column("created_at", sa.Double, nullable=False),
        sa.Column("created_by", sa.String(100), nullable=False),
        sa.PrimaryKeyConstraint("tenant", "name", name="pk_own_encoders"),
        sa.ForeignKeyConstraint(["digest"], ["blobs.digest"], name="fk_own_encoders_digest"),
    )
    op.create_index("ix_own_encoders_digest", "own_encoders", ["digest"])
