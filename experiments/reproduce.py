"""The whole run: every data set and split asked for, with progress and an estimated finish."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from experiments.data import load
from experiments.plans import GridName, plan_for
from experiments.protocol import Effort, Protocol
from experiments.results import ResultStore, Run


@dataclass(frozen=True, slots=True)
class Update:
    """How far the run is.

    run, name: the record that is there now. done, total: records. new: whether it was made now.
    seconds_left: estimated from the work done so far; None before any was done. note: what was found.
    """

    run: Run
    name: str
    done: int
    total: int
    new: bool
    seconds_left: float | None
    note: str = ""


Listener = Callable[[Update], None]


class _Clock:
    """Estimates what is left from the cost of the records made so far."""

    def __init__(self, total_cost: float) -> None:
        self._left, self._made, self._started = total_cost, 0.0, time.perf_counter()

    def count(self, cost: float, *, new: bool) -> None:
        self._left -= cost
        self._made += cost if new else 0.0

    @property
    def seconds_left(self) -> float | None:
        if self._made <= 0.0:
            return None
        return (time.perf_counter() - self._started) * max(self._left, 0.0) / self._made


def reproduce(
    data_sets: Sequence[str],
    grids: Sequence[GridName],
    folder: Path,
    store: ResultStore,
    effort: Effort,
    listen: Listener,
    max_splits: int | None = None,
) -> None:
    """Make every record that is missing in ``store``; one that is there is not made again.

    max_splits: at most so many splits a data set. Raises DataMissing, InvalidProblem.
    """
    runs = [
        Run(data_set, grid, split)
        for data_set in data_sets
        for grid in grids
        for split in range(min(plan_for(data_set, grid).splits, max_splits or 1_000))
    ]
    # The sizes of all data are needed for the estimate; the data themselves only one at a time.
    costs = [_protocol(run, folder, store, effort, _silent).costs() for run in runs]
    total, done = sum(len(each) for each in costs), 0
    clock = _Clock(sum(sum(each.values()) for each in costs))
    for run in runs:
        found = partial(_tell, listen, run, done, total)
        for step in _protocol(run, folder, store, effort, found).steps():
            done += 1
            clock.count(step.cost, new=step.new)
            listen(Update(run, step.name, done, total, step.new, clock.seconds_left))


def _protocol(
    run: Run, folder: Path, store: ResultStore, effort: Effort, tell: Callable[[str], None]
) -> Protocol:
    plan = plan_for(run.data_set, run.grid)  # type: ignore[arg-type]
    return Protocol(plan, run, load(run.data_set, folder, run.split), store, effort, tell)


def _tell(listen: Listener, run: Run, done: int, total: int, note: str) -> None:
    """Pass on what the search for a setting found; it is the first step of a run."""
    listen(Update(run, "setting", done, total, True, None, note))


def _silent(note: str) -> None:
    """Nobody listens while costs are counted."""
