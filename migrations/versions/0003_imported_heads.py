"""Imported versions, class lists of any length, blobs that are stored in several transactions"""

from __future__ import annotations

import json

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

_ALIASES = sa.table("aliases", *map(sa.column, ("model", "alias", "version", "revision", "updated_at")))


def upgrade() -> None:
    op.add_column("blobs", sa.Column("complete", sa.Boolean(), nullable=False, server_default=sa.true()))
    if op.get_bind().dialect.name == "postgresql":
        # Weights do not compress, so trying costs more than storing them uncompressed.
        op.execute("ALTER TABLE blob_chunks ALTER COLUMN data SET STORAGE EXTERNAL")
    kept = _take_aliases()
    with op.batch_alter_table("model_versions") as table:
        table.add_column(sa.Column("class_count", sa.Integer(), nullable=True))
        table.add_column(sa.Column("class_table", sa.String(length=64), nullable=True))
        table.alter_column("job_id", existing_type=sa.String(length=40), nullable=True)
        table.alter_column("dataset_digest", existing_type=sa.String(length=64), nullable=True)
        table.create_foreign_key(op.f("fk_model_versions_class_table"), "blobs", ["class_table"], ["digest"])
        table.create_index(op.f("ix_model_versions_class_table"), ["class_table"])
    _count_classes()
    with op.batch_alter_table("model_versions") as table:
        table.alter_column("class_count", existing_type=sa.Integer(), nullable=False)
    _put_back(kept)


def downgrade() -> None:
    op.execute(
        "DELETE FROM aliases WHERE EXISTS (SELECT 1 FROM model_versions AS v WHERE v.model = aliases.model "
        "AND v.version = aliases.version AND v.job_id IS NULL)"
    )
    op.execute("DELETE FROM model_versions WHERE job_id IS NULL")
    op.execute("DELETE FROM blobs WHERE NOT complete")
    kept = _take_aliases()
    with op.batch_alter_table("model_versions") as table:
        table.drop_index(op.f("ix_model_versions_class_table"))
        table.drop_constraint(op.f("fk_model_versions_class_table"), type_="foreignkey")
        table.drop_column("class_table")
        table.drop_column("class_count")
        table.alter_column("job_id", existing_type=sa.String(length=40), nullable=False)
        table.alter_column("dataset_digest", existing_type=sa.String(length=64), nullable=False)
    _put_back(kept)
    op.drop_column("blobs", "complete")


def _take_aliases() -> list[dict[str, object]]:
    """Remove and return all aliases: SQLite cannot recreate the versions table while they reference it."""
    if op.get_bind().dialect.name != "sqlite":
        return []
    kept = [dict(row._mapping) for row in op.get_bind().execute(sa.select(*_ALIASES.c))]
    op.execute(sa.delete(_ALIASES))
    return kept


def _put_back(kept: list[dict[str, object]]) -> None:
    if kept:
        op.bulk_insert(_ALIASES, kept)


def _count_classes() -> None:
    connection = op.get_bind()
    versions = connection.execute(sa.text("SELECT model, version, classes FROM model_versions")).all()
    for model, version, classes in versions:
        count = len(json.loads(classes) if isinstance(classes, str) else classes)
        connection.execute(
            sa.text("UPDATE model_versions SET class_count = :n WHERE model = :m AND version = :v"),
            {"n": count, "m": model, "v": version},
        )
