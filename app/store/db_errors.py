"""Translates database errors: transient ones become Unavailable, programming errors stay as they are."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from sqlalchemy.engine import ExceptionContext
from sqlalchemy.exc import DataError, DBAPIError, InterfaceError, OperationalError, PendingRollbackError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from app.domain.errors import InvalidRequest, OutcomeUnknown, Unavailable

_FULL: Final = {"53100", "SQLITE_FULL"}
_SLOW: Final = {"57014"}
_BUSY: Final = {"55P03", "40P01", "40001", "SQLITE_BUSY", "SQLITE_LOCKED"}
"""PostgreSQL: lock not available, deadlock detected, serialization failure."""
_DAMAGED: Final = {"SQLITE_CORRUPT", "SQLITE_NOTADB"}
_GONE: Final = {"25P03", "25P04"}
"""PostgreSQL: idle-in-transaction or transaction timeout. psycopg reports both as internal errors."""

_SHUTDOWN: Final = "57P"
"""Beginning of PostgreSQL's codes for a session that an operator, a shutdown, a crash or a failover ended."""

_READ_ONLY: Final = {"25006", "0A000"}
"""PostgreSQL: read-only transaction, feature not supported. A standby rejects statements with the first, and
BEGIN READ WRITE with the second. The service uses nothing that a primary does not support."""

_OTHER_SCHEMA: Final = {"42P01", "42703"}
"""PostgreSQL: undefined table, undefined column. SQLite reports both as operational errors."""

_FULL_SECONDS: Final = 30.0


@contextmanager
def translate_errors() -> Iterator[None]:
    """Raise Unavailable for database errors that a retry may fix; other errors are re-raised."""
    try:
        yield
    except (PoolTimeout, PendingRollbackError) as error:
        raise _unavailable() from error
    except DBAPIError as error:
        cause = unavailable_of(error) or _refused_value(error)
        if cause is None:
            raise
        raise cause from error


@contextmanager
def commit_errors() -> Iterator[None]:
    """For a commit: raise OutcomeUnknown if the database was lost before it confirmed or refused the commit.

    Other errors are re-raised, because they mean that nothing was committed.
    """
    try:
        yield
    except DBAPIError as error:
        code = _code(error.orig)
        if code.startswith(_SHUTDOWN) or (error.connection_invalidated and not code):
            text = "The database was lost while it committed. The change may have been made: look first."
            raise OutcomeUnknown(text) from error
        raise


def _refused_value(error: DBAPIError) -> InvalidRequest | None:
    """The error to report if the database cannot store or compare a value, such as text with U+0000.

    The service's own checks refuse such values; this is for values that they do not know.
    """
    if isinstance(error, DataError):
        return InvalidRequest("A value of the request cannot be stored.", code="bad_value")
    return None


def unavailable_of(error: DBAPIError) -> Unavailable | None:
    """The error to report to the caller; None for a programming error."""
    code = _code(error.orig)
    if code in _FULL:
        text = "The disk of the database is full."
        return Unavailable(text, code="storage_full", retry_after=_FULL_SECONDS)
    if code in _SLOW:
        return Unavailable("The database took too long and was stopped.", code="database_slow")
    if code in _BUSY:
        return Unavailable("The database is busy with other requests.", code="database_busy")
    if code in _DAMAGED:
        return Unavailable("The database file is damaged.", code="database_damaged")
    if code in _OTHER_SCHEMA:
        return Unavailable("The schema of the database is not that of this program.", code="schema_outdated")
    if code in _READ_ONLY:
        return Unavailable("The database is read-only: it may be a standby.", code="database_read_only")
    if isinstance(error, OperationalError | InterfaceError) or error.connection_invalidated or code in _GONE:
        return _unavailable()
    return None


def invalidate_if_read_only(context: ExceptionContext) -> None:
    """Listener of SQLAlchemy's "handle_error": discard the connections to a server that is read-only.

    The next attempt then opens a new connection, to the server that is the primary by then.
    """
    code = _code(context.original_exception)
    own_mistake = code == "25006" and _began_read_only(context)
    if code in _READ_ONLY and not own_mistake:
        context.is_disconnect = True


def _began_read_only(context: ExceptionContext) -> bool:
    """Whether this program itself requested a read-only transaction, in which a write is its own mistake."""
    connection = context.connection
    return connection is not None and bool(connection.get_execution_options().get("postgresql_readonly"))


def is_full(error: BaseException | None) -> bool:
    """Whether the driver's error is that of a full disk."""
    return _code(error) in _FULL


def exceeded_limit(error: DBAPIError) -> bool:
    """Whether PostgreSQL ended a statement or a transaction because it took too long."""
    return _code(error.orig) in _SLOW | _GONE


def _code(cause: BaseException | None) -> str:
    """PostgreSQL's SQLSTATE, or the name of SQLite's primary result code."""
    if isinstance(cause, sqlite3.Error):
        name = getattr(cause, "sqlite_errorname", None) or ""
        # Shorten extended codes, such as SQLITE_BUSY_SNAPSHOT and SQLITE_IOERR_WRITE, to the primary code.
        return "_".join(name.split("_")[:2])
    return getattr(cause, "sqlstate", None) or ""


def _unavailable() -> Unavailable:
    return Unavailable("The database is not available.", code="database_unavailable")
