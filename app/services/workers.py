"""Use cases of worker processes and of server processes: list them."""

from __future__ import annotations

from collections.abc import Sequence

from app.domain.entities import Worker
from app.domain.figures import ServerRow
from app.store.unit_of_work import Store


def list_workers(store: Store) -> tuple[Sequence[Worker], float]:
    """All workers, and the database's time, which is the clock of their heartbeats."""
    with store.read() as uow:
        return uow.workers.all(), uow.workers.clock()


def list_servers(store: Store) -> tuple[Sequence[ServerRow], float]:
    """All groups of server processes, and the database's time, which is the clock of their beats."""
    with store.read() as uow:
        return uow.servers.all(), uow.workers.clock()
