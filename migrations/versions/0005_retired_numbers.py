"""Numbers of deleted versions and aliases, which are never reused"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "retired_numbers",
        sa.Column("model", sa.String(length=100), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("revision", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("model", name=op.f("pk_retired_numbers")),
    )


def downgrade() -> None:
    op.drop_table("retired_numbers")
