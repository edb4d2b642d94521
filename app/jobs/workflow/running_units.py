"""What this worker is doing just now, for its heartbeat to tell."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from app.domain.entities import Json
from app.jobs.solver.process import Solver
from app.jobs.workflow.work_units import Unit


class UnderWay:
    """Units that run here, and waiting for them."""

    def __init__(self) -> None:
        self._units: dict[object, tuple[Unit, float, list[Solver]]] = {}
        self._running = 0
        self._ended = 0
        self._changed = threading.Condition()

    @contextmanager
    def workflow(self) -> Iterator[None]:
        """Around everything that has to end before the worker can."""
        with self._changed:
            self._running += 1
        try:
            yield
        finally:
            with self._changed:
                self._running -= 1
                self._changed.notify_all()

    @contextmanager
    def unit(self, unit: Unit) -> Iterator[list[Solver]]:
        """Around a unit; the list is for the solver that works on it."""
        token, solvers = object(), list[Solver]()
        with self._changed:
            self._units[token] = (unit, time.time(), solvers)
        try:
            yield solvers
        finally:
            with self._changed:
                del self._units[token]
                self._ended += 1
                self._changed.notify_all()

    def is_busy(self) -> bool:
        """Whether a unit runs here."""
        return bool(self._units)

    def snapshot(self) -> tuple[Json, ...]:
        """JSON-ready: which units run, since when, and in which process their solver."""
        with self._changed:
            return tuple(
                {
                    "job_id": unit.job_id,
                    "unit": unit.number,
                    "kind": unit.kind,
                    "classes": unit.stop - unit.first,
                    "since": since,
                    "solver_pid": next((solver.pid for solver in solvers), None),
                }
                for unit, since, solvers in self._units.values()
            )

    def wait_for_an_end(self, seen: int, seconds: float) -> int:
        """Until more than ``seen`` units have ended here, or for ``seconds``; returns how many have."""
        with self._changed:
            self._changed.wait_for(lambda: self._ended > seen, seconds)
            return self._ended

    def wake(self) -> None:
        """Let everybody who waits for an end look around."""
        with self._changed:
            self._ended += 1
            self._changed.notify_all()

    def wait_until_idle(self, seconds: float) -> bool:
        """Whether within ``seconds`` nothing runs here any more."""
        with self._changed:
            return self._changed.wait_for(lambda: self._running == 0, seconds)
