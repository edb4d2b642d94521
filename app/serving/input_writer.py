"""Writes what this process has counted of the inputs of queries into the database, once a minute."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from functools import partial
from typing import Final

from app.domain.entities import ModelVersion
from app.domain.errors import Unavailable
from app.domain.figures import HOUR, InputRow
from app.processes.metrics import Metrics
from app.processes.periodic import BackgroundTask, PeriodicWork
from app.serving.input_tally import InputTallies
from app.serving.servable import metric_label
from app.store.unit_of_work import Store

WRITE_SECONDS: Final = 60.0
_STOP_SECONDS: Final = 2.0
_MOST_WAITING: Final = 1000
"""Rows that wait for a database that cannot be written; the oldest ones are given up."""


class InputWriter:
    """The background task of one process. periodic: runs the part "inputs"."""

    def __init__(
        self,
        store: Store,
        tallies: InputTallies,
        metrics: Metrics,
        periodic: PeriodicWork | None = None,
        seconds: float = WRITE_SECONDS,
    ) -> None:
        self._store, self._tallies, self._metrics, self._seconds = store, tallies, metrics, seconds
        self._periodic = periodic or PeriodicWork(["inputs"])
        self._waiting: deque[tuple[ModelVersion, InputRow]] = deque(maxlen=_MOST_WAITING)
        self._background = BackgroundTask("stms-inputs")

    def start(self) -> None:
        """Start the background task."""
        self._background.start(self._run())

    async def stop(self) -> None:
        """Stop the task, and write what was counted last."""
        await self._background.cancel()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_STOP_SECONDS):
                await self._write()
        self._background.close()

    def write(self) -> None:
        """Write what was counted since the last call. Blocks. Raises Unavailable; then it is tried again."""
        hour = int(time.time() // HOUR)
        for version, taken in self._tallies.take():
            self._metrics.unusual(metric_label(version), taken.unusual)
            self._waiting.append((version, InputRow(hour, taken.records, taken.sampled, taken.counts)))
        while self._waiting:
            version, row = self._waiting.popleft()
            try:
                # In transactions of their own, so that no two processes wait for each other's rows.
                with self._store.begin() as uow:
                    uow.inputs.add(version.tenant, version.model, version.version, row)
            except Unavailable:
                self._waiting.appendleft((version, row))
                raise

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._seconds)
            await self._write()

    async def _write(self) -> None:
        await self._background.in_thread(partial(self._periodic.run, "inputs", self.write))
