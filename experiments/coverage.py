"""What was run, and what was not: every data set of every part, with the reason where it is missing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from experiments.compact_curve import CURVES
from experiments.curves import Curve
from experiments.paper import METHODS
from experiments.plans import DATA_SETS, GRIDS, GridName, plan_for
from experiments.probabilities import GRID as CALIBRATED_GRID
from experiments.reliabilities import DataSetProbabilities
from experiments.results import Record, ResultStore, Run, student_name, tuning_name
from experiments.sparse_query import DATA_SETS as SPARSE_SETS
from experiments.summary import Summary


@dataclass(frozen=True, slots=True)
class Covered:
    """One part on one data set. complete: whether the report has all of it. state: how far it is."""

    part: str
    data_set: str
    grid: str
    complete: bool
    state: str


def coverage(
    store: ResultStore,
    summary: Summary,
    curves: Mapping[str, Curve],
    probabilities: Mapping[str, DataSetProbabilities],
    sparse: Mapping[str, Record],
) -> list[Covered]:
    """All data sets with a plan, in the order of the plans."""
    rows = [_protocol(store, summary, data_set, grid) for data_set in DATA_SETS for grid in GRIDS]
    rows += [
        _yes_or_no("probabilities", data_set, CALIBRATED_GRID, data_set in probabilities)
        for data_set in DATA_SETS
    ]
    rows += [
        _yes_or_no("sparse queries", data_set, CALIBRATED_GRID, data_set in sparse)
        for data_set in DATA_SETS
        if data_set in SPARSE_SETS
    ]
    return rows + [_compact(data_set, plan.sizes, curves.get(data_set)) for data_set, plan in CURVES.items()]


def _protocol(store: ResultStore, summary: Summary, data_set: str, grid: GridName) -> Covered:
    planned = plan_for(data_set, grid).splits
    outcome = summary.get(data_set, {}).get(grid)
    if outcome is not None:
        done = len(outcome.runs)
        state = f"{done} of {planned} splits"
        return Covered("protocol", data_set, grid, done == planned, state)
    return Covered("protocol", data_set, grid, False, _unfinished(store, Run(data_set, grid, 0)))


def _unfinished(store: ResultStore, run: Run) -> str:
    """How many records of the first split are there."""
    setting = store.read(run, "setting")
    if setting is None:
        return "not run"
    classes = range(len(setting["classes"]))
    names = ["inference", *(student_name(code, method) for code in classes for method in METHODS)]
    if plan_for(run.data_set, run.grid).tuning == "joint":  # type: ignore[arg-type]
        names += [tuning_name(method) for method in METHODS if method != "teacher"]
    there = sum(store.read(run, name, setting["recipe"]) is not None for name in names)
    return f"not complete: {there + 1} of {len(names) + 1} records of split 0"


def _yes_or_no(part: str, data_set: str, grid: str, there: bool) -> Covered:
    return Covered(part, data_set, grid, there, "complete" if there else "not run, or not complete")


def _compact(data_set: str, sizes: Sequence[int], curve: Curve | None) -> Covered:
    done = 0 if curve is None else len(curve.points)
    state = f"{done} of {len(sizes)} numbers of landmarks" if done else "not run, or not complete"
    return Covered("compact", data_set, "–", done == len(sizes), state)
