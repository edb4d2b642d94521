"""Writes the answers that monitors have chosen in this process into the database, every second."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import partial
from typing import Final

from app.domain.errors import Unavailable
from app.domain.figures import HOUR
from app.processes.periodic import BackgroundTask, PeriodicWork, until_beat
from app.serving.watch import AnswerWatches, ForMonitor
from app.store.unit_of_work import Store

WRITE_SECONDS: Final = 1.0
_ROOM_SECONDS: Final = 60.0
"""How long a tenant's quota is not asked for again, unless rows are written meanwhile."""


class SampleWriter:
    """The background task of one process. periodic: runs the part "samples".

    has_room: whether the tenant of a monitor may store more bytes; it may raise Unavailable. Otherwise chosen
    answers are dropped and counted. seconds: between two writes. A process that dies loses what was chosen
    since the last write, with the count of the answers that it was chosen from.
    """

    def __init__(
        self,
        store: Store,
        watches: AnswerWatches,
        periodic: PeriodicWork | None = None,
        seconds: float = WRITE_SECONDS,
        has_room: Callable[[str], bool] = lambda _tenant: True,
    ) -> None:
        self._store, self._watches, self._seconds = store, watches, seconds
        self._periodic = periodic or PeriodicWork(["samples"])
        self._has_room = has_room
        self._rooms: dict[str, tuple[float, bool]] = {}
        self._background = BackgroundTask("stms-samples")

    def start(self) -> None:
        """Start the background task."""
        self._background.start(self._run())

    async def stop(self) -> None:
        """Stop the task, and write the last chosen answers."""
        await self._background.stop(self._write)

    def write(self) -> None:
        """Write what was noted since the last call. Blocks. Raises Unavailable; the next call tries again."""
        error: Unavailable | None = None
        for monitor_id, noted in self._watches.take_samples().items():
            try:
                self._write_one(monitor_id, noted)
            except Unavailable as failure:
                self._watches.put_back(monitor_id, noted)
                error = failure
        if error is not None:
            raise error

    def _write_one(self, monitor_id: str, noted: ForMonitor) -> None:
        samples, dropped = noted.samples, noted.dropped
        if samples and not self._may_store(samples[0].tenant):
            samples, dropped = [], dropped + len(samples)
            self._watches.dropped += len(noted.samples)
        hour = int(time.time() // HOUR)
        if any(sample.content is not None for sample in samples):
            # Rows may be large: the quota is asked for at each write.
            self._rooms.pop(samples[0].tenant, None)
        # In a transaction of their own, so that no two processes wait for each other's monitors.
        with self._store.begin() as uow:
            uow.monitors.add_samples(monitor_id, samples, noted.trials, hour, dropped)

    def _may_store(self, tenant: str) -> bool:
        known = self._rooms.get(tenant)
        if known is None or known[0] < time.monotonic():
            known = self._rooms[tenant] = (time.monotonic() + _ROOM_SECONDS, self._has_room(tenant))
        return known[1]

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(until_beat(self._seconds))
            if self._watches.has_samples:
                await self._write()

    async def _write(self) -> None:
        if self._watches.has_samples:
            await self._background.in_thread(partial(self._periodic.run, "samples", self.write))
