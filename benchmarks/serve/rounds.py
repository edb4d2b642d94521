"""Several contestants in short rounds: whatever else the machine does meets all of them alike."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from benchmarks.load import Load

Figures = dict[str, list[float]]


@dataclass(frozen=True, slots=True)
class Pace:
    """How long is measured. rounds: of each comparison. seconds: of one contestant in one round, whole ones.

    swap_requests: sent while aliases move and processes are replaced.
    """

    rounds: int
    seconds: int
    swap_requests: int

    @property
    def few(self) -> Pace:
        """Half the rounds, for what does not need more to be clear."""
        return Pace(max(1, self.rounds // 2), self.seconds, self.swap_requests)


NORMAL = Pace(rounds=8, seconds=2, swap_requests=100_000)
QUICK = Pace(rounds=1, seconds=1, swap_requests=10_000)


def in_turns(contestants: Mapping[str, Callable[[], float]], rounds: int) -> Figures:
    """What each contestant gave in each round; another one begins each time."""
    names = list(contestants)
    found: Figures = {name: [] for name in names}
    for number in range(rounds):
        start = number % len(names)
        for name in names[start:] + names[:start]:
            found[name].append(contestants[name]())
    return found


def ratio(found: Figures, name: str, base: str) -> float:
    """Median over the rounds of one contestant's figure : that of another in the same round."""
    return round(statistics.median(a / b for a, b in zip(found[name], found[base], strict=True)), 3)


def tell(title: str, unit: str, found: Figures) -> None:
    """Medians, and between what they lie."""
    print(title, flush=True)
    for name, values in found.items():
        low, middle, high = min(values), statistics.median(values), max(values)
        print(f"  {name:18} {middle:12,.1f} {unit:4}   ({low:,.1f} to {high:,.1f})", flush=True)


def sound(load: Load) -> Load:
    """``load`` if nothing failed. Raises RuntimeError: figures of failures are none."""
    if load.failed or not load.requests:
        raise RuntimeError(f"{load.failed} of {load.requests} requests failed.")
    return load
