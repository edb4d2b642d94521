"""How a job is cut into units of work."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Final

from app.domain.entities import Priority, Worker

PREPARE: Final = 0
"""Number of the unit that comes first; the chunks of classes are counted from 1."""

_LEVELS: Final = {Priority.HIGH: 0, Priority.NORMAL: 1, Priority.LOW: 2}
_TURNS_A_LEVEL: Final = 2**29


@dataclass(frozen=True, slots=True)
class Unit:
    """One item of the queue: the preparation of a job, or a chunk of its classes.

    first, stop: positions in the job's targets of the classes to train. A preparation has some only where the
    whole job is one chunk, which is then trained where the preparation is in memory already.
    """

    job_id: str
    attempt: int
    number: int
    first: int
    stop: int

    @property
    def id(self) -> str:
        """Name of its workflow."""
        return f"{self.job_id}.{self.attempt}.{self.number}"

    @property
    def kind(self) -> str:
        return "prepare" if self.number == PREPARE else "chunk"


@dataclass(frozen=True, slots=True)
class Crew:
    """Who there is to work. slots: units at once, of all workers. threads: of the narrowest solver."""

    slots: int = 1
    threads: int = 1

    @classmethod
    def of(cls, workers: Sequence[Worker]) -> Crew:
        """Of living workers; of none, the one who asks."""
        if not workers:
            return cls()
        return cls(sum(worker.slots for worker in workers), min(worker.threads for worker in workers))

    @property
    def window(self) -> int:
        """Units of one job in the queue: each slot has its next one waiting."""
        return 2 * self.slots


def is_one_chunk(targets: int, crew: Crew, most: int) -> bool:
    """Whether nobody would be quicker for cutting a job of so many classes."""
    return targets <= most and (crew.slots == 1 or targets <= crew.threads)


def cuts(targets: int, crew: Crew, most: int) -> Iterator[tuple[int, int]]:
    """(first, stop) of each chunk of ``targets`` classes, at most ``most`` each.

    Every slot gets an equal share of half of what is left, again and again (factoring: Hummel, Schonberg,
    Flynn, CACM 35, 1992), so there are few chunks and the last ones are small enough to end together. No
    chunk has fewer classes than a solver has threads; one slot alone has nobody to wait for.
    """
    first = 0
    while first < targets:
        share = most if crew.slots == 1 else ceil((targets - first) / (2 * crew.slots))
        size = min(most, max(share, crew.threads))
        for _ in range(crew.slots):
            if first < targets:
                yield first, min(first + size, targets)
                first += size


def level_of(priority: Priority) -> int:
    """The class of the queue: a smaller one is served first, as long as there is anything in it."""
    return _LEVELS[priority]


def queue_priority(level: int, turn: int) -> int:
    """A unit's place in the engine's queue, from 1 on: the smaller, the sooner."""
    return level * _TURNS_A_LEVEL + min(turn, _TURNS_A_LEVEL - 1)
