"""The work of every server process twice a second: it publishes its metrics and trims its heap."""

from __future__ import annotations

import time
from typing import Final

from app.processes.metrics import Metrics
from app.processes.periodic import PeriodicWork
from app.processes.tuning import MallocTrimmer

_SECONDS: Final = 0.5


class Tick:
    """To be called often; works twice a second. periodic: runs the parts "metrics" and "heap"."""

    def __init__(self, metrics: Metrics, periodic: PeriodicWork) -> None:
        self._metrics, self._periodic = metrics, periodic
        self._next = 0.0
        self._malloc_trimmer = MallocTrimmer()

    def __call__(self) -> None:
        now = time.monotonic()
        if now >= self._next:
            self._next = now + _SECONDS
            self._periodic.run("metrics", self._metrics.publish)
            self._periodic.run("heap", self._malloc_trimmer.poll)
