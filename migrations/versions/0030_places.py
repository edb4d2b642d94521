"""Where the bytes of a blob are, and uploads at presigned addresses"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0030"
down_revision = "0029"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("blobs", sa.Column("place", sa.String(16), nullable=False, server_default="database"))
    objects = sa.text("place = 'objects'")
    op.create_index("ix_blobs_objects", "blobs", ["digest"], sqlite_where=objects, postgresql_where=objects)
    op.create_table(
        "uploads",
        sa.Column("id", sa.String(40), nullable=False),
        sa.Column("tenant", sa.String(100), nullable=False, server_default="default"),
        sa.Column("bytes", sa.BigInteger, nullable=False),
        sa.Column("sha256", sa.String(64), nullable=False),
        sa.Column("created_by", sa.String(100), nullable=False),
        sa.Column("created_at", sa.Double, nullable=False),
        sa.Column("expires_at", sa.Double, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_uploads"),
    )
    op.create_index("ix_uploads_expires_at", "uploads", ["expires_at"])
    op.create_index("ix_uploads_tenant_expires_at", "uploads", ["tenant", "expires_at", "bytes"])
