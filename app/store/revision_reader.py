"""Reads the revision of the registry from SQLite in microseconds, which an event loop may do itself."""

from __future__ import annotations

import sqlite3
from contextlib import suppress
from typing import Final

import sqlalchemy as sa
from sqlalchemy.engine import Engine

from app.store.tables import registry_clock

_QUERY: Final = str(sa.select(registry_clock.c.revision))


class RevisionReader:
    """Has a connection of its own to the database of ``engine``, if that is SQLite. Not thread-safe."""

    def __init__(self, engine: Engine) -> None:
        self._file = engine.url.database if engine.dialect.name == "sqlite" else None
        self._connection: sqlite3.Connection | None = None

    def revision(self) -> int | None:
        """The revision; None if it cannot be read without waiting, and on PostgreSQL."""
        if self._file is None:
            return None
        try:
            if self._connection is None:
                self._connection = sqlite3.connect(self._file, timeout=0.0, check_same_thread=False)
            row = self._connection.execute(_QUERY).fetchone()
        except sqlite3.Error:
            self.close()
            return None
        return None if row is None else int(row[0])

    def close(self) -> None:
        """Close the connection. The next call opens another one."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(sqlite3.Error):
                connection.close()
