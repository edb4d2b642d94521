"""The work units that run in this worker, which its heartbeat reports."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from app.domain.entities import Json
from app.jobs.workflow.work_units import WorkUnit


@dataclass(eq=False, slots=True)
class RunningUnit:
    """A unit in progress. since: epoch seconds. solver_pid: set by the unit once it has a solver."""

    unit: WorkUnit
    since: float = field(default_factory=time.time)
    solver_pid: Callable[[], int | None] = lambda: None


class RunningUnits:
    """Registry of running units and workflows, on whose ends other threads can wait."""

    def __init__(self) -> None:
        self._units: list[RunningUnit] = []
        self._workflows = 0
        self._finished = 0
        self._changed = threading.Condition()

    @contextmanager
    def workflow(self) -> Iterator[None]:
        """Register work that must end before the worker can."""
        with self._changed:
            self._workflows += 1
        try:
            yield
        finally:
            with self._changed:
                self._workflows -= 1
                self._changed.notify_all()

    @contextmanager
    def unit(self, unit: WorkUnit) -> Iterator[RunningUnit]:
        """Register a unit while it runs."""
        running = RunningUnit(unit)
        with self._changed:
            self._units.append(running)
        try:
            yield running
        finally:
            with self._changed:
                self._units.remove(running)
                self._finished += 1
                self._changed.notify_all()

    def is_busy(self) -> bool:
        """Whether a unit runs in this worker."""
        return bool(self._units)

    def snapshot(self) -> tuple[Json, ...]:
        """The running units, their start times and the process ids of their solvers; JSON-ready."""
        with self._changed:
            return tuple(
                {
                    "job_id": running.unit.job_id,
                    "unit": running.unit.number,
                    "kind": running.unit.kind,
                    "classes": running.unit.stop - running.unit.first,
                    "since": running.since,
                    "solver_pid": running.solver_pid(),
                }
                for running in self._units
            )

    def wait_until_finished(self, seen: int, seconds: float) -> int:
        """Wait until more than ``seen`` units have finished, at most ``seconds``; returns their number."""
        with self._changed:
            self._changed.wait_for(lambda: self._finished > seen, seconds)
            return self._finished

    def wake(self) -> None:
        """End every wait for a finished unit."""
        with self._changed:
            self._finished += 1
            self._changed.notify_all()

    def wait_until_idle(self, seconds: float) -> bool:
        """Whether all registered workflows end within ``seconds``."""
        with self._changed:
            return self._changed.wait_for(lambda: self._workflows == 0, seconds)
