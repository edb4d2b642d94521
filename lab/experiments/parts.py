"""The whole run: every part, data set and split that was asked for, record by record."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Literal, TypeAlias, get_args

from lab.experiments.compact import CompactCurve, run_of
from lab.experiments.data import DataMissing, load
from lab.experiments.plans import CURVES, Effort, GridName, plan_for
from lab.experiments.probabilities import GRID, Probabilities
from lab.experiments.protocol import Protocol
from lab.experiments.setting import Report
from lab.experiments.store import NeedsProtocol, Run, Store, Work

Part: TypeAlias = Literal["protocol", "probabilities", "compact"]
PARTS: tuple[Part, ...] = get_args(Part)
"""In the order in which they are run: probabilities start from the protocol's records."""


@dataclass(frozen=True, slots=True)
class Request:
    """What is to be run. max_splits: of each set. skip_missing: pass over sets that are not in the folder."""

    data_sets: Sequence[str]
    grids: Sequence[GridName]
    parts: Sequence[Part] = PARTS
    max_splits: int | None = None
    skip_missing: bool = False


@dataclass(frozen=True, slots=True)
class Update:
    """Progress: record ``name`` of ``run`` is stored. done, total: records. new: whether it was made now.

    note: a message on the way, with the number of records before it.
    """

    run: Run
    name: str
    done: int
    total: int
    new: bool
    note: str = ""


Listener = Callable[[Update], None]


def reproduce(request: Request, folder: Path, store: Store, effort: Effort, listen: Listener) -> None:
    """Make every record that is missing in ``store``. Raises DataMissing, InvalidProblem."""
    # Counts the records first; the data of all runs would not fit into memory together.
    sizes, missing = dict[tuple[Part, Run], int](), set[str]()
    for part, run in _runs(request):
        try:
            if run.data_set not in missing:
                sizes[part, run] = len(_work(part, run, folder, store, effort).names())
        except DataMissing as error:
            if not request.skip_missing:
                raise
            missing.add(run.data_set)
            listen(Update(run, "data", 0, 0, True, f"not run: {error}"))
    if not sizes:
        raise DataMissing("There is nothing to do: none of the data sets has the requested parts and grids.")
    begun, total = 0, sum(sizes.values())
    for (part, run), size in sizes.items():

        def report(note: str, run: Run = run, done: int = begun) -> None:
            listen(Update(run, "setting", done, total, True, note))

        work = _work(part, run, folder, store, effort, report)
        try:
            for done, (name, new) in enumerate(work.steps(), start=begun + 1):
                listen(Update(run, name, done, total, new))
        except NeedsProtocol as error:
            report(f"not run: {error}")
        begun += size


def _runs(request: Request) -> Iterator[tuple[Part, Run]]:
    """All runs of the requested parts; a part without a plan for a data set has none."""
    for part, data_set in product([part for part in PARTS if part in request.parts], request.data_sets):
        if part == "protocol":
            for grid in request.grids:
                splits = min(plan_for(data_set, grid).splits, request.max_splits or sys.maxsize)
                yield from ((part, Run(data_set, grid, split)) for split in range(splits))
        elif part == "probabilities" and GRID in request.grids:
            yield part, Run(data_set, GRID, 0)
        elif part == "compact" and data_set in CURVES:
            yield part, run_of(data_set)


def _work(
    part: Part, run: Run, folder: Path, store: Store, effort: Effort, report: Report = lambda _: None
) -> Work:
    data = load(run.data_set, folder, run.split)
    if part == "compact":
        return CompactCurve(CURVES[run.data_set], run, data, store, effort)
    protocol = Protocol(plan_for(run.data_set, run.grid), run, data, store, effort, report)  # type: ignore[arg-type]
    return protocol if part == "protocol" else Probabilities(protocol)
