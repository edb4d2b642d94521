"""Measures the wall time of each stage of a computation."""

from __future__ import annotations

import time

from core.run import Run


class Stages:
    """Reports the start of each stage, checks for a cancel there, and measures the time of each stage."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self._seconds: dict[str, float] = {}
        self._stage: str | None = None
        self._started = 0.0

    def begin(self, stage: str, total: int, expected_seconds: float | None = None) -> None:
        """End the previous stage and start ``stage``. If ``stage`` is already running, it continues.

        expected_seconds: an estimate of its wall time, which is reported with its start.
        """
        self.run.check_cancel()
        if stage != self._stage:
            self.end()
            self._stage = stage
            self._started = time.perf_counter()
            self.run.report(stage, 0, total, expected_seconds=expected_seconds)

    def end(self) -> dict[str, float]:
        """Stop the clock; returns the seconds of each stage so far."""
        if self._stage is not None:
            self._seconds[self._stage] = time.perf_counter() - self._started
            self._stage = None
        return self._seconds
