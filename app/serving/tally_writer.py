"""Writes this process's counts of queries, inputs and answers into the database once a minute."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final, TypeAlias

from app.domain.answer_counts import AnswerHour
from app.domain.entities import ModelVersion
from app.domain.errors import Unavailable
from app.domain.figures import HOUR, InputRow
from app.processes.metrics import Metrics
from app.processes.periodic import BackgroundTask, PeriodicWork
from app.serving.columns.tally import InputTallies
from app.serving.servable import metric_label
from app.serving.watch import AnswerWatches
from app.store.unit_of_work import Store

logger = logging.getLogger(__name__)

WRITE_SECONDS: Final = 60.0
_MOST_WAITING: Final = 1000
"""Rows that wait for a database that cannot be written."""

_Row: TypeAlias = InputRow | AnswerHour


class _Waiting:
    """Rows that are not written yet, by tenant. given_up: number of dropped rows beyond `_MOST_WAITING`.

    For a new row, the oldest row of the tenant with the most rows is dropped.
    """

    def __init__(self) -> None:
        self._rows: dict[str, deque[tuple[ModelVersion, _Row]]] = {}
        self._count = 0
        self.given_up = 0

    def __len__(self) -> int:
        return self._count

    def add(self, version: ModelVersion, row: _Row) -> None:
        self._rows.setdefault(version.tenant, deque()).append((version, row))
        self._count += 1
        if self._count > _MOST_WAITING:
            self._pop(max(self._rows, key=lambda tenant: len(self._rows[tenant])))
            self.given_up += 1

    def take(self) -> tuple[ModelVersion, _Row]:
        """Remove and return the oldest row of the tenant whose turn it is."""
        return self._pop(next(iter(self._rows)))

    def put_back(self, version: ModelVersion, row: _Row) -> None:
        """Put a row back that could not be written; its tenant has the last turn."""
        rows = self._rows.pop(version.tenant, deque())
        rows.appendleft((version, row))
        self._rows[version.tenant] = rows
        self._count += 1

    def _pop(self, tenant: str) -> tuple[ModelVersion, _Row]:
        row = self._rows[tenant].popleft()
        self._count -= 1
        if not self._rows[tenant]:
            del self._rows[tenant]
        return row


class InputWriter:
    """The background task of one process. periodic: runs the part "inputs".

    has_room: whether a tenant may store more bytes; it is asked once a minute, and may raise Unavailable.
    Queries of a tenant that may not are not counted until it may again. watches: count the answers.
    """

    def __init__(
        self,
        store: Store,
        tallies: InputTallies,
        metrics: Metrics,
        periodic: PeriodicWork | None = None,
        seconds: float = WRITE_SECONDS,
        has_room: Callable[[str], bool] = lambda _tenant: True,
        watches: AnswerWatches | None = None,
    ) -> None:
        self._store, self._tallies, self._metrics, self._seconds = store, tallies, metrics, seconds
        self._periodic = periodic or PeriodicWork(["inputs"])
        self._has_room = has_room
        self._watches = watches
        self._waiting = _Waiting()
        self._background = BackgroundTask("stms-inputs")

    def start(self) -> None:
        """Start the background task."""
        self._background.start(self._run())

    async def stop(self) -> None:
        """Stop the task, and write the last counts."""
        await self._background.stop(self._write)

    def write(self) -> None:
        """Write the counts since the last call. Blocks. Raises Unavailable; the next call tries again."""
        hour = int(time.time() // HOUR)
        rooms: dict[str, bool] = {}
        given_up = self._waiting.given_up
        error = self._write_waiting(rooms)
        for version, taken in self._tallies.take():
            self._metrics.unusual(metric_label(version), taken.unusual)
            self._waiting.add(version, InputRow(hour, taken.records, taken.sampled, taken.counts))
            error = error or self._write_waiting(rooms)
        for version, classes in [] if self._watches is None else self._watches.take_counts():
            self._waiting.add(version, AnswerHour(hour, classes))
            error = error or self._write_waiting(rooms)
        if self._waiting.given_up > given_up:
            logger.warning("counts of queries given up: %d rows", self._waiting.given_up - given_up)
        if error is not None:
            raise error

    def _write_waiting(self, rooms: dict[str, bool]) -> Unavailable | None:
        """Write the waiting rows, and return the error if that fails. rooms: room of the checked tenants."""
        while self._waiting:
            version, row = self._waiting.take()
            try:
                if version.tenant not in rooms:
                    rooms[version.tenant] = self._has_room(version.tenant)
                if rooms[version.tenant]:
                    # In transactions of their own, so that no two processes wait for each other's rows.
                    with self._store.begin() as uow:
                        name = version.tenant, version.model, version.version
                        if isinstance(row, AnswerHour):
                            uow.answers.add(*name, row)
                        else:
                            uow.inputs.add(*name, row)
            except Unavailable as error:
                self._waiting.put_back(version, row)
                return error
        return None

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._seconds)
            await self._write()

    async def _write(self) -> None:
        await self._background.in_thread(partial(self._periodic.run, "inputs", self.write))
