"""Quota of API keys"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("tenant_quotas", sa.Column("keys", sa.BigInteger(), nullable=True))


def downgrade() -> None:
    op.drop_column("tenant_quotas", "keys")
