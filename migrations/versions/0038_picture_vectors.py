"""Vectors that encoders have made of the pictures of data sets"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0038"
down_revision = "0037"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "picture_vectors",
        sa.Column(
            "dataset_id", sa.String(40), sa.ForeignKey("datasets.id", ondelete="CASCADE"), primary_key=True
        ),
        sa.Column("part", sa.String(8), primary_key=True),
        sa.Column("number", sa.Integer, primary_key=True),
        sa.Column("encoder", sa.String(64), primary_key=True),
        sa.Column("first", sa.BigInteger, primary_key=True),
        sa.Column("pictures", sa.BigInteger, nullable=False),
        sa.Column("size", sa.BigInteger, nullable=False),
        sa.Column("data", sa.LargeBinary, nullable=False),
    )
