"""Tenants: every row belongs to one, and names and data sets are unique within it

All rows that exist go to the tenant `default`, and keys with the scope `admin` get the scope `operator` too.
On SQLite only the tables whose keys change are recreated: recreating `jobs` would delete what references it.
"""

from __future__ import annotations

import json

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

_ALIASES = sa.table(
    "aliases", *map(sa.column, ("tenant", "model", "alias", "version", "revision", "updated_at"))
)
_KEYS = sa.table("api_keys", sa.column("id", sa.String), sa.column("scopes", sa.JSON))
_PRIMARY_KEYS = {
    "model_versions": ["model", "version"],
    "aliases": ["model", "alias"],
    "retired_numbers": ["model"],
    "idempotency_keys": ["owner", "key"],
}
_INDEXED = ("datasets", "jobs", "api_keys", "audit_log")


def upgrade() -> None:
    for name in (*_INDEXED, *_PRIMARY_KEYS):
        op.add_column(name, _tenant())
    for name in _INDEXED:
        op.create_index(op.f(f"ix_{name}_tenant_id"), name, ["tenant", "id"])
    with op.batch_alter_table("datasets") as table:
        table.drop_constraint(op.f("uq_datasets_digest"), type_="unique")
        table.create_unique_constraint(op.f("uq_datasets_tenant_digest"), ["tenant", "digest"])
    _change_primary_keys(["tenant"])
    op.add_column("job_units", sa.Column("owner", sa.String(length=100), nullable=False, server_default=""))
    op.execute("UPDATE job_units SET owner = tenant, tenant = 'default'")
    _change_registry_names(100, 201)
    for key, scopes in _scopes():
        if "admin" in scopes:
            _set_scopes(key, {*scopes, "operator"})


def downgrade() -> None:
    # An older program would show these rows to every caller.
    for name in ("aliases", "model_versions", "retired_numbers", "idempotency_keys"):
        op.execute(f"DELETE FROM {name} WHERE tenant <> 'default'")  # noqa: S608 - names of this file
    for name in ("jobs", "datasets", "api_keys"):
        op.execute(f"DELETE FROM {name} WHERE tenant <> 'default'")  # noqa: S608 - names of this file
    for key, scopes in _scopes():
        if "operator" in scopes:
            _set_scopes(key, {*scopes, "admin"} - {"operator"})
    op.execute("UPDATE job_units SET tenant = owner")
    op.drop_column("job_units", "owner")
    _change_registry_names(201, 100)
    _change_primary_keys([])
    with op.batch_alter_table("datasets") as table:
        table.drop_constraint(op.f("uq_datasets_tenant_digest"), type_="unique")
        table.create_unique_constraint(op.f("uq_datasets_digest"), ["digest"])
    for name in _INDEXED:
        op.drop_index(op.f(f"ix_{name}_tenant_id"), name)
    for name in (*_INDEXED, *_PRIMARY_KEYS):
        op.drop_column(name, "tenant")


def _change_registry_names(old: int, new: int) -> None:
    """Names of models in the log get their tenant, or lose it; servers that find no log read everything."""
    op.execute("DELETE FROM registry_changes")
    with op.batch_alter_table("registry_changes") as table:
        table.alter_column(
            "name", existing_type=sa.String(old), type_=sa.String(new), existing_nullable=False
        )


def _tenant() -> sa.Column[str]:
    return sa.Column("tenant", sa.String(length=100), nullable=False, server_default="default")


def _change_primary_keys(front: list[str]) -> None:
    """Make each primary key, and the reference from an alias to its version, start with ``front``."""
    kept = _take_aliases()
    with op.batch_alter_table("aliases") as table:
        table.drop_constraint(op.f(_reference([] if front else ["tenant"])), type_="foreignkey")
    for name, columns in _PRIMARY_KEYS.items():
        with op.batch_alter_table(name) as table:
            table.drop_constraint(op.f(f"pk_{name}"), type_="primary")
            table.create_primary_key(op.f(f"pk_{name}"), [*front, *columns])
    columns = [*front, "model", "version"]
    with op.batch_alter_table("aliases") as table:
        table.create_foreign_key(op.f(_reference(front)), "model_versions", columns, columns)
    if kept:
        op.bulk_insert(_ALIASES, kept)


def _reference(front: list[str]) -> str:
    return "_".join(["fk_aliases", *front, "model", "version"])


def _take_aliases() -> list[dict[str, object]]:
    """Remove and return all aliases: SQLite cannot recreate the versions table while they reference it."""
    if op.get_bind().dialect.name != "sqlite":
        return []
    kept = [dict(row._mapping) for row in op.get_bind().execute(sa.select(*_ALIASES.c))]
    op.execute(sa.delete(_ALIASES))
    return kept


def _scopes() -> list[tuple[str, list[str]]]:
    rows = op.get_bind().execute(sa.text("SELECT id, scopes FROM api_keys")).all()
    return [(key, json.loads(scopes) if isinstance(scopes, str) else scopes) for key, scopes in rows]


def _set_scopes(key: str, scopes: set[str]) -> None:
    op.execute(sa.update(_KEYS).where(_KEYS.c.id == key).values(scopes=sorted(scopes)))
