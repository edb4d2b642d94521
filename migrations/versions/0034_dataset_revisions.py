"""The series of data sets: which one a data set was made of, and what changed"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0034"
down_revision = "0033"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("datasets", sa.Column("series", sa.String(40), nullable=True))
    op.add_column("datasets", sa.Column("revision", sa.Integer, nullable=False, server_default="1"))
    op.add_column("datasets", sa.Column("parent", sa.String(40), nullable=True))
    op.add_column("datasets", sa.Column("change", sa.JSON, nullable=True))
    op.create_index("ix_datasets_tenant_series", "datasets", ["tenant", "series", "revision"])
