"""Work units: the division of a job, their order in the queue, and the registry of units that run here."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import ceil
from typing import Final

from app.domain.entities import Json, Worker

PREPARE: Final = 0
"""Number of the preparation, the first unit; chunks of classes are numbered from 1."""
EVALUATION: Final = -1
"""Number of the only unit of an evaluation."""


@dataclass(frozen=True, slots=True)
class WorkUnit:
    """One item of the unit queue: the preparation of a job, a chunk of its classes, or an evaluation.

    job_id: of an evaluation its own id.

    first, stop: positions in the job's targets of the classes to train. A preparation has classes only if the
    whole job is one chunk, which is then trained where the preparation is in memory already.
    """

    job_id: str
    attempt: int
    number: int
    first: int
    stop: int

    @property
    def id(self) -> str:
        """Id of its workflow."""
        return f"{self.job_id}.{self.attempt}.{self.number}"

    @property
    def kind(self) -> str:
        if self.number == EVALUATION:
            return "evaluation"
        return "prepare" if self.number == PREPARE else "chunk"


@dataclass(frozen=True, slots=True)
class Capacity:
    """Capacity of all workers. slots: units that run at the same time. threads: of the smallest solver."""

    slots: int = 1
    threads: int = 1

    @classmethod
    def of(cls, workers: Sequence[Worker]) -> Capacity:
        """Total of live workers; without any, the capacity of one slot."""
        if not workers:
            return cls()
        return cls(sum(worker.slots for worker in workers), min(worker.threads for worker in workers))

    @property
    def window(self) -> int:
        """Number of units of one job in the queue: two per slot, so that each slot has its next unit."""
        return 2 * self.slots


def is_one_chunk(targets: int, capacity: Capacity, max_classes: int) -> bool:
    """Whether splitting a job with this many classes would not finish it sooner."""
    return targets <= max_classes and (capacity.slots == 1 or targets <= capacity.threads)


def chunk_ranges(targets: int, capacity: Capacity, max_classes: int) -> Iterator[tuple[int, int]]:
    """(first, stop) of each chunk of ``targets`` classes, at most ``max_classes`` each.

    Factoring (Hummel, Schonberg and Flynn, CACM 35, 1992): each round gives every slot an equal share of half
    of the remaining classes, so there are few chunks and the last ones are small enough to end together. No
    chunk has fewer classes than a solver has threads. A single slot takes the largest chunks.
    """
    first = 0
    while first < targets:
        share = max_classes if capacity.slots == 1 else ceil((targets - first) / (2 * capacity.slots))
        size = min(max_classes, max(share, capacity.threads))
        for _ in range(capacity.slots):
            if first < targets:
                yield first, min(first + size, targets)
                first += size


@dataclass(eq=False, slots=True)
class RunningUnit:
    """A unit in progress. since: epoch seconds. solver_pid: set by the unit once it has a solver."""

    unit: WorkUnit
    since: float = field(default_factory=time.time)
    solver_pid: Callable[[], int | None] = lambda: None


class RunningUnits:
    """Registry of running units and workflows; other threads can wait for their ends."""

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
