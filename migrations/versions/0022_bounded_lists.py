"""Names of classes in a table of their own, and the sizes of the rows of data sets and API keys"""

from __future__ import annotations

import json
import time

import sqlalchemy as sa
from alembic import op

revision = "0022"
down_revision = "0021"
branch_labels = None
depends_on = None

_PIECE = 256
_CELLS = 1 << 16
_PAGE = 500
_INDICES = {
    "datasets": [("ix_datasets_tenant_id", ["tenant", "id"])],
    "api_keys": [("ix_api_keys_tenant_id", ["tenant", "id"])],
}

_datasets = sa.table(
    "datasets", *map(sa.column, ("id", "name", "class_count", "row_bytes")), sa.column("summary", sa.JSON),
    sa.column("classes", sa.JSON),
)  # fmt: skip
_classes = sa.table(
    "dataset_classes", sa.column("dataset_id"), sa.column("first"), sa.column("labels", sa.JSON)
)
_keys = sa.table(
    "api_keys", *map(sa.column, ("id", "revoked_at", "expires_at", "cell", "row_bytes")),
    sa.column("models", sa.JSON),
)  # fmt: skip


def upgrade() -> None:
    op.create_table(
        "dataset_classes",
        sa.Column(
            "dataset_id",
            sa.String(40),
            sa.ForeignKey(
                "datasets.id", ondelete="CASCADE", name=op.f("fk_dataset_classes_dataset_id_datasets")
            ),
            nullable=False,
        ),
        sa.Column("first", sa.Integer, nullable=False),
        sa.Column("labels", sa.JSON, nullable=False),
        sa.PrimaryKeyConstraint("dataset_id", "first", name=op.f("pk_dataset_classes")),
    )
    op.add_column("datasets", sa.Column("class_count", sa.Integer, nullable=False, server_default="0"))
    op.add_column("datasets", sa.Column("row_bytes", sa.BigInteger, nullable=False, server_default="0"))
    op.add_column("api_keys", sa.Column("cell", sa.Integer))
    op.add_column("api_keys", sa.Column("row_bytes", sa.BigInteger, nullable=False, server_default="0"))
    for dataset_id in _ids(_datasets):
        _split_classes(dataset_id)
    _measure_keys()
    op.drop_column("datasets", "classes")
    for table, indices in _INDICES.items():
        for name, columns in indices:
            op.drop_index(name, table)
            op.create_index(name, table, [*columns, "row_bytes"])
    op.create_index("ix_api_keys_revoked_at", "api_keys", ["revoked_at", "expires_at"])
    op.create_index("ix_api_keys_tenant_revoked_at", "api_keys", ["tenant", "revoked_at", "expires_at"])
    op.create_index("ix_api_keys_cell", "api_keys", ["cell"], unique=True)


def downgrade() -> None:
    op.add_column("datasets", sa.Column("classes", sa.JSON, nullable=False, server_default="[]"))
    connection = op.get_bind()
    for dataset_id in _ids(_datasets):
        pieces = sa.select(_classes.c.labels).where(_classes.c.dataset_id == dataset_id)
        rows = connection.execute(pieces.order_by(_classes.c.first)).scalars()
        classes = [label for labels in rows for label in labels]
        connection.execute(sa.update(_datasets).where(_datasets.c.id == dataset_id).values(classes=classes))
    for name in ("cell", "tenant_revoked_at", "revoked_at"):
        op.drop_index(f"ix_api_keys_{name}", "api_keys")
    for table, indices in _INDICES.items():
        for name, columns in indices:
            op.drop_index(name, table)
            op.create_index(name, table, columns)
    op.drop_column("api_keys", "row_bytes")
    op.drop_column("api_keys", "cell")
    op.drop_column("datasets", "row_bytes")
    op.drop_column("datasets", "class_count")
    op.drop_table("dataset_classes")


def _ids(table: sa.TableClause) -> list[str]:
    return list(op.get_bind().execute(sa.select(table.c.id).order_by(table.c.id)).scalars())


def _split_classes(dataset_id: str) -> None:
    # One data set at a time: the names of one may take many MiB.
    connection, is_it = op.get_bind(), _datasets.c.id == dataset_id
    columns = (_datasets.c.name, _datasets.c.summary, _datasets.c.classes)
    name, summary, classes = connection.execute(sa.select(*columns).where(is_it)).one()
    pieces = [
        {"dataset_id": dataset_id, "first": first, "labels": classes[first : first + _PIECE]}
        for first in range(0, len(classes), _PIECE)
    ]
    if pieces:
        connection.execute(sa.insert(_classes), pieces)
    size = len(json.dumps([name, summary, classes]))
    values = {"class_count": len(classes), "row_bytes": size}
    connection.execute(sa.update(_datasets).where(is_it).values(values))


def _measure_keys() -> None:
    connection, now, cell = op.get_bind(), time.time(), 0
    for key_id in _ids(_keys):
        columns = (_keys.c.models, _keys.c.revoked_at, _keys.c.expires_at)
        is_it = _keys.c.id == key_id
        models, revoked, expires = connection.execute(sa.select(*columns).where(is_it)).one()
        is_in_use = revoked is None and (expires is None or expires > now)
        size = len(json.dumps(models)) if models else 0
        values = {"row_bytes": size, "cell": cell if is_in_use and cell < _CELLS else None}
        cell += is_in_use
        connection.execute(sa.update(_keys).where(is_it).values(values))
