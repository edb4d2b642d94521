"""Comparison of several servers in short alternating rounds: noise of the machine affects all of them."""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from lab.benchmarks.load import Load
from tests.system.processes import core_seconds, core_seconds_since, family

Figures = dict[str, list[float]]


@dataclass(frozen=True, slots=True)
class Pace:
    """Length of the measurements.

    rounds: number of rounds of each comparison. seconds: length of one measurement in one round (an integer).
    swap_requests: number of requests sent while aliases move and processes are replaced.
    """

    rounds: int
    seconds: int
    swap_requests: int

    @property
    def few(self) -> Pace:
        """Half as many rounds, for comparisons with little noise."""
        return Pace(max(1, self.rounds // 2), self.seconds, self.swap_requests)


NORMAL = Pace(rounds=8, seconds=2, swap_requests=100_000)
QUICK = Pace(rounds=1, seconds=1, swap_requests=10_000)


def interleaved(contestants: Mapping[str, Callable[[], float]], rounds: int) -> Figures:
    """Measure each contestant once a round; a different one goes first in each round."""
    names = list(contestants)
    found: Figures = {name: [] for name in names}
    for number in range(rounds):
        start = number % len(names)
        for name in names[start:] + names[:start]:
            found[name].append(contestants[name]())
    return found


def rates(loads: Mapping[str, Callable[[], Load]], rounds: int) -> tuple[Figures, Figures]:
    """Requests a second of each contestant, and the processor time of the servers for one of them, in µs.

    The servers are the child processes of this one; those that are not loaded spend next to nothing.
    """
    spent: Figures = {name: [] for name in loads}

    def measured(name: str) -> Callable[[], float]:
        def once() -> float:
            servers = family(os.getpid())[1:]
            before = core_seconds(servers)
            found = require_success(loads[name]())
            spent[name].append(1e6 * core_seconds_since(before, servers) / found.requests)
            return found.rate

        return once

    return interleaved({name: measured(name) for name in loads}, rounds), spent


def ratio(found: Figures, name: str, base: str) -> float:
    """Median over the rounds of the figure of ``name`` divided by that of ``base`` in the same round."""
    return round(statistics.median(a / b for a, b in zip(found[name], found[base], strict=True)), 3)


def print_figures(title: str, unit: str, found: Figures) -> None:
    """Print the median, minimum and maximum of each contestant."""
    print(title, flush=True)
    for name, values in found.items():
        low, middle, high = min(values), statistics.median(values), max(values)
        print(f"  {name:18} {middle:12,.1f} {unit:4}   ({low:,.1f} to {high:,.1f})", flush=True)


def require_success(load: Load) -> Load:
    """Return ``load`` if all requests succeeded. Raises RuntimeError otherwise."""
    if load.failed or not load.requests:
        raise RuntimeError(f"{load.failed} of {load.requests} requests failed.")
    return load
