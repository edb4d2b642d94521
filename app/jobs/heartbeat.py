"""Sends heartbeats of a worker, and detects dead peers by their heartbeats.

The database sets the times of heartbeats, so that all processes agree on who is alive. A peer is dead if its
heartbeat has not changed for a while on this process's own clock. Of the time before this process looked, at
most half of the timeout counts, by the database's clock. A worker checks its peers only after a heartbeat of
its own. If its own heartbeats pause (a freeze, a database outage), it restarts the observation, so that it
never mistakes its own silence for theirs; a peer that was late before then has half of the timeout left.
Heartbeats have their own thread: a worker that blocks on a lock during a takeover must still look alive.

An idle worker needs one statement for each heartbeat: the statement also returns whether any peer is late or
lost, and whether this worker is elected. The rows of the peers are read only if one of them is late or lost.
"""

from __future__ import annotations

import dataclasses
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from app.domain.entities import Json, Worker
from app.domain.errors import ServiceError
from app.processes.periodic import until_beat
from app.store.repositories.workers import PeerSummary
from app.store.unit_of_work import Store

logger = logging.getLogger(__name__)

_JOIN_SECONDS = 5.0
RETRIES_PER_INTERVAL: Final = 4
"""How often a failing heartbeat is retried in one interval."""


class Peers:
    """Times, on this process's clock, at which the heartbeat of each other worker last changed.

    timeout: seconds without a change after which a worker is dead. late: seconds after which it is late.
    """

    def __init__(self, timeout: float, late: float) -> None:
        self._timeout = timeout
        self._late = late
        self._seen: dict[str, tuple[float, float]] = {}
        self._looked_at = float("-inf")

    def forget(self) -> None:
        """Restart the observation: every worker counts as just seen."""
        self._seen.clear()

    def resume(self, now: float) -> None:
        """Restart the observation after a pause. Workers that were late before the pause are still late.

        now: monotonic seconds.
        """
        self._seen = {
            executor_id: (beat_at, now - self._late)
            for executor_id, (beat_at, since) in self._seen.items()
            if self._looked_at - since >= self._late
        }

    def dead(
        self, workers: Sequence[Worker], now: float, credit: Mapping[str, float] | None = None
    ) -> list[Worker]:
        """The workers whose heartbeat has not changed for longer than the timeout.

        now: monotonic seconds. credit: seconds without a change before the first observation, by worker.
        """
        self._looked_at = now
        known = {worker.executor_id: worker for worker in workers}
        self._seen = {
            executor_id: seen
            for executor_id, seen in self._seen.items()
            if executor_id in known and known[executor_id].beat_at == seen[0]
        }
        for executor_id, worker in known.items():
            self._seen.setdefault(executor_id, (worker.beat_at, now - (credit or {}).get(executor_id, 0.0)))
        return [
            known[executor_id]
            for executor_id, (_, since) in self._seen.items()
            if now - since > self._timeout
        ]


