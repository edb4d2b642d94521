"""Versions without a teacher, from bundles that left it out"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0027"
down_revision = "0026"
branch_labels = None
depends_on = None

_ALIASES = sa.table(
    "aliases", *map(sa.column, ("tenant", "model", "alias", "version", "revision", "updated_at"))
)
_WITHOUT = "SELECT 1 FROM model_versions AS v WHERE v.teacher_digest IS NULL AND v.tenant = aliases.tenant"


def upgrade() -> None:
    _change(nullable=True)


def downgrade() -> None:
    op.execute(
        f"DELETE FROM aliases WHERE EXISTS ({_WITHOUT} AND v.model = aliases.model"  # noqa: S608 - constant
        " AND v.version = aliases.version)"
    )
    op.execute("DELETE FROM model_versions WHERE teacher_digest IS NULL")
    _change(nullable=False)


def _change(*, nullable: bool) -> None:
    """SQLite recreates the table of versions, which it cannot do while aliases reference it."""
    kept: list[dict[str, object]] = []
    if op.get_bind().dialect.name == "sqlite":
        kept = [dict(row._mapping) for row in op.get_bind().execute(sa.select(*_ALIASES.c))]
        op.execute(sa.delete(_ALIASES))
    with op.batch_alter_table("model_versions") as table:
        table.alter_column("teacher_digest", existing_type=sa.String(length=64), nullable=nullable)
    if kept:
        op.bulk_insert(_ALIASES, kept)
