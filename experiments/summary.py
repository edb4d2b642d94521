"""From records to means and medians over classes, with intervals, by data set, grid and method."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from core.types import FloatArray
from experiments.paper import MEASURES, METHODS, STATISTICS, Measure, Statistic
from experiments.plans import GRIDS
from experiments.resampling import completed, interval
from experiments.results import Record, ResultStore, Run, student_name, tuning_name

Key: TypeAlias = tuple[str, Statistic, Measure]

_OVER_CLASSES: dict[Statistic, Callable[..., Any]] = {"mean": np.ma.mean, "median": np.ma.median}


@dataclass(frozen=True, slots=True)
class Cell:
    """A figure in per cent, averaged over splits, with its bootstrap interval; spread: s.d. over splits."""

    value: float
    low: float
    high: float
    spread: float | None


@dataclass(frozen=True, slots=True)
class Tried:
    """How many settings were looked at, on all splits: maps with a teacher's C, and points of students."""

    teachers: int
    points: int


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """Everything known of one data set with one grid.

    cells: by method, statistic and measure. replicates: the bootstrap behind them, (replicates,), averaged
    over splits; those of two methods belong together; from the shelf only those of mean F. runs: the splits
    that are complete. per_class: the records of the first of them, by method. setting, inference: its other
    records. joint: whether the classes of a method share one point. tried: on all splits. seconds: wall time
    of all records.
    """

    data_set: str
    grid: str
    runs: tuple[Run, ...]
    cells: dict[Key, Cell]
    replicates: dict[Key, FloatArray]
    classes: tuple[str, ...]
    per_class: dict[str, list[Record]]
    setting: Record
    inference: Record
    joint: bool
    tried: Tried
    seconds: float

    def value(self, method: str, statistic: Statistic, measure: Measure) -> float:
        """One figure in per cent."""
        return self.cells[method, statistic, measure].value

    def lead(self, over: str, statistic: Statistic, measure: Measure, method: str = "gsvm") -> Cell:
        """By how much ``method`` is better than another one, in points, on the same resampled rows."""
        value = self.value(method, statistic, measure) - self.value(over, statistic, measure)
        differences = self.replicates[method, statistic, measure] - self.replicates[over, statistic, measure]
        low, high = interval(differences) or (np.nan, np.nan)
        return Cell(value, 100.0 * low, 100.0 * high, None)


Summary: TypeAlias = dict[str, dict[str, Outcome]]


def summarise(store: ResultStore, data_sets: Iterable[str]) -> Summary:
    """Data set → grid → outcome, of what is complete in the store; data sets in the order given."""
    found: Summary = {}
    runs = list(store.runs())
    for data_set in data_sets:
        for grid in GRIDS:
            own = [run for run in runs if run.data_set == data_set and run.grid == grid]
            complete = {run: records for run in own if (records := _records(store, run)) is not None}
            if complete:
                found.setdefault(data_set, {})[grid] = _outcome(data_set, grid, complete)
    return found


def _records(store: ResultStore, run: Run) -> dict[str, Record] | None:
    """All records of a run by name; None if one is missing or was made by another recipe."""
    setting = store.read(run, "setting")
    if setting is None:
        return None
    names = [student_name(k, method) for k in range(len(setting["classes"])) for method in METHODS]
    records = {"setting": setting}
    for name in [*names, "inference"]:
        record = store.read(run, name, setting["recipe"])
        if record is None:
            return None
        records[name] = record
    for name in map(tuning_name, METHODS):
        record = store.read(run, name, setting["recipe"])
        if record is not None:  # of methods whose classes share one point
            records[name] = record
    return records


def _searches(records: dict[str, Record]) -> list[str]:
    """Names of the records that a search for students' points was made for."""
    joint = [name for name in map(tuning_name, METHODS) if name in records]
    return joint or [name for name, record in records.items() if "chosen" in record]


def _outcome(data_set: str, grid: str, complete: dict[Run, dict[str, Record]]) -> Outcome:
    first = next(iter(complete.values()))
    K = len(first["setting"]["classes"])
    cells: dict[Key, Cell] = {}
    replicates: dict[Key, FloatArray] = {}
    for method in METHODS:
        of_splits = [[records[student_name(k, method)] for k in range(K)] for records in complete.values()]
        for measure in MEASURES:
            for statistic in STATISTICS:
                key = method, statistic, measure
                cells[key], replicates[key] = _cell(of_splits, statistic, measure)
    everything = [record for records in complete.values() for record in records.values()]
    searches = [records[name] for records in complete.values() for name in _searches(records)]
    return Outcome(
        data_set,
        grid,
        tuple(complete),
        cells,
        replicates,
        tuple(first["setting"]["classes"]),
        {method: [first[student_name(k, method)] for k in range(K)] for method in METHODS},
        first["setting"],
        first["inference"],
        any(name in first for name in map(tuning_name, METHODS)),
        Tried(
            sum(len(records["setting"]["trace"]) for records in complete.values()),
            sum(record["chosen"]["points"] for record in searches),
        ),
        sum(float(record["seconds"]) for record in everything),
    )


def _cell(of_splits: list[list[Record]], statistic: Statistic, measure: Measure) -> tuple[Cell, FloatArray]:
    """Over the classes where the measure is defined, then over the splits; with the replicates, in [0, 1]."""
    over = _OVER_CLASSES[statistic]
    values = np.array(
        [float(over(_masked([one["metrics"][measure] for one in split]))) for split in of_splits]
    )
    replicates: FloatArray = np.mean(
        [np.ma.filled(over(_replicates(split, measure), axis=0), np.nan) for split in of_splits], axis=0
    )
    low, high = interval(replicates) or (np.nan, np.nan)
    spread = float(100.0 * values.std(ddof=1)) if len(values) > 1 else None
    return Cell(float(100.0 * values.mean()), 100.0 * low, 100.0 * high, spread), replicates


def _replicates(split: list[Record], measure: Measure) -> np.ma.MaskedArray[Any, Any]:
    found = np.array([one["replicates"][measure] for one in split], dtype=np.float64)
    return np.ma.masked_invalid(completed(found))


def _masked(values: Any) -> np.ma.MaskedArray[Any, Any]:
    numbers: FloatArray = np.array(values, dtype=np.float64)  # None becomes NaN
    return np.ma.masked_invalid(numbers)


def figures(summary: Summary) -> dict[str, Any]:
    """Data set → grid → method → {mean, median} → {accuracy, f1, auc}, in per cent."""
    return {
        data_set: {
            grid: {
                method: {
                    statistic: {
                        measure: round(outcome.value(method, statistic, measure), 4) for measure in MEASURES
                    }
                    for statistic in STATISTICS
                }
                for method in METHODS
            }
            for grid, outcome in grids.items()
        }
        for data_set, grids in summary.items()
    }
