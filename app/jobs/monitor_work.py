"""What the elected worker does for monitors and schedules: alarms, samples, retention, and training again."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Final

from app.domain.ports import JobQueue
from app.processes.periodic import PeriodicWork, until_beat
from app.services.monitors import adapt_slopes
from app.services.performance import forget_old_samples, judge_all
from app.services.schedules import run_schedules
from app.settings import Settings
from app.store.unit_of_work import Store

SECONDS: Final = 10.0
"""How soon after feedback an alarm is raised."""
_FORGET_SECONDS: Final = 3600.0
_SCHEDULE_SECONDS: Final = 60.0
_JOIN_SECONDS: Final = 5.0
_ALARMS, _SAMPLING, _SCHEDULES, _RETENTION = PARTS = (
    "promises",
    "sampling of answers",
    "schedules of training",
    "old samples",
)


class MonitorWork:
    """A thread that works while this worker is elected.

    It does no harm if two workers are elected for a moment: an alarm is raised in the transaction that finds
    that there is none yet.
    """

    def __init__(
        self,
        store: Store,
        settings: Settings,
        queue: JobQueue,
        is_elected: Callable[[], bool] = lambda: True,
    ) -> None:
        self._store, self._settings, self._is_elected = store, settings, is_elected
        self._queue = queue
        self.periodic = PeriodicWork(PARTS)
        self._forgot_at = self._scheduled_at = float("-inf")
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="monitors", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End the thread after its current work."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(_JOIN_SECONDS)

    def run_once(self) -> None:
        """Do all work that is due, if this worker is elected. Raises nothing."""
        if not self._is_elected():
            return
        self.periodic.run(_ALARMS, lambda: judge_all(self._store, time.time()))
        self.periodic.run(_SAMPLING, lambda: adapt_slopes(self._store, time.time()))
        if time.monotonic() - self._scheduled_at >= _SCHEDULE_SECONDS:
            self._scheduled_at = time.monotonic()
            run = partial(run_schedules, self._store, self._queue, self._settings, time.time())
            self.periodic.run(_SCHEDULES, run)
        if time.monotonic() - self._forgot_at >= _FORGET_SECONDS:
            self._forgot_at = time.monotonic()
            self.periodic.run(_RETENTION, lambda: forget_old_samples(self._store, self._settings))

    def _loop(self) -> None:
        while not self._stopping.wait(until_beat(SECONDS)):
            self.run_once()
