"""Bootstrap over test rows, and from records to means and medians over classes with intervals.

The same rows are resampled for every class and method of a split, so the replicates of different classes and
methods belong together, and means, medians and differences over them have honest intervals.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from core.types import BoolArray, FloatArray
from experiments.paper import MEASURES, METHODS, STATISTICS, Measure, Statistic
from experiments.plans import Effort, GridName, Plan, plan_for
from experiments.store import Record, Run, Store, recipe_of, short

LEVEL = 0.95
_DIGITS = 5
_CELLS_AT_ONCE = 4_000_000
_HARDEST = 2
_OF_A_CLASS = ("label", "metrics", "classes_evaluated", "chosen", "solution")
_OVER_CLASSES: dict[Statistic, Callable[..., Any]] = {"mean": np.ma.mean, "median": np.ma.median}


def bootstrap(
    truth: BoolArray, decision: BoolArray, score: FloatArray, replicates: int, seed: int = 0
) -> dict[Measure, FloatArray]:
    """Accuracy, F and AUC in each replicate, (replicates,); NaN where a replicate leaves one undefined.

    truth, decision, score: (n,). The replicates depend on n and the seed only.
    """
    n = len(truth)
    random = np.random.default_rng([seed, n])
    order = np.argsort(score, kind="stable")
    starts = np.flatnonzero(np.r_[True, np.diff(score[order]) != 0.0])
    values: dict[Measure, list[FloatArray]] = {"accuracy": [], "f1": [], "auc": []}
    left = replicates
    while left:
        block = min(left, max(1, _CELLS_AT_ONCE // n))
        counts = np.stack([np.bincount(random.integers(0, n, n), minlength=n) for _ in range(block)])
        values["accuracy"].append((counts @ (truth == decision)) / n)
        values["f1"].append(_f1(counts, truth, decision))
        values["auc"].append(_auc(counts[:, order], truth[order], starts))
        left -= block
    return {measure: np.concatenate(parts) for measure, parts in values.items()}


def interval(replicates: FloatArray) -> tuple[float, float]:
    """The middle 95 % of the replicates that are defined; NaN without any."""
    defined = replicates[~np.isnan(replicates)]
    if not len(defined):
        return np.nan, np.nan
    low, high = np.quantile(defined, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


def completed(replicates: FloatArray) -> FloatArray:
    """Each class's undefined replicates replaced by its next defined one, (classes, replicates).

    Where a class has a row or two, many replicates contain none of them. Without these the mean would be one
    over other classes, and its interval would lie beside it: so they are drawn given that the class is there.
    What is undefined depends on the rows drawn, not on the method: pairs stay pairs. A class that is never
    defined stays so.
    """
    filled = replicates.copy()
    for of_class in filled:
        holes = np.flatnonzero(np.isnan(of_class))
        defined = np.flatnonzero(~np.isnan(of_class))
        if len(holes) and len(defined):
            of_class[holes] = of_class[defined[np.searchsorted(defined, holes) % len(defined)]]
    return filled


def over_classes(replicates: Sequence[Any], statistic: Statistic = "mean") -> FloatArray:
    """The statistic over the classes of ``replicates`` (classes, replicates), (replicates,)."""
    masked = np.ma.masked_invalid(completed(np.array(replicates, dtype=np.float64)))
    over: FloatArray = np.ma.filled(_OVER_CLASSES[statistic](masked, axis=0), np.nan)
    return over


def rounded(values: FloatArray) -> list[float | None]:
    """JSON-ready: an undefined value becomes None."""
    return [None if np.isnan(value) else round(float(value), _DIGITS) for value in values]


def _f1(counts: NDArray[np.int64], truth: BoolArray, decision: BoolArray) -> FloatArray:
    right = counts @ (truth & decision).astype(np.int64)
    positives, accepted = counts @ truth.astype(np.int64), counts @ decision.astype(np.int64)
    return np.where(positives > 0, 2.0 * right / np.maximum(positives + accepted, 1), np.nan)


def _auc(counts: NDArray[np.int64], truth: BoolArray, starts: NDArray[np.intp]) -> FloatArray:
    """Share of pairs of a positive and a negative in the right order, ties half; columns by rising score.

    starts: where a new score begins.
    """
    positives = np.add.reduceat(counts * truth, starts, axis=1).astype(np.float64)
    negatives = np.add.reduceat(counts * ~truth, starts, axis=1).astype(np.float64)
    below = np.cumsum(negatives, axis=1) - 0.5 * negatives
    pairs = positives.sum(axis=1) * negatives.sum(axis=1)
    wins = (positives * below).sum(axis=1)
    areas: FloatArray = np.divide(wins, pairs, out=np.full(len(pairs), np.nan), where=pairs > 0)
    return areas


@dataclass(frozen=True, slots=True)
class Cell:
    """A figure in per cent, averaged over splits, with its interval; spread: its deviation over splits."""

    value: float
    low: float
    high: float
    spread: float | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """The results of one data set on one grid, read from their record by ``outcome["…"]``.

    runs: the numbers of the complete splits. cells: by method, statistic and measure. replicates: those of
    mean F, averaged over splits. classes. per_class: by method the records of split 0, with ROC curves of the
    two classes of the lowest AUC. setting, inference: records of split 0. joint: whether the classes of a
    method share one point. tried: settings of teachers and points of students, on all splits. seconds: wall
    time of all records. code: version of the code that made it.
    """

    data_set: str
    grid: GridName
    record: Record

    def __getitem__(self, name: str) -> Any:
        return self.record[name]

    @property
    def name(self) -> str:
        return f"{self.data_set} ({self.grid})"

    @property
    def plan(self) -> Plan:
        return plan_for(self.data_set, self.grid)

    def cell(self, method: str, statistic: Statistic, measure: Measure) -> Cell:
        """One figure with its interval."""
        cell = self["cells"][f"{method} {statistic} {measure}"]
        low, high = (np.nan if cell[end] is None else cell[end] for end in ("low", "high"))
        return Cell(cell["value"], low, high, cell["spread"])

    def value(self, method: str, statistic: Statistic, measure: Measure) -> float:
        """One figure in per cent."""
        return self.cell(method, statistic, measure).value

    def lead(self, over: str) -> Cell:
        """By how many points of mean F gSVM is ahead of another method, on the same resampled rows."""
        ours, theirs = (
            np.array(self["replicates"][f"{method} mean f1"], dtype=np.float64) for method in ("gsvm", over)
        )
        low, high = interval(ours - theirs)
        value = self.value("gsvm", "mean", "f1") - self.value(over, "mean", "f1")
        return Cell(value, 100.0 * low, 100.0 * high)

    def hardest(self) -> list[int]:
        """Codes of the classes whose ROC curves are kept, rising."""
        return [code for code, record in enumerate(self["per_class"]["gsvm"]) if record["roc"] is not None]


def outcome_recipe(plan: Plan, effort: Effort) -> str:
    """The recipe of the record behind an ``Outcome``."""
    return recipe_of(plan.as_dict(), effort.seed, effort.replicates)


def student_name(code: int, method: str) -> str:
    """Name of the record of class ``code`` and a method."""
    return f"class-{code:03d}-{method}"


def tuning_name(method: str) -> str:
    """Name of the record of the point that the students of a method share."""
    return f"tuning-{method}"


def summarise_protocol(store: Store, data_set: str, grid: GridName) -> Record | None:
    """The record behind an ``Outcome``, from all complete splits in a work folder; None without any."""
    runs = [run for run in store.runs() if (run.data_set, run.grid) == (data_set, grid)]
    complete = {run: records for run in runs if (records := _records(store, run)) is not None}
    if not complete:
        return None
    first, splits = next(iter(complete.values())), list(complete.values())
    K = len(first["setting"]["classes"])
    per_class = {method: [first[student_name(k, method)] for k in range(K)] for method in METHODS}
    cells, replicates = {}, {}
    for method, statistic, measure in product(METHODS, STATISTICS, MEASURES):
        name = f"{method} {statistic} {measure}"
        of_splits = [[records[student_name(k, method)] for k in range(K)] for records in splits]
        cell, of_cell = _cell(of_splits, statistic, measure)
        cells[name] = asdict(cell)
        if (statistic, measure) == ("mean", "f1"):
            replicates[name] = of_cell.tolist()
    joint = any(name in first for name in map(tuning_name, METHODS))
    searches = [
        record for records in splits for name, record in records.items()
        if "chosen" in record and (not joint or name.startswith("tuning-"))
    ]  # fmt: skip
    drawn = _hardest(per_class["gsvm"])
    record: Record = short(
        {
            "runs": [run.split for run in complete],
            "cells": cells,
            "replicates": replicates,
            "classes": first["setting"]["classes"],
            "per_class": {
                method: [
                    {name: one[name] for name in _OF_A_CLASS if name in one}
                    | {"roc": one["roc"] if code in drawn else None}
                    for code, one in enumerate(records)
                ]
                for method, records in per_class.items()
            },
            "setting": first["setting"],
            "inference": first["inference"],
            "joint": joint,
            "tried": {
                "teachers": sum(len(records["setting"]["trace"]) for records in splits),
                "points": sum(record["chosen"]["points"] for record in searches),
            },
            "seconds": sum(float(one["seconds"]) for records in splits for one in records.values()),
        }
    )
    return record


def _records(store: Store, run: Run) -> dict[str, Record] | None:
    """All records of a run by name; None if one is missing or was made by another recipe."""
    setting = store.read(run.key("setting"))
    if setting is None:
        return None
    needed = [student_name(k, method) for k in range(len(setting["classes"])) for method in METHODS]
    tunings = [tuning_name(method) for method in METHODS]
    names = ["setting", *needed, "inference", *tunings]
    records = {name: store.read(run.key(name), setting["recipe"]) for name in names}
    if any(records[name] is None for name in (*needed, "inference")):
        return None
    return {name: record for name, record in records.items() if record is not None}


def _cell(of_splits: list[list[Record]], statistic: Statistic, measure: Measure) -> tuple[Cell, FloatArray]:
    """Over the classes where the measure is defined, then over the splits; with the replicates, in [0, 1]."""
    tables = [np.array([one["metrics"][measure] for one in split], dtype=np.float64) for split in of_splits]
    values = np.array([float(_OVER_CLASSES[statistic](np.ma.masked_invalid(table))) for table in tables])
    of_split = [over_classes([one["replicates"][measure] for one in split], statistic) for split in of_splits]
    replicates: FloatArray = np.mean(of_split, axis=0)
    low, high = interval(replicates)
    spread = float(100.0 * values.std(ddof=1)) if len(values) > 1 else None
    return Cell(float(100.0 * values.mean()), 100.0 * low, 100.0 * high, spread), replicates


def _hardest(records: Sequence[Record]) -> list[int]:
    """Codes of the classes with the lowest AUC among those that have a ROC curve."""
    areas = {k: record["metrics"]["auc"] for k, record in enumerate(records) if record["roc"] is not None}
    return sorted(areas, key=lambda code: float(areas[code]))[:_HARDEST]
