"""Heartbeats of a worker, and detection of dead peers by theirs.

No clocks are compared: a peer is dead when its heartbeat has not changed for a while on this process's own
clock. After a pause of its own (a freeze, a database outage) a worker starts the observation of its peers
again, so that it never mistakes its own silence for theirs. Heartbeats have their own thread: a worker that
blocks on a lock during a takeover must still look alive.
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
    """When the heartbeat of each other worker last changed, on this process's clock.

    timeout: seconds without a change after which a worker is dead.
    """

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._seen: dict[str, tuple[float, float]] = {}

    def forget(self) -> None:
        """Start the observation again: every worker counts as just seen."""
        self._seen.clear()

    def dead(self, workers: Sequence[Worker], now: float) -> list[Worker]:
        """The workers whose heartbeat has not changed for longer than the timeout. now: monotonic seconds."""
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
            if now - since > self._timeout
        ]


class Heartbeat:
    """Two threads: one sends heartbeats, one watches the peers.

    interval: seconds between heartbeats. timeout: of the peers, in seconds. units: returns the running units,
    reported with every heartbeat. take_over: called with the names of lost workers, again as long as they are
    listed as lost. on_lost: called once, when the peers have marked this worker as lost and do its work.
    """

    def __init__(
        self,
        store: Store,
        worker: Worker,
        *,
        interval: float,
        timeout: float,
        units: Callable[[], tuple[Json, ...]],
        take_over: Callable[[Sequence[str]], None],
        on_lost: Callable[[], None],
    ) -> None:
        self._store = store
        self._worker = worker
        self._interval = interval
        self._timeout = timeout
        self._units = units
        self._take_over = take_over
        self._on_lost = on_lost
        self._peers = Peers(timeout)
        self._checked_at = float("inf")
        self._registered = False
        self._stopping = threading.Event()
        self._threads = [
            threading.Thread(target=self._loop, args=(task,), name=name, daemon=True)
            for name, task in (("heartbeat", self.beat), ("peers", self.check_peers))
        ]

    def beat(self) -> None:
        """Store one heartbeat; the first one registers the worker. Raises Unavailable."""
        now = dataclasses.replace(self._worker, beat_at=time.time(), units=self._units())
        with self._store.begin() as uow:
            if self._registered:
                alive = uow.workers.renew(now)
            else:
                uow.workers.beat(now)
                alive = True
        self._registered = True
        if not alive:
            self._stopping.set()
            self._on_lost()

    def check_peers(self) -> None:
        """Mark dead workers as lost, and take over the work of lost ones. Raises Unavailable."""
        with self._store.read() as uow:
            others = [
                worker for worker in uow.workers.all() if worker.executor_id != self._worker.executor_id
            ]
        now = time.monotonic()
        if now - self._checked_at > max(self._timeout / 2, 2 * self._interval):
            logger.warning("paused for %.1f s; observing the other workers again", now - self._checked_at)
            self._peers.forget()
        self._checked_at = now
        lost = [worker.executor_id for worker in others if worker.lost_at is not None]
        dead = self._peers.dead([worker for worker in others if worker.lost_at is None], now)
        if dead:
            logger.warning("marking as lost: %s", ", ".join(worker.executor_id for worker in dead))
            lost += self._mark_lost(dead)
        if lost:
            self._take_over(lost)

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End the threads. The worker's row is not changed."""
        self._stopping.set()
        for thread in self._threads:
            if thread.is_alive() and thread is not threading.current_thread():
                # A thread that waits for a lost network must not keep the process alive.
                thread.join(_JOIN_SECONDS)

    def _mark_lost(self, dead: Sequence[Worker]) -> list[str]:
        """Names of the workers that this one marked; for each only one of several peers succeeds."""
        with self._store.begin() as uow:
            now = time.time()
            return [
                worker.executor_id
                for worker in dead
                if uow.workers.mark_lost(worker.executor_id, now, worker.beat_at)
            ]

    def _loop(self, task: Callable[[], None]) -> None:
        while not self._stopping.wait(self._interval):
            try:
                task()
            except ServiceError as error:
                logger.warning("heartbeat: %s", error)
            except Exception:
                logger.exception("heartbeat failed; it is tried again")
