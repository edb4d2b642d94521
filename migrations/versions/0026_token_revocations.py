"""Revocations of tokens"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0026"
down_revision = "0025"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "token_revocations",
        sa.Column("id", sa.String(40), nullable=False),
        sa.Column("tenant", sa.String(100), nullable=False, server_default="default"),
        sa.Column("issuer", sa.String(200), nullable=False),
        sa.Column("sub", sa.String(255)),
        sa.Column("jti", sa.String(255)),
        sa.Column("reason", sa.String(200), nullable=False),
        sa.Column("created_by", sa.String(100), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("expires_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_token_revocations")),
    )
    op.create_index("ix_token_revocations_tenant_id", "token_revocations", ["tenant", "id"])
    op.create_index(op.f("ix_token_revocations_expires_at"), "token_revocations", ["expires_at"])


def downgrade() -> None:
    op.drop_table("token_revocations")
