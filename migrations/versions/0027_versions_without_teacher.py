"""Versions without a teacher, from bundles that left it out"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0027"
down_revision = "0026"
branch_labels = None
depends_on = None

_OPTIONAL = "teacher_digest VARCHAR(64)"
_REQUIRED = f"{_OPTIONAL} NOT NULL"
_VERSION = "v.tenant = aliases.tenant AND v.model = aliases.model AND v.version = aliases.version"


def upgrade() -> None:
    _change(_REQUIRED, _OPTIONAL, nullable=True)


def downgrade() -> None:
    op.execute(
        "DELETE FROM aliases WHERE EXISTS (SELECT 1 FROM model_versions AS v"  # noqa: S608 - constants
        f" WHERE {_VERSION} AND v.teacher_digest IS NULL)"
    )
    op.execute("DELETE FROM model_versions WHERE teacher_digest IS NULL")
    _change(_OPTIONAL, _REQUIRED, nullable=False)


def _change(present: str, wanted: str, *, nullable: bool) -> None:
    connection = op.get_bind()
    if connection.dialect.name != "sqlite":
        op.alter_column("model_versions", "teacher_digest", nullable=nullable)
        return
    # Recreating the table would delete what refers to it, so its text is changed, the faster way of
    # https://sqlite.org/lang_altertable.html: it is for changes that leave the content as it is.
    query = "SELECT sql FROM sqlite_schema WHERE type = 'table' AND name = 'model_versions'"
    text = str(connection.exec_driver_sql(query).scalar_one())
    changed = text.replace(f"{present},", f"{wanted},")
    if changed == text:
        raise RuntimeError(f"The table model_versions has another column than {present!r}.")
    number = connection.exec_driver_sql("PRAGMA schema_version").scalar_one()
    connection.exec_driver_sql("PRAGMA writable_schema = ON")
    connection.execute(
        sa.text("UPDATE sqlite_schema SET sql = :text WHERE type = 'table' AND name = 'model_versions'"),
        {"text": changed},
    )
    connection.exec_driver_sql(f"PRAGMA schema_version = {number + 1}")
    connection.exec_driver_sql("PRAGMA writable_schema = OFF")