class Heartbeat:
    """Two threads: one sends heartbeats, one looks at the peers after each.

    store: preferably one of its own, because a heartbeat must not wait for a connection. clock: monotonic
    seconds.
    interval: seconds between heartbeats; a failed one is repeated sooner. timeout: of the peers, in seconds.
    units: returns the running units, reported with every heartbeat. take_over: called with the names of lost
    workers, repeatedly while they are listed as lost. on_lost: called once, when the peers have marked this
    worker as lost and do its work.
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
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._worker = worker
        self._interval = interval
        self._timeout = timeout
        self._units = units
        self._take_over = take_over
        self._on_lost = on_lost
        self._clock = clock
        self._late = min(timeout / 2, 2 * interval)
        self._pause = max(timeout / 2, 2 * interval)
        self._peers = Peers(timeout, self._late)
        self._beat_at = float("inf")
        self._observing_since = float("inf")
        self._paused = False
        self._summary: PeerSummary | None = None
        self._heartbeat_stored = threading.Event()
        self._stopping = threading.Event()
        self._threads = [
            threading.Thread(target=self._send_heartbeats, name="heartbeat", daemon=True),
            threading.Thread(target=self._watch_peers, name="peers", daemon=True),
        ]

    @property
    def is_elected(self) -> bool:
        """Whether this worker does the work that only one worker needs to do.

        For seconds two may be elected, or none.
        """
        return self._summary is not None and self._summary.is_first

    def beat(self) -> None:
        """Store one heartbeat; the first one registers the worker. Raises Unavailable."""
        me = dataclasses.replace(self._worker, units=self._units())
        if self._summary is None:
            with self._store.begin() as uow:
                # A worker that ends before its first heartbeat must not count as silent for long.
                uow.workers.beat(dataclasses.replace(me, beat_at=uow.workers.clock()))
        with self._store.single() as uow:
            summary = uow.workers.renew(me, late=self._late, dead=self._timeout)
        now = self._clock()
        if now - self._beat_at > self._pause:
            # The database has not answered, so nothing is known about the peers since then.
            self._paused = True
        self._observing_since = min(self._observing_since, now)
        self._beat_at = now
        if summary is None:
            self._stopping.set()
            self._on_lost()
        self._summary = summary or self._summary
        self._heartbeat_stored.set()

    def check_peers(self) -> None:
        """Mark dead workers as lost, and take over the work of lost ones. Raises Unavailable.

        Call it after a heartbeat, because the database has then answered.
        """
        now = self._clock()
        if self._paused:
            logger.warning("paused; observing the other workers again")
            self._paused = False
            self._peers.resume(now)
            self._observing_since = now
        summary = self._summary
        if summary is None or not (summary.late or (summary.lost and summary.is_first)):
            # If no worker is late, every heartbeat has changed, and there is nothing to observe.
            self._peers.forget()
            return
        with self._store.read() as uow:
            others = [
                worker for worker in uow.workers.all() if worker.executor_id != self._worker.executor_id
            ]
            database_time = uow.workers.clock()
        lost = [worker.executor_id for worker in others if worker.lost_at is not None]
        listed = [worker for worker in others if worker.lost_at is None]
        dead = self._peers.dead(listed, now, self._credit(listed, now, database_time))
        if dead:
            logger.warning("marking as lost: %s", ", ".join(worker.executor_id for worker in dead))
            lost += self._mark_lost(dead)
        if lost:
            self._take_over(lost)

    def _credit(self, workers: Sequence[Worker], now: float, database_time: float) -> dict[str, float]:
        """How long each heartbeat was unchanged before the first observation, without time before a pause."""
        most = min(self._late, now - self._observing_since)
        return {worker.executor_id: max(0.0, min(most, database_time - worker.beat_at)) for worker in workers}

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End the threads. The worker's row is not changed."""
        self._stopping.set()
        self._heartbeat_stored.set()
        for thread in self._threads:
            if thread.is_alive() and thread is not threading.current_thread():
                # A thread that waits for a lost network must not keep the process alive.
                thread.join(_JOIN_SECONDS)

    def _mark_lost(self, dead: Sequence[Worker]) -> list[str]:
        """Names of the workers that this worker marked; only one of several peers succeeds for each."""
        with self._store.begin() as uow:
            return [
                worker.executor_id
                for worker in dead
                if uow.workers.mark_lost(worker.executor_id, worker.beat_at)
            ]

    def _send_heartbeats(self) -> None:
        seconds = self._interval
        while not self._stopping.wait(seconds):
            is_stored = self._attempt(self.beat)
            seconds = until_beat(self._interval) if is_stored else self._interval / RETRIES_PER_INTERVAL

    def _watch_peers(self) -> None:
        while self._heartbeat_stored.wait() and not self._stopping.is_set():
            self._heartbeat_stored.clear()
            self._attempt(self.check_peers)

    @staticmethod
    def _attempt(task: Callable[[], None]) -> bool:
        try:
            task()
        except ServiceError as error:
            logger.warning("heartbeat: %s", error)
        except Exception:
            logger.exception("heartbeat failed; it is tried again")
        else:
            return True
        return False
