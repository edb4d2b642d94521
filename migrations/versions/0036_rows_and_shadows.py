"""Rows of samples, keys without samples, and shadows of aliases"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0036"
down_revision = "0035"
branch_labels = None
depends_on = None

_COUNTS = ("both_yes", "only_present", "only_candidate", "both_no", "failed", "dropped")


def upgrade() -> None:
    op.add_column("samples", sa.Column("skipped", sa.Boolean, nullable=False, server_default=sa.false()))
    op.add_column("samples", sa.Column("content", sa.LargeBinary, nullable=True))
    op.add_column("api_keys", sa.Column("samples", sa.String(8), nullable=False, server_default="allowed"))
    op.create_table(
        "shadows",
        sa.Column("id", sa.String(40), nullable=False),
        sa.Column("tenant", sa.String(100), nullable=False),
        sa.Column("model", sa.String(100), nullable=False),
        sa.Column("alias", sa.String(100), nullable=False),
        sa.Column("version", sa.Integer, nullable=False),
        sa.Column("share", sa.Double, nullable=False),
        sa.Column("started_at", sa.Double, nullable=False),
        sa.Column("until", sa.Double, nullable=False),
        sa.Column("created_by", sa.String(100), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_shadows"),
        sa.ForeignKeyConstraint(
            ["tenant", "model", "alias"],
            ["aliases.tenant", "aliases.model", "aliases.alias"],
            name="fk_shadows_tenant_model_alias",
            ondelete="CASCADE",
        ),
    )
    op.create_index("ix_shadows_tenant_model_alias", "shadows", ["tenant", "model", "alias"], unique=True)
    op.create_table(
        "shadow_counts",
        sa.Column("shadow_id", sa.String(40), nullable=False),
        sa.Column("present", sa.Integer, nullable=False),
        sa.Column("label", sa.String(400), nullable=False),
        *(sa.Column(name, sa.BigInteger, nullable=False) for name in _COUNTS),
        sa.Column("last_at", sa.Double, nullable=False),
        sa.PrimaryKeyConstraint("shadow_id", "present", "label", name="pk_shadow_counts"),
        sa.ForeignKeyConstraint(
            ["shadow_id"], ["shadows.id"], name="fk_shadow_counts_shadow_id", ondelete="CASCADE"
        ),
    )
