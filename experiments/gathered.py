"""Everything that the report shows, read from a work folder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from experiments.coverage import Covered, coverage
from experiments.curves import Curve, read_curves
from experiments.plans import DATA_SETS, GRIDS
from experiments.probabilities import GRID
from experiments.reliabilities import DataSetProbabilities, read_probabilities
from experiments.results import Record, ResultStore, Run
from experiments.shelf import Shelf, recipes_of
from experiments.sparse_query import DATA_SETS as SPARSE_SETS
from experiments.sparse_query import NAME as SPARSE_QUERY
from experiments.summary import Summary, summarise

T = TypeVar("T")


@dataclass(frozen=True, slots=True, eq=False)
class Gathered:
    """summary: of the protocol. The others by data set. covered: what was run, and what was not.

    shelved: names of what comes from the shelf and not from the work folder.
    """

    summary: Summary = field(default_factory=dict)
    curves: dict[str, Curve] = field(default_factory=dict)
    probabilities: dict[str, DataSetProbabilities] = field(default_factory=dict)
    sparse: dict[str, Record] = field(default_factory=dict)
    covered: list[Covered] = field(default_factory=list)
    shelved: tuple[str, ...] = ()

    def seconds(self) -> dict[str, float]:
        """Wall time by part, of the records that are shown."""
        outcomes = [outcome for grids in self.summary.values() for outcome in grids.values()]
        return {
            "protocol": sum(outcome.seconds for outcome in outcomes),
            "probabilities": sum(one.seconds for one in self.probabilities.values()),
            "sparse": sum(float(record["seconds"]) for record in self.sparse.values()),
            "compact": sum(curve.seconds for curve in self.curves.values()),
        }


def gather(store: ResultStore, shelf: Shelf | None = None) -> Gathered:
    """What is complete in the store, and of the rest what is on the shelf.

    Raises ValueError for files that are not of this program.
    """
    summary = summarise(store, DATA_SETS)
    curves = read_curves(store)
    found = {data_set: read_probabilities(store, data_set) for data_set in DATA_SETS}
    probabilities = {data_set: one for data_set, one in found.items() if one is not None}
    sparse = {
        data_set: record
        for data_set in DATA_SETS
        if data_set in SPARSE_SETS and (record := _sparse(store, data_set)) is not None
    }
    taken: list[str] = []
    if shelf is not None:
        summary = _completed(summary, shelf, taken)
        recipes = recipes_of(summary)
        _take(curves, shelf.curves(), "compact", taken)
        _take(probabilities, shelf.probabilities(recipes), "probabilities", taken)
        _take(sparse, shelf.sparse(recipes), "sparse queries", taken)
    covered = coverage(store, summary, curves, probabilities, sparse)
    return Gathered(summary, curves, probabilities, sparse, covered, tuple(taken))


def keep(gathered: Gathered, shelf: Shelf) -> None:
    """Put everything on the shelf, for reports to come."""
    for grids in gathered.summary.values():
        for outcome in grids.values():
            shelf.keep_outcome(outcome)
    recipes = recipes_of(gathered.summary)
    for curve in gathered.curves.values():
        shelf.keep_curve(curve)
    for one in gathered.probabilities.values():
        shelf.keep_probabilities(one, recipes[one.data_set])
    for data_set, record in gathered.sparse.items():
        shelf.keep_sparse(data_set, record, recipes[data_set])


def _completed(summary: Summary, shelf: Shelf, taken: list[str]) -> Summary:
    """With the outcomes of the shelf that have more splits, in the order of the plans."""
    kept = {(one.data_set, one.grid): one for one in shelf.outcomes()}
    found: Summary = {}
    for data_set in DATA_SETS:
        for grid in GRIDS:
            own, other = summary.get(data_set, {}).get(grid), kept.get((data_set, grid))
            if other is not None and (own is None or len(own.runs) < len(other.runs)):
                own = other
                taken.append(f"{data_set} ({grid})")
            if own is not None:
                found.setdefault(data_set, {})[grid] = own
    return found


def _take(own: dict[str, T], kept: Mapping[str, T], what: str, taken: list[str]) -> None:
    """What is missing. A curve that is not complete counts as there: its records can be gone on with."""
    for data_set, one in kept.items():
        if data_set not in own:
            own[data_set] = one
            taken.append(f"{data_set} ({what})")


def _sparse(store: ResultStore, data_set: str) -> Record | None:
    """The record of sparse queries, if it belongs to the protocol's present run."""
    run = Run(data_set, GRID, 0)
    setting, record = store.read(run, "setting"), store.read(run, SPARSE_QUERY)
    if setting is None or record is None or record["protocol"] != setting["recipe"]:
        return None
    return record
