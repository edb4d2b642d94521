"""The health of the database, the job engine and the workers, for probes of any number of clients.

Probes need no API key, so any client can send any number of them. One thread with its own database connection
therefore computes their answers at most once a second: probes take neither a thread nor a
connection from a query or another request, even while the database hangs.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Final, Generic, TypeVar

from sqlalchemy.exc import SQLAlchemyError

from app.domain.checks import Check, CheckFailed, check
from app.domain.errors import Unavailable
from app.domain.figures import DatabaseFigures
from app.domain.ports import JobQueue
from app.store.migrate import schema_is_current
from app.store.unit_of_work import Store

logger = logging.getLogger(__name__)

SECONDS: Final = 1.0
"""Time between two computations."""
PATIENCE_SECONDS: Final = 2.0
"""How long after its start callers wait for a computation."""

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class DatabaseHealth:
    """Results that depend on the database. figures: None while they cannot be read."""

    checks: tuple[Check, ...]
    figures: DatabaseFigures | None


class ComputedOncePerSecond(Generic[Value]):
    """The value of ``compute``, which blocks: computed in a thread of its own, at most once in ``seconds``.

    Callers that come during a computation wait for it together. Only the event loop's thread may call `get`.
    """

    def __init__(self, compute: Callable[[], Value], name: str, seconds: float = SECONDS) -> None:
        self.seconds = seconds
        self._compute = compute
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"stms-{name}")
        self._pending: asyncio.Future[Value] | None = None
        self._started = -1e9
        self._value: Value | None = None

    async def get(self) -> Value | None:
        """The newest value; None if its computation takes longer than `PATIENCE_SECONDS`, or has failed."""
        now = time.monotonic()
        if self._pending is None and now - self._started >= self.seconds:
            self._started = now
            loop = asyncio.get_running_loop()
            self._pending = loop.run_in_executor(self._thread, self._compute)
            self._pending.add_done_callback(self._store)
        if self._pending is not None:
            left = self._started + PATIENCE_SECONDS - now
            done, _ = await asyncio.wait([self._pending], timeout=max(left, 0.0))
            if not done:
                return None
        return self._value

    def close(self) -> None:
        """Compute no more; a running computation ends on its own."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _store(self, computed: asyncio.Future[Value]) -> None:
        self._pending = None
        error = None if computed.cancelled() else computed.exception()
        if error is not None:
            logger.error("a probe cannot be answered", exc_info=error)
        self._value = None if computed.cancelled() or error is not None else computed.result()


def database_health(store: Store, queue: JobQueue | None, takeover_seconds: float) -> DatabaseHealth:
    """Run the checks that need the database. Blocks.

    queue: None on a server that only answers queries, which has no information about jobs.
    """
    database = check("database", lambda: _database(store))
    if not database.ok:
        # Each further check would wait for the database again.
        unknown = "is unknown while the database does not answer"
        needed = {"schema": True} | ({} if store.objects is None else {"object_store": False})
        needed |= {} if queue is None else {"job_engine": False, "workers": False}
        others = [Check(name, False, is_needed, unknown) for name, is_needed in needed.items()]
        return DatabaseHealth((database, *others), None)
    checks = [database, check("schema", lambda: _schema(store))]
    if store.objects is not None:
        checks.append(check("object_store", lambda: _object_store(store), needed=False))
    if queue is not None:
        checks.append(check("job_engine", lambda: _job_engine(queue), needed=False))
        checks.append(check("workers", lambda: _workers(store, takeover_seconds), needed=False))
    return DatabaseHealth(tuple(checks), _figures(store, takeover_seconds))


def _database(store: Store) -> str:
    with store.read():
        return "answers"


def _schema(store: Store) -> str:
    try:
        current = schema_is_current(store.engine)
    except SQLAlchemyError as error:
        raise CheckFailed("cannot be read") from error
    if not current:
        raise CheckFailed("is older than this program, or missing; run: stms db upgrade")
    return "is up to date"


def _object_store(store: Store) -> str:
    if store.objects is not None:
        store.objects.ping()
    with store.read() as uow:
        count = uow.blobs.count_objects()
    return f"answers; {count} blobs are in it"


def _job_engine(queue: JobQueue) -> str:
    queue.ping()
    return "answers"


def _workers(store: Store, takeover_seconds: float) -> str:
    with store.read() as uow:
        workers, now = uow.workers.all(), uow.workers.clock()
    alive = sum(worker.is_alive(now, takeover_seconds) for worker in workers)
    if not alive:
        raise CheckFailed("none has sent a heartbeat recently; submitted jobs wait")
    return f"{alive} alive"


def _figures(store: Store, takeover_seconds: float) -> DatabaseFigures | None:
    try:
        with store.of_all_tenants().read() as uow:
            jobs = {state.value: count for state, count in uow.jobs.count_by_state().items()}
            oldest, (done, total) = uow.jobs.oldest_queued_seconds(), uow.jobs.unfinished_progress()
            workers, now, tallies = uow.workers.all(), uow.workers.clock(), uow.tallies.all()
            units = uow.units.counts()
            deliveries, first_due = uow.webhooks.count_due(), uow.webhooks.first_due()
            broken = uow.evidence.count_alarms()
    except Unavailable:
        return None
    alive = [worker for worker in workers if worker.is_alive(now, takeover_seconds)]
    lost = sum(worker.lost_at is not None for worker in workers)
    return DatabaseFigures(
        jobs,
        oldest,
        units._asdict(),
        done,
        total,
        {"alive": len(alive), "silent": len(workers) - len(alive) - lost, "lost": lost},
        sum(worker.slots for worker in alive),
        sum(len(worker.units) for worker in alive),
        tallies,
        deliveries,
        0.0 if first_due is None else max(0.0, now - first_due),
        broken,
    )


class Probes:
    """The answers to probes. database: its health. metrics_text: the metrics in the format of Prometheus.

    open_metrics: the same as OpenMetrics. render: returns them in that format if its argument is true.
    """

    def __init__(self, inspect: Callable[[], DatabaseHealth], render: Callable[[bool], bytes]) -> None:
        self.database = ComputedOncePerSecond(inspect, "health")
        self.metrics_text = ComputedOncePerSecond(partial(render, False), "metrics")
        self.open_metrics = ComputedOncePerSecond(partial(render, True), "openmetrics")
        self.newest: DatabaseHealth | None = None

    async def refresh(self) -> None:
        """Take the newest health of the database as `newest`; None if it has not answered in time."""
        self.newest = await self.database.get()

    def metrics(self) -> tuple[dict[str, bool], DatabaseFigures | None]:
        """What metrics say about `newest`: whether each check succeeded, and the figures."""
        if self.newest is None:
            return {"database": False}, None
        return {each.name: each.ok for each in self.newest.checks}, self.newest.figures

    def close(self) -> None:
        """Compute no more."""
        self.database.close()
        self.metrics_text.close()
        self.open_metrics.close()
