"""Live figures of servers, and the history of aliases, which begins with where they point now"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "servers",
        sa.Column("id", sa.String(40), nullable=False),
        sa.Column("host", sa.String(255), nullable=False),
        sa.Column("pid", sa.Integer(), nullable=False),
        sa.Column("program", sa.String(40), nullable=False),
        sa.Column("started_at", sa.Double(), nullable=False),
        sa.Column("beat_at", sa.Double(), nullable=False),
        sa.Column("figures", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_servers"),
    )
    op.create_table(
        "alias_moves",
        sa.Column("id", sa.String(40), nullable=False),
        sa.Column("tenant", sa.String(100), nullable=False, server_default="default"),
        sa.Column("model", sa.String(100), nullable=False),
        sa.Column("alias", sa.String(100), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=True),
        sa.Column("previous", sa.Integer(), nullable=True),
        sa.Column("actor", sa.String(100), nullable=False),
        sa.Column("actor_name", sa.String(100), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_alias_moves"),
    )
    op.create_index("ix_alias_moves_tenant_model_alias_id", "alias_moves", ["tenant", "model", "alias", "id"])
    _note_present()


def downgrade() -> None:
    op.drop_table("alias_moves")
    op.drop_table("servers")


def _note_present() -> None:
    """One row for each alias. Its id sorts before those of later moves, which begin with a time."""
    aliases = sa.table("aliases", *map(sa.column, ("tenant", "model", "alias", "version", "updated_at")))
    moves = sa.table(
        "alias_moves",
        *map(sa.column, ("id", "tenant", "model", "alias", "at", "version", "actor", "actor_name")),
    )
    rows = op.get_bind().execute(sa.select(aliases).order_by(aliases.c.updated_at)).all()
    present = [
        {
            "id": f"mov_{number:024x}",
            "tenant": row.tenant,
            "model": row.model,
            "alias": row.alias,
            "at": row.updated_at,
            "version": row.version,
            "actor": "",
            "actor_name": "",
        }
        for number, row in enumerate(rows)
    ]
    if present:
        op.bulk_insert(moves, present)
