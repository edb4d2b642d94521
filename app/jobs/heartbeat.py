"""Being seen alive by the other workers, and seeing which of them are not.

No clocks are compared: a peer is dead when its beat has not changed for a while on this process's own clock.
After a pause of its own (a freeze, a database that was away) a worker starts to watch its peers anew, so that
it never takes its own silence for theirs. Beating and looking have a thread each: who waits for a lock while
he takes over must not be taken for dead himself.
"""

from __future__ import annotations

import dataclasses
import logging
import threading
import time
from collections.abc import Callable, Sequence

from app.domain.entities import Json, Worker
from app.domain.errors import ServiceError
from app.store.unit_of_work import Store

logger = logging.getLogger(__name__)

_JOIN_SECONDS = 5.0


class Peers:
    """When each of the other workers' beats was last seen to change."""

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self._seen: dict[str, tuple[float, float]] = {}

    def forget(self) -> None:
        """Start anew: everybody counts as just seen."""
        self._seen.clear()

    def dead(self, workers: Sequence[Worker], now: float) -> list[Worker]:
        """The workers whose beat stood still for longer than the patience, in seconds."""
        known = {worker.executor_id: worker for worker in workers}
        self._seen = {
            executor_id: seen
            for executor_id, seen in self._seen.items()
            if executor_id in known and known[executor_id].beat_at == seen[0]
        }
        for executor_id, worker in known.items():
            self._seen.setdefault(executor_id, (worker.beat_at, now))
        return [
            known[executor_id]
            for executor_id, (_, since) in self._seen.items()
            if now - since > self._patience
        ]


class Heartbeat:
    """Two threads: one beats, one looks after the others.

    doing: what is under way here, told with every beat. take_over: called with the names of workers whose
    work is to be done by others, again and again while they are listed as lost. lost: called once, when the
    peers have given up this worker: its work is theirs already.
    """

    def __init__(
        self,
        store: Store,
        worker: Worker,
        *,
        every: float,
        patience: float,
        doing: Callable[[], tuple[Json, ...]],
        take_over: Callable[[Sequence[str]], None],
        lost: Callable[[], None],
    ) -> None:
        self._store = store
        self._worker = worker
        self._every = every
        self._patience = patience
        self._doing = doing
        self._take_over = take_over
        self._lost = lost
        self._peers = Peers(patience)
        self._looked_at = float("inf")
        self._registered = False
        self._stopping = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(task,), name=name, daemon=True)
            for name, task in (("heartbeat", self.beat), ("peers", self.look))
        ]

    def beat(self) -> None:
        """Say once that this worker is alive; the first time it gets on the list. Raises Unavailable."""
        now = dataclasses.replace(self._worker, beat_at=time.time(), units=self._doing())
        with self._store.begin() as uow:
            if self._registered:
                alive = uow.workers.renew(now)
            else:
                uow.workers.beat(now)
                alive = True
        self._registered = True
        if not alive:
            self._stopping.set()
            self._lost()

    def look(self) -> None:
        """Give up workers that are dead, and take over from those given up. Raises Unavailable."""
        with self._store.read() as uow:
            others = [
                worker for worker in uow.workers.all() if worker.executor_id != self._worker.executor_id
            ]
        now = time.monotonic()
        if now - self._looked_at > max(self._patience / 2, 2 * self._every):
            logger.warning("nothing seen for %.1f s; watching the other workers anew", now - self._looked_at)
            self._peers.forget()
        self._looked_at = now
        lost = [worker.executor_id for worker in others if worker.lost_at is not None]
        dead = self._peers.dead([worker for worker in others if worker.lost_at is None], now)
        if dead:
            logger.warning("giving up %s", ", ".join(worker.executor_id for worker in dead))
            lost += self._give_up(dead)
        if lost:
            self._take_over(lost)

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End the threads; the worker's row stays as it is."""
        self._stopping.set()
        for thread in self._threads:
            if thread.is_alive() and thread is not threading.current_thread():
                # Whoever waits for a network that is gone must not keep the process.
                thread.join(_JOIN_SECONDS)

    def _give_up(self, dead: Sequence[Worker]) -> list[str]:
        """Of several peers that see the same, one succeeds."""
        with self._store.begin() as uow:
            now = time.time()
            return [
                worker.executor_id
                for worker in dead
                if uow.workers.mark_lost(worker.executor_id, now, worker.beat_at)
            ]

    def _run(self, task: Callable[[], None]) -> None:
        while not self._stopping.wait(self._every):
            try:
                task()
            except ServiceError as error:
                logger.warning("heartbeat: %s", error)
            except Exception:
                logger.exception("heartbeat failed; the next one follows")
