"""Unit of work: all repositories over one transaction, which a use case commits or rolls back as a whole."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import Connection, event
from sqlalchemy.engine import Engine
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.pool import ConnectionPoolEntry

from app.store.blobs import DatabaseBlobs
from app.store.db_errors import translate_errors
from app.store.engine import READ_ONLY
from app.store.repositories.audit import Audit
from app.store.repositories.datasets import Datasets
from app.store.repositories.events import Events
from app.store.repositories.jobs import Jobs
from app.store.repositories.keys import Keys
from app.store.repositories.models import Models
from app.store.repositories.retention import Retention
from app.store.repositories.students import Students
from app.store.repositories.units import Units
from app.store.repositories.workers import Workers


class UnitOfWork:
    """The repositories over one connection and its open transaction."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.blobs = DatabaseBlobs(connection)
        self.datasets = Datasets(connection)
        self.jobs = Jobs(connection)
        self.students = Students(connection)
        self.units = Units(connection)
        self.events = Events(connection)
        self.models = Models(connection)
        self.keys = Keys(connection)
        self.workers = Workers(connection)
        self.audit = Audit(connection)
        self.retention = Retention(connection)


class Store:
    """Opens transactions for the use cases.

    All methods raise Unavailable when the database is unreachable, locked, too slow or out of disk space.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    @contextmanager
    def begin(self) -> Iterator[UnitOfWork]:
        """A read-write transaction, committed at the end of the block and rolled back on an error."""
        with translate_errors(), self.engine.begin() as connection:
            uow = UnitOfWork(connection)
            yield uow
        uow.audit.committed()

    @contextmanager
    def read(self) -> Iterator[UnitOfWork]:
        """A read-only transaction. The database rejects writes; on SQLite it does not wait for the writer."""
        with translate_errors(), self.engine.connect() as connection:
            connection = connection.execution_options(**{READ_ONLY: True, "postgresql_readonly": True})
            with connection.begin():
                yield UnitOfWork(connection)

    def dispose(self) -> None:
        """Close all connections; connections in use are closed when they return to the pool."""
        event.listen(self.engine.pool, "checkin", _close)
        self.engine.dispose()


def _close(_connection: DBAPIConnection, record: ConnectionPoolEntry) -> None:
    record.invalidate()
