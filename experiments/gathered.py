"""Everything that the report shows, read from a work folder."""

from __future__ import annotations

from dataclasses import dataclass, field

from experiments.coverage import Covered, coverage
from experiments.curves import Curve, read_curves
from experiments.plans import DATA_SETS
from experiments.probabilities import GRID
from experiments.reliabilities import DataSetProbabilities, read_probabilities
from experiments.results import Record, ResultStore, Run
from experiments.sparse_query import DATA_SETS as SPARSE_SETS
from experiments.sparse_query import NAME as SPARSE_QUERY
from experiments.summary import Summary, summarise


@dataclass(frozen=True, slots=True, eq=False)
class Gathered:
    """summary: of the protocol. The others by data set. covered: what was run, and what was not."""

    summary: Summary = field(default_factory=dict)
    curves: dict[str, Curve] = field(default_factory=dict)
    probabilities: dict[str, DataSetProbabilities] = field(default_factory=dict)
    sparse: dict[str, Record] = field(default_factory=dict)
    covered: list[Covered] = field(default_factory=list)

    def seconds(self) -> dict[str, float]:
        """Wall time by part, of the records that are shown."""
        outcomes = [outcome for grids in self.summary.values() for outcome in grids.values()]
        return {
            "protocol": sum(outcome.seconds for outcome in outcomes),
            "probabilities": sum(one.seconds for one in self.probabilities.values()),
            "sparse": sum(float(record["seconds"]) for record in self.sparse.values()),
            "compact": sum(curve.seconds for curve in self.curves.values()),
        }


def gather(store: ResultStore) -> Gathered:
    """What is complete in the store."""
    summary = summarise(store, DATA_SETS)
    curves = read_curves(store)
    found = {data_set: read_probabilities(store, data_set) for data_set in DATA_SETS}
    probabilities = {data_set: one for data_set, one in found.items() if one is not None}
    sparse = {
        data_set: record
        for data_set in DATA_SETS
        if data_set in SPARSE_SETS and (record := _sparse(store, data_set)) is not None
    }
    covered = coverage(store, summary, curves, probabilities, sparse)
    return Gathered(summary, curves, probabilities, sparse, covered)


def _sparse(store: ResultStore, data_set: str) -> Record | None:
    """The record of sparse queries, if it belongs to the protocol's present run."""
    run = Run(data_set, GRID, 0)
    setting, record = store.read(run, "setting"), store.read(run, SPARSE_QUERY)
    if setting is None or record is None or record["protocol"] != setting["recipe"]:
        return None
    return record
