"""Being seen alive by the other workers, and seeing which of them are not.

No clocks are compared: a peer is dead when its beat has not changed for a while on this process's own clock.
After a pause of its own (a freeze, a database that was away) a worker starts to watch its peers anew, so that
it never takes its own silence for theirs.
"""

from __future__ import annotations

import dataclasses
import logging
import threading
import time
from collections.abc import Callable, Sequence

from app.domain.entities import Worker
from app.domain.errors import ServiceError
from app.store.unit_of_work import Store

logger = logging.getLogger(__name__)


class Peers:
    """When each of the other workers' beats was last seen to change."""

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self._seen: dict[str, tuple[float, float]] = {}

    def forget(self) -> None:
        """Start anew: everybody counts as just seen."""
        self._seen.clear()

    def dead(self, workers: Sequence[Worker], now: float) -> list[str]:
        """Ids of the workers whose beat stood still for longer than the patience, in seconds."""
        known = {worker.executor_id: worker.beat_at for worker in workers}
        self._seen = {
            executor_id: seen for executor_id, seen in self._seen.items() if known.get(executor_id) == seen[0]
        }
        for executor_id, beat_at in known.items():
            self._seen.setdefault(executor_id, (beat_at, now))
        return [executor_id for executor_id, (_, since) in self._seen.items() if now - since > self._patience]


class Heartbeat:
    """A thread that beats and looks. take_over is called with the ids of workers found dead."""

    def __init__(
        self,
        store: Store,
        worker: Worker,
        *,
        every: float,
        patience: float,
        take_over: Callable[[Sequence[str]], None],
    ) -> None:
        self._store = store
        self._worker = worker
        self._every = every
        self._patience = patience
        self._take_over = take_over
        self._peers = Peers(patience)
        self._last = time.monotonic()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    def beat(self) -> None:
        """Say once that this worker is alive. Raises Unavailable."""
        with self._store.begin() as uow:
            uow.workers.beat(dataclasses.replace(self._worker, beat_at=time.time()))
        now = time.monotonic()
        if now - self._last > max(self._patience / 2, 2 * self._every):
            logger.warning("no heartbeat for %.1f s; watching the other workers anew", now - self._last)
            self._peers.forget()
        self._last = now

    def look(self) -> None:
        """Take over from workers that are dead. Raises Unavailable."""
        with self._store.read() as uow:
            others = [
                worker for worker in uow.workers.all() if worker.executor_id != self._worker.executor_id
            ]
        dead = self._peers.dead(others, time.monotonic())
        if dead:
            logger.warning("taking over from %s", ", ".join(dead))
            self._take_over(dead)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End the thread; the worker's row stays as it is."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while not self._stopping.wait(self._every):
            try:
                self.beat()
                self.look()
            except ServiceError as error:
                logger.warning("heartbeat: %s", error)
            except Exception:
                logger.exception("heartbeat failed; the next one follows")
