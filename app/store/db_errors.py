"""What a database's own error means to the service: wait and try again, or a fault of this program."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError, PendingRollbackError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from app.domain.errors import Unavailable

_FULL: Final = {"53100", "SQLITE_FULL"}
_SLOW: Final = {"57014"}
_BUSY: Final = {"55P03", "40P01", "40001", "SQLITE_BUSY", "SQLITE_LOCKED"}
"""PostgreSQL: lock not available, deadlock detected, serialization failure."""
_DAMAGED: Final = {"SQLITE_CORRUPT", "SQLITE_NOTADB"}
_GONE: Final = {"25P03", "25P04"}
"""PostgreSQL ended a session whose transaction was idle, or took, too long. psycopg: an internal error."""

_OTHER_SCHEMA: Final = {"42P01", "42703"}
"""PostgreSQL: a table or a column that is not there. SQLite tells it as one of its operational errors."""

_FULL_SECONDS: Final = 30.0


@contextmanager
def translate_errors() -> Iterator[None]:
    """Errors of the database that waiting may cure become Unavailable; faults of the program stay."""
    try:
        yield
    except (PoolTimeout, PendingRollbackError) as error:
        raise _unavailable() from error
    except DBAPIError as error:
        cause = unavailable_of(error)
        if cause is None:
            raise
        raise cause from error


def unavailable_of(error: DBAPIError) -> Unavailable | None:
    """What to tell the caller of an error of the database; None when the program is to blame."""
    code = _code(error.orig)
    if code in _FULL:
        text = "The database has no room left on its disk."
        return Unavailable(text, code="storage_full", retry_after=_FULL_SECONDS)
    if code in _SLOW:
        return Unavailable("The database took too long and was stopped.", code="database_slow")
    if code in _BUSY:
        return Unavailable("The database is busy with other requests just now.", code="database_busy")
    if code in _DAMAGED:
        return Unavailable("The database file is damaged.", code="database_damaged")
    if code in _OTHER_SCHEMA:
        return Unavailable("The database has another schema than this program.", code="schema_outdated")
    if isinstance(error, OperationalError | InterfaceError) or error.connection_invalidated or code in _GONE:
        return _unavailable()
    return None


def _code(cause: BaseException | None) -> str:
    """SQLSTATE of PostgreSQL, or the primary result code of SQLite by its name."""
    if isinstance(cause, sqlite3.Error):
        name = getattr(cause, "sqlite_errorname", None) or ""
        # Extended names say more than is needed here: SQLITE_BUSY_SNAPSHOT, SQLITE_IOERR_WRITE.
        return "_".join(name.split("_")[:2])
    return getattr(cause, "sqlstate", None) or ""


def _unavailable() -> Unavailable:
    return Unavailable("The database cannot be used just now.", code="database_unavailable")
