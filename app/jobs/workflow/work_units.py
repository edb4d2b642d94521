"""Division of a job into work units, and their order in the queue."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Final

from app.domain.entities import Priority, Worker

PREPARE: Final = 0
"""Number of the preparation, the first unit; chunks of classes are numbered from 1."""

_LEVELS: Final = {Priority.HIGH: 0, Priority.NORMAL: 1, Priority.LOW: 2}
_POSITIONS_PER_LEVEL: Final = 2**29


@dataclass(frozen=True, slots=True)
class WorkUnit:
    """One item of the unit queue: the preparation of a job, or a chunk of its classes.

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
        """Units of one job in the queue: two a slot, so that each slot has its next unit waiting."""
        return 2 * self.slots


def is_one_chunk(targets: int, capacity: Capacity, max_classes: int) -> bool:
    """Whether splitting a job of so many classes would not finish it sooner."""
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


def priority_level(priority: Priority) -> int:
    """Level in the queue: units of a smaller level are always taken first."""
    return _LEVELS[priority]


def queue_priority(level: int, turn: int) -> int:
    """Priority for DBOS, from 1: smaller is sooner. turn: start tag of the tenant's fair queueing."""
    return level * _POSITIONS_PER_LEVEL + min(turn, _POSITIONS_PER_LEVEL - 1)
