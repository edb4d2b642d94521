"""Which moves of an alias were made by hand, and where it pointed when a job was submitted"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

_COLUMNS = {"aliases": "manual_revision", "jobs": "alias_revision"}


def upgrade() -> None:
    for table, name in _COLUMNS.items():
        op.add_column(table, sa.Column(name, sa.Integer(), nullable=False, server_default="0"))


def downgrade() -> None:
    for table, name in _COLUMNS.items():
        op.drop_column(table, name)
