"""Bytes of the counts of inputs of each version, which count in the quota of its tenant"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0028"
down_revision = "0027"
branch_labels = None
depends_on = None

_USE = "ix_model_versions_tenant_use"
_DIGESTS = ("teacher_digest", "class_table", "encoder_digest", "profile_digest")
_OF_VERSION = " AND ".join(f"i.{name} = model_versions.{name}" for name in ("tenant", "model", "version"))
_ROW_BYTES = 200


def upgrade() -> None:
    op.add_column(
        "model_versions", sa.Column("input_bytes", sa.BigInteger(), nullable=False, server_default="0")
    )
    size = "octet_length(counts)" if op.get_bind().dialect.name == "postgresql" else "length(counts)"
    op.execute(
        f"UPDATE model_versions SET input_bytes = (SELECT COALESCE(SUM({_ROW_BYTES} + {size}), 0)"  # noqa: S608
        f" FROM input_counts AS i WHERE {_OF_VERSION})"
    )
    op.drop_index(_USE, "model_versions")
    op.create_index(_USE, "model_versions", ["tenant", "row_bytes", "input_bytes", *_DIGESTS])


def downgrade() -> None:
    op.drop_index(_USE, "model_versions")
    op.create_index(_USE, "model_versions", ["tenant", "row_bytes", *_DIGESTS])
    op.drop_column("model_versions", "input_bytes")
