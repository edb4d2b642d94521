"""Functions that all tables of hourly counts of versions share."""

from __future__ import annotations

from typing import Final

import sqlalchemy as sa
from sqlalchemy import ColumnElement, Connection

from app.store.row_bytes import row_size
from app.store.tables import model_versions

_VERSION: Final = ("tenant", "model", "version")


def of_version(table: sa.Table, tenant: str, model: str, version: int) -> ColumnElement[bool]:
    """Which rows are of a version."""
    return sa.and_(table.c.tenant == tenant, table.c.model == model, table.c.version == version)


def delete_hours(connection: Connection, table: sa.Table, hour: int) -> int:
    """Delete the counts of all versions before an hour, and subtract their bytes from those of the versions.

    Returns the number of deleted rows.
    """
    is_old = table.c.hour < hour
    same_version = [table.c[name] == model_versions.c[name] for name in _VERSION]
    size = sa.select(sa.func.sum(row_size(table))).where(*same_version, is_old).scalar_subquery()
    with_old = sa.select(*(table.c[name] for name in _VERSION)).where(is_old)
    freed = sa.update(model_versions).values(input_bytes=model_versions.c.input_bytes - size)
    among = sa.tuple_(*(model_versions.c[name] for name in _VERSION)).in_(with_old)
    connection.execute(freed.where(among))
    return connection.execute(sa.delete(table).where(is_old)).rowcount
