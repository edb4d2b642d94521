"""The audit log, and API keys with expiry, rotation and rate limits"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

_OF_KEYS = {
    "expires_at": sa.Double,
    "rate_limit": sa.Double,
    "rate_burst": sa.Integer,
    "previous_digest": lambda: sa.String(length=64),
    "previous_until": sa.Double,
    "rotated_at": sa.Double,
    "last_used_at": sa.Double,
}


def upgrade() -> None:
    for name, kind in _OF_KEYS.items():
        op.add_column("api_keys", sa.Column(name, kind(), nullable=True))
    op.create_table(
        "audit_log",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("actor", sa.String(length=100), nullable=False),
        sa.Column("actor_name", sa.String(length=100), nullable=False),
        sa.Column("scope", sa.String(length=40), nullable=False),
        sa.Column("action", sa.String(length=60), nullable=False),
        sa.Column("object", sa.String(length=500), nullable=False),
        sa.Column("outcome", sa.String(length=64), nullable=False),
        sa.Column("request_id", sa.String(length=128), nullable=True),
        sa.Column("address", sa.String(length=64), nullable=True),
        sa.Column("details", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_audit_log")),
    )
    for name in ("actor", "action", "object"):
        op.create_index(f"ix_audit_log_{name}_id", "audit_log", [name, "id"])


def downgrade() -> None:
    op.drop_table("audit_log")
    with op.batch_alter_table("api_keys") as table:
        for name in reversed(_OF_KEYS):
            table.drop_column(name)
