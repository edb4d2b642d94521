"""Progress, cancel and clock of a piece of work done in stages."""

from __future__ import annotations

import time
from dataclasses import replace

from core.errors import Cancelled
from core.types import CancelCheck, Progress, ProgressCallback


class Stages:
    """Tells how far the work is, looks for a cancel, and takes the time of each stage."""

    def __init__(self, progress: ProgressCallback | None, should_cancel: CancelCheck | None) -> None:
        self._progress = progress
        self._should_cancel = should_cancel
        self._seconds: dict[str, float] = {}
        self._stage: str | None = None
        self._started = 0.0

    def begin(self, stage: str, total: int) -> None:
        """End the stage before and start ``stage``; starting the same stage twice only goes on with it."""
        self.poll()
        if stage != self._stage:
            self.end()
            self._stage = stage
            self._started = time.perf_counter()
            self.tell(stage, 0, total)

    def end(self) -> dict[str, float]:
        """Stop the clock; the seconds of each stage so far."""
        if self._stage is not None:
            self._seconds[self._stage] = time.perf_counter() - self._started
            self._stage = None
        return self._seconds

    def tell(self, stage: str, done: int, total: int) -> None:
        """Report progress, if anybody listens."""
        if self._progress is not None:
            self._progress(Progress(stage, done, total))

    def poll(self) -> None:
        """Raise Cancelled when the caller asked to stop."""
        if self._should_cancel is not None and self._should_cancel():
            raise Cancelled(f"{self._stage or 'start'}: cancelled")

    def of_solver(self, stage: str) -> ProgressCallback | None:
        """The callback for a solver that works for ``stage``."""
        return renamed(self._progress, stage)


def renamed(progress: ProgressCallback | None, stage: str) -> ProgressCallback | None:
    """A callback for a solver, whose reports go to ``progress`` under the name of the stage it works for."""
    if progress is None:
        return None
    return lambda step: progress(replace(step, stage=stage))
