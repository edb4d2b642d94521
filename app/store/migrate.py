"""Runs the schema migrations of the installed package."""

from __future__ import annotations

import logging
import time

import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection
from sqlalchemy.engine import Engine
from sqlalchemy.exc import DBAPIError

from app.domain.errors import SetupError
from app.store.db_errors import unavailable_of
from app.store.dialect import on_postgresql
from app.store.engine import UNLIMITED, open_engine
from app.store.repositories.audit import Audit
from app.store.schema import REVISIONS, newest_revision

logger = logging.getLogger(__name__)

_UPGRADE_LOCK = 0x53544D53
"""Key of the advisory lock ("STMS" in ASCII) that serialises migrations."""

_LOCK_SECONDS = 2.0
_PAUSE_SECONDS = 1.0
_GIVE_UP_SECONDS = 600.0


class SchemaOutdated(SetupError):
    """The database has an older schema, or none."""


class SchemaUnknown(SetupError):
    """The database has the schema of a newer release, or of one before 1.0.0."""


def upgrade(address: str, revision: str = "head") -> None:
    """Apply all pending migrations up to ``revision`` in one transaction.

    Concurrent processes wait for each other: on SQLite by its write lock, on PostgreSQL by an advisory lock.
    It waits at most two seconds at a time for a table that a long reader such as pg_dump has locked, because
    all queries of the service queue behind a waiting migration. Raises Unavailable after ten minutes, and
    SchemaUnknown.
    """
    engine = open_engine(address, timeouts=UNLIMITED, part="migration")
    deadline = time.monotonic() + _GIVE_UP_SECONDS
    try:
        while not _try_upgrade(engine, revision, last=time.monotonic() > deadline):
            logger.warning("a migration waits for a table that another session has locked")
            time.sleep(_PAUSE_SECONDS)
    finally:
        engine.dispose()


def _try_upgrade(engine: Engine, revision: str, *, last: bool) -> bool:
    """Migrate in one transaction; False if a table stayed locked. last: raise Unavailable in that case."""
    try:
        with engine.begin() as connection:
            if on_postgresql(connection):
                connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_UPGRADE_LOCK)))
                # This is set after the advisory lock, for which processes wait without a limit.
                connection.exec_driver_sql(f"SET LOCAL lock_timeout = {round(1000 * _LOCK_SECONDS)}")
            before = _revision(connection)
            require_known(before)
            command.upgrade(_config(connection), revision)
            if revision == "head" and before not in (None, newest_revision()):
                Audit(connection, tenant="").append(
                    "database.upgrade", newest_revision(), details={"from": before}
                )
    except DBAPIError as error:
        cause = unavailable_of(error)
        if cause is None or cause.reason != "database_busy":
            raise
        if last:
            raise cause from error
        return False
    return True


def schema_is_current(engine: Engine) -> bool:
    """Whether the database has every table and column this version of the program expects."""
    with engine.connect() as connection:
        return _revision(connection) == newest_revision()


def require_current_schema(engine: Engine) -> None:
    """Raise SchemaOutdated or SchemaUnknown unless `schema_is_current`."""
    with engine.connect() as connection:
        revision = _revision(connection)
    if revision != newest_revision():
        require_known(revision)
        raise SchemaOutdated("The database has no schema, or an older one. Run `stms db upgrade` first.")


def require_known(revision: str | None) -> None:
    """Raise SchemaUnknown if a database has a revision that this program cannot upgrade. None: no tables."""
    if revision is None or is_known_revision(revision):
        return
    if is_before_first(revision):
        raise SchemaUnknown(
            f"The database has the schema {revision}, of a release before 1.0.0. Run `stms db upgrade` of the"
            " last release before 1.0.0 first, then that of this one."
        )
    raise SchemaUnknown("The database has the schema of a newer release. Use the program of that release.")


def is_known_revision(revision: str) -> bool:
    """Whether this program has the migration."""
    return revision in _revisions()


def is_before_first(revision: str) -> bool:
    """Whether a migration is older than 1.0.0; any other unknown migration is from a newer program."""
    return revision < min(_revisions())


def _revisions() -> set[str]:
    """The migrations of this program. Their names are numbers of four digits."""
    return {script.revision for script in ScriptDirectory.from_config(_config(None)).walk_revisions()}


def _revision(connection: Connection) -> str | None:
    return MigrationContext.configure(connection).get_current_revision()


def _config(connection: Connection | None) -> Config:
    config = Config()
    config.set_main_option("script_location", str(REVISIONS).replace("%", "%%"))
    config.attributes["connection"] = connection
    return config
