"""One transaction, all repositories. A use case opens one, and it commits or leaves no trace."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import Connection
from sqlalchemy.engine import Engine
from sqlalchemy.exc import InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from app.domain.errors import Unavailable
from app.store.blobs import DatabaseBlobs
from app.store.engine import READ_ONLY
from app.store.repositories.datasets import Datasets
from app.store.repositories.events import Events
from app.store.repositories.jobs import Jobs
from app.store.repositories.keys import Keys
from app.store.repositories.models import Models
from app.store.repositories.students import Students
from app.store.repositories.workers import Workers


class UnitOfWork:
    """The repositories over one connection and its open transaction."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.blobs = DatabaseBlobs(connection)
        self.datasets = Datasets(connection)
        self.jobs = Jobs(connection)
        self.students = Students(connection)
        self.events = Events(connection)
        self.models = Models(connection)
        self.keys = Keys(connection)
        self.workers = Workers(connection)


class Store:
    """The database as the use cases see it. Raises Unavailable when it cannot be reached or stays locked."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    @contextmanager
    def begin(self) -> Iterator[UnitOfWork]:
        """A transaction that writes: committed at the end of the block, rolled back on an error."""
        with _translated(), self.engine.begin() as connection:
            yield UnitOfWork(connection)

    @contextmanager
    def read(self) -> Iterator[UnitOfWork]:
        """A transaction that only reads, and is refused anything else; on SQLite it waits for no writer."""
        with _translated(), self.engine.connect() as connection:
            connection = connection.execution_options(**{READ_ONLY: True, "postgresql_readonly": True})
            with connection.begin():
                yield UnitOfWork(connection)

    def dispose(self) -> None:
        """Close all connections."""
        self.engine.dispose()


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except (OperationalError, InterfaceError, PoolTimeout) as error:
        raise Unavailable("The database cannot be used just now.", code="database_unavailable") from error
