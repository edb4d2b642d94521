"""The whole run: every part, data set and split that was asked for, record by record."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias, get_args

from core.model_selection.setting import Report
from experiments.compact import GRID as COMPACT_GRID
from experiments.compact import CompactCurve, run_of
from experiments.data import TEXT_SETS, DataMissing, load
from experiments.plans import CURVES, Effort, GridName, plan_for
from experiments.probabilities import GRID, Probabilities
from experiments.protocol import Protocol
from experiments.sparse import SparseQuery
from experiments.store import NeedsProtocol, Run, Store, Work

Part: TypeAlias = Literal["protocol", "probabilities", "sparse", "compact"]
PARTS: tuple[Part, ...] = get_args(Part)
"""In the order in which they are run: probabilities and sparse queries start from the protocol's records."""


@dataclass(frozen=True, slots=True)
class Request:
    """What is to be run. max_splits: of each data set. skip_missing: continue without data sets that are
    not in the folder.
    """

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
    total, planned, missing = 0, list[tuple[Part, Run]](), set[str]()
    for part, run in _runs(request):
        if run.data_set in missing:
            continue
        # Counts the records; the data of all runs would not fit into memory together.
        try:
            total += len(_work(part, run, folder, store, effort).names())
        except DataMissing as error:
            if not request.skip_missing:
                raise
            missing.add(run.data_set)
            listen(Update(run, "data", 0, 0, True, f"not run: {error}"))
            continue
        planned.append((part, run))
    if not planned:
        raise DataMissing("There is nothing to do: none of the data sets has the requested parts and grids.")
    done = 0
    for part, run in planned:

        def report(note: str, run: Run = run, done: int = done) -> None:
            listen(Update(run, "setting", done, total, True, note))

        work = _work(part, run, folder, store, effort, report)
        end = done + len(work.names())
        try:
            for name, new in work.steps():
                done += 1
                listen(Update(run, name, done, total, new))
        except NeedsProtocol as error:
            report(f"not run: {error}")
        done = end


def _runs(request: Request) -> Iterator[tuple[Part, Run]]:
    """All runs of the requested parts; a part without a plan for a data set has none."""
    for part in PARTS:
        for data_set in request.data_sets if part in request.parts else ():
            if part == "protocol":
                for grid in request.grids:
                    splits = plan_for(data_set, grid).splits
                    for split in range(min(splits, request.max_splits or splits)):
                        yield part, Run(data_set, grid, split)
            elif part == "compact":
                if data_set in CURVES:
                    yield part, run_of(data_set)
            elif GRID in request.grids and (part == "probabilities" or data_set in TEXT_SETS):
                yield part, Run(data_set, GRID, 0)


def _work(
    part: Part, run: Run, folder: Path, store: Store, effort: Effort, report: Report = lambda _: None
) -> Work:
    data = load(run.data_set, folder, run.split)
    if run.grid == COMPACT_GRID:
        return CompactCurve(CURVES[run.data_set], run, data, store, effort)
    plan = plan_for(run.data_set, run.grid)  # type: ignore[arg-type]
    protocol = Protocol(plan, run, data, store, effort, report)
    if part == "protocol":
        return protocol
    return Probabilities(protocol) if part == "probabilities" else SparseQuery(protocol)
