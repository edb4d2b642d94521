"""Work whose results are kept record by record, so that what is there is not made again."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass

from experiments.results import Record, ResultStore, Run


@dataclass(frozen=True, slots=True)
class Step:
    """One record is there. new: whether it was made now. cost: its share of the work, in no unit."""

    name: str
    new: bool
    cost: float


class Resumable(ABC):
    """The records of one run of one part. recipe: what they depend on."""

    def __init__(self, run: Run, store: ResultStore, recipe: str) -> None:
        self.run, self.recipe = run, recipe
        self._store = store

    def steps(self) -> Iterator[Step]:
        """Make what is missing, record by record, in the order of ``costs``."""
        for name, cost in self.costs().items():
            new = not self.has(name)
            if new:
                started = time.perf_counter()
                record = self._make(name)
                self._keep(name, record, time.perf_counter() - started)
            yield Step(name, new, cost)

    def has(self, name: str) -> bool:
        """Whether the record is there, made by this recipe."""
        return self._store.read(self.run, name, self.recipe) is not None

    @abstractmethod
    def costs(self) -> dict[str, float]:
        """Records of this run with their cost, in multiply-adds up to a factor."""

    @abstractmethod
    def _make(self, name: str) -> Record:
        """One record, JSON-ready."""

    def _keep(self, name: str, record: Record, seconds: float) -> None:
        self._store.write(self.run, name, self.recipe, {**record, "seconds": round(seconds, 3)})
