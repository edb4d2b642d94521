"""When a run will be done: from what records of the same kind have taken, now and in earlier runs."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

from experiments.results import Run

Key: TypeAlias = tuple[str, ...]

_NUMBER = re.compile(r"(?<=-)\d+")


@dataclass(slots=True)
class _Seen:
    seconds: float = 0.0
    cost: float = 0.0


@dataclass(slots=True)
class Forecast:
    """Seconds per unit of cost, as measured for each kind of record on each data set and grid.

    A kind that has not been measured there is estimated by the same kind on the other grid, then on other
    data sets, then by everything that has been measured.
    """

    _seen: dict[Key, _Seen] = field(default_factory=lambda: defaultdict(_Seen))
    _pending: dict[tuple[Run, str], float] = field(default_factory=dict)

    def expect(self, run: Run, name: str, cost: float) -> None:
        """A record that is still to be made."""
        self._pending[run, name] = cost

    def observe(self, run: Run, name: str, cost: float, seconds: float) -> None:
        """A record that is there, and what it has taken. It is expected no longer."""
        self._pending.pop((run, name), None)
        for key in _levels(run, name):
            seen = self._seen[key]
            seen.seconds += seconds
            seen.cost += cost

    def give_up(self, run: Run, names: Iterable[str]) -> None:
        """These records will not be made, or are there."""
        for name in names:
            self._pending.pop((run, name), None)

    @property
    def seconds_left(self) -> float | None:
        """Of all that is expected; None when there is something to do and nothing has been measured yet."""
        if not self._pending:
            return 0.0
        by_levels: dict[tuple[Key, ...], float] = defaultdict(float)
        for (run, name), cost in self._pending.items():
            by_levels[tuple(_levels(run, name))] += cost
        total = 0.0
        for levels, cost in by_levels.items():
            rate = self._rate(levels)
            if rate is None:
                return None
            total += rate * cost
        return total

    def _rate(self, levels: tuple[Key, ...]) -> float | None:
        for key in levels:
            seen = self._seen.get(key)
            if seen is not None and seen.cost > 0.0:
                return seen.seconds / seen.cost
        return None


def kind_of(name: str) -> str:
    """Records of one kind cost alike. Class 0 is a kind of its own: it makes what all classes share."""
    return _NUMBER.sub(lambda found: "n" if int(found[0]) else "first", name)


def _levels(run: Run, name: str) -> Iterator[Key]:
    """What a record is an example of, the most particular first."""
    kind = kind_of(name)
    yield (kind, run.data_set, run.grid)
    yield (kind, run.data_set)
    yield (kind, "*", run.grid)
    yield (kind,)
    yield ()
