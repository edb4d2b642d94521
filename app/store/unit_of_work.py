"""Unit of work: all repositories over one transaction, which a use case commits or rolls back as a whole."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import Connection, event
from sqlalchemy.engine import Engine
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.pool import ConnectionPoolEntry

from app.domain.names import DEFAULT_TENANT
from app.store.blobs import Blobs
from app.store.bodies import BlobBodies
from app.store.db_errors import commit_errors, translate_errors
from app.store.engine import READ_ONLY, SINGLE_READ
from app.store.repositories.admission import Admission
from app.store.repositories.answers import AnswerCounts
from app.store.repositories.audit import Audit
from app.store.repositories.comparisons import Comparisons
from app.store.repositories.datasets import Datasets, PictureVectors
from app.store.repositories.evaluations import Evaluations
from app.store.repositories.events import Events
from app.store.repositories.evidence import Evidences
from app.store.repositories.feedback import Feedback
from app.store.repositories.gates import Gates
from app.store.repositories.inputs import InputCounts
from app.store.repositories.jobs import Jobs
from app.store.repositories.keys import Keys
from app.store.repositories.models import Models
from app.store.repositories.monitors import Monitors
from app.store.repositories.outbox import Outbox
from app.store.repositories.own_encoders import OwnEncoders
from app.store.repositories.quotas import Quotas
from app.store.repositories.registry import Registry
from app.store.repositories.remote_scores import RemoteScoreBatches
from app.store.repositories.retention import Retention
from app.store.repositories.servers import Servers
from app.store.repositories.sessions import Sessions
from app.store.repositories.students import Students
from app.store.repositories.tallies import Tallies
from app.store.repositories.token_revocations import TokenRevocations
from app.store.repositories.units import Units
from app.store.repositories.uploads import Uploads
from app.store.repositories.webhooks import Webhooks
from app.store.repositories.workers import Workers


class UnitOfWork:
    """The repositories over one connection and its open transaction.

    tenant: the only one whose rows they return and change; None for all tenants. objects: see `Store`.
    """

    def __init__(self, connection: Connection, tenant: str | None, objects: BlobBodies | None = None) -> None:
        self.connection = connection
        self.tenant = tenant
        self.blobs = Blobs(connection, objects)
        self.datasets = Datasets(connection, tenant)
        self.jobs = Jobs(connection, tenant)
        self.students = Students(connection)
        self.comparisons = Comparisons(connection)
        self.remote_scores = RemoteScoreBatches(connection)
        self.picture_vectors = PictureVectors(connection, tenant)
        self.units = Units(connection)
        self.events = Events(connection)
        self.models = Models(connection, tenant)
        self.monitors = Monitors(connection, tenant)
        self.feedback = Feedback(connection, tenant)
        self.evidence = Evidences(connection)
        self.evaluations = Evaluations(connection, tenant)
        self.gates = Gates(connection, tenant)
        self.keys = Keys(connection, tenant)
        self.sessions = Sessions(connection)
        self.token_revocations = TokenRevocations(connection, tenant)
        self.registry = Registry(connection)
        self.workers = Workers(connection)
        self.tallies = Tallies(connection)
        self.servers = Servers(connection)
        self.inputs = InputCounts(connection)
        self.answers = AnswerCounts(connection)
        self.admission = Admission(connection)
        self.quotas = Quotas(connection)
        self.uploads = Uploads(connection, tenant)
        self.own_encoders = OwnEncoders(connection, tenant)
        self.webhooks = Webhooks(connection, tenant)
        self.outbox = Outbox(connection)
        self.audit = Audit(connection, tenant)
        self.retention = Retention(connection, tenant)


class Store:
    """Opens transactions for the use cases of one tenant, which is `DEFAULT_TENANT` at first.

    Rows of other tenants do not exist for them. `of_tenant` gives the store of another tenant. Workers,
    authentication and operators use that of all tenants.

    objects: the object store with the bytes of large blobs; None keeps all bytes in the database.

    All methods raise Unavailable when the database is unreachable, locked, too slow or out of disk space.
    """

    def __init__(
        self, engine: Engine, tenant: str | None = DEFAULT_TENANT, objects: BlobBodies | None = None
    ) -> None:
        self.engine = engine
        self.objects = objects
        self._tenant = tenant

    @property
    def tenant(self) -> str:
        """The tenant. Raises RuntimeError for the store of all tenants, which has none."""
        if self._tenant is None:
            raise RuntimeError("This needs the store of one tenant: use of_tenant first.")
        return self._tenant

    def of_tenant(self, tenant: str) -> Store:
        """The store of one tenant, over the same connections."""
        return Store(self.engine, tenant, self.objects)

    def of_all_tenants(self) -> Store:
        """The store of all tenants, over the same connections."""
        return Store(self.engine, None, self.objects)

    @contextmanager
    def begin(self) -> Iterator[UnitOfWork]:
        """A read-write transaction, committed at the end of the block and rolled back on an error.

        Raises OutcomeUnknown, a kind of Unavailable, when the database is lost while it commits.
        """
        with translate_errors(), self.engine.connect() as connection, connection.begin() as transaction:
            uow = UnitOfWork(connection, self._tenant, self.objects)
            yield uow
            with commit_errors():
                transaction.commit()
        uow.audit.committed()

    @contextmanager
    def read(self) -> Iterator[UnitOfWork]:
        """A read-only transaction. The database rejects writes; on SQLite it does not wait for the writer."""
        with translate_errors(), self.engine.connect() as connection:
            connection = connection.execution_options(**{READ_ONLY: True, "postgresql_readonly": True})
            with connection.begin():
                yield UnitOfWork(connection, self._tenant, self.objects)

    @contextmanager
    def peek(self) -> Iterator[UnitOfWork]:
        """For one statement that reads, without BEGIN and COMMIT, which cost as much as the statement."""
        with translate_errors(), self.engine.connect() as connection:
            # SQLAlchemy would set more than is needed for AUTOCOMMIT on SQLite, and back again.
            is_sqlite = self.engine.dialect.name == "sqlite"
            options = {SINGLE_READ: True} if is_sqlite else {"isolation_level": "AUTOCOMMIT"}
            yield UnitOfWork(connection.execution_options(**options), self._tenant, self.objects)

    @contextmanager
    def single(self) -> Iterator[UnitOfWork]:
        """For one statement that writes. On PostgreSQL it commits by itself, without BEGIN and COMMIT."""
        if self.engine.dialect.name == "sqlite":
            with self.begin() as uow:
                yield uow
            return
        with translate_errors(), self.engine.connect() as connection:
            connection = connection.execution_options(isolation_level="AUTOCOMMIT")
            yield UnitOfWork(connection, self._tenant, self.objects)

    def dispose(self) -> None:
        """Close all connections; connections in use are closed when they return to the pool."""
        event.listen(self.engine.pool, "checkin", _close)
        self.engine.dispose()


def _close(_connection: DBAPIConnection, record: ConnectionPoolEntry) -> None:
    record.invalidate()
