"""The newest schema: its name, and a new database with it.

It imports nothing of Alembic: a server of bundles makes a database at each start.
"""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path
from typing import Final

import sqlalchemy as sa

from app.store.all_tables import metadata
from app.store.engine import open_engine
from app.store.tables import registry_clock

REVISIONS: Final = Path(__file__).parents[2] / "migrations"
"""The folder of the migrations, beside this package."""
_NUMBER: Final = re.compile(r"(\d{4})_\w+\.py")
_VERSION: Final = sa.Table(
    "alembic_version",
    sa.MetaData(),
    sa.Column("version_num", sa.String(32)),
    sa.PrimaryKeyConstraint("version_num", name="alembic_version_pkc"),
)
"""Where Alembic looks for the revision of a database."""


@lru_cache(maxsize=1)
def newest_revision() -> str:
    """The revision of the last migration, with whose number its file begins."""
    names = [path.name for path in (REVISIONS / "versions").iterdir()]
    return max(found[1] for found in map(_NUMBER.fullmatch, names) if found)


def create_schema(address: str) -> None:
    """Create in an empty database what all migrations would create."""
    engine = open_engine(address, part="migration")
    try:
        with engine.begin() as connection:
            metadata.create_all(connection)
            _VERSION.create(connection)
            connection.execute(_VERSION.insert().values(version_num=newest_revision()))
            connection.execute(registry_clock.insert().values(id=1, revision=0))
    finally:
        engine.dispose()
