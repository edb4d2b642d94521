"""The protocol's results on one data set and grid: figures over classes and splits, with their intervals."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from lab.experiments.paper import FIGURES, METHODS, Measure, Statistic
from lab.experiments.plans import GridName, Plan, plan_for
from lab.experiments.protocol import student_name, tuning_name
from lab.experiments.stats import OVER_CLASSES, interval, over_classes
from lab.experiments.store import Record, Run, Store, short

_HARDEST = 2
_OF_A_CLASS = ("label", "metrics", "classes_evaluated", "chosen", "solution")


class Cell(NamedTuple):
    """A figure in per cent, averaged over splits, with its interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """One data set on one grid: a record of ``summarise_protocol``, read by ``outcome["…"]``."""

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
        return Cell(*(np.nan if cell[name] is None else cell[name] for name in Cell._fields))

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


def summarise_protocol(store: Store, data_set: str, grid: GridName) -> Record | None:
    """What the report shows, from all complete splits in a work folder; None without any.

    runs: the numbers of these splits. cells: by method, statistic and measure. replicates: those of mean F,
    averaged over splits. per_class: by method the records of the first split, with ROC curves of the two
    classes of the lowest AUC. setting, inference: of the first split. joint: whether the classes of a method
    share one point. tried: settings of teachers and points of students, on all splits. seconds: wall time.
    """
    planned = range(plan_for(data_set, grid).splits)
    complete = {split: one for split in planned if (one := _records(store, Run(data_set, grid, split)))}
    if not complete:
        return None
    splits = list(complete.values())
    first, classes = splits[0], splits[0]["setting"]["classes"]

    def of(records: dict[str, Record], method: str) -> list[Record]:
        return [records[student_name(code, method)] for code in range(len(classes))]

    cells, replicates = {}, {}
    for method, (statistic, measure) in product(METHODS, FIGURES):
        name, of_splits = f"{method} {statistic} {measure}", [of(records, method) for records in splits]
        cells[name], replicates[name] = _cell(of_splits, statistic, measure)
    joint = any(name in first for name in map(tuning_name, METHODS))
    searched = [
        record["chosen"]["points"] for records in splits for name, record in records.items()
        if "chosen" in record and (not joint or name.startswith("tuning-"))
    ]  # fmt: skip
    areas = {k: one["metrics"]["auc"] for k, one in enumerate(of(first, "gsvm")) if one["roc"] is not None}
    drawn = sorted(areas, key=lambda code: float(areas[code]))[:_HARDEST]
    summary: Record = short(
        {
            "runs": list(complete),
            "cells": cells,
            "replicates": {name: replicates[name] for name in (f"{method} mean f1" for method in METHODS)},
            "classes": classes,
            "per_class": {
                method: [
                    {name: one[name] for name in _OF_A_CLASS if name in one}
                    | {"roc": one["roc"] if code in drawn else None}
                    for code, one in enumerate(of(first, method))
                ]
                for method in METHODS
            },
            "setting": first["setting"],
            "inference": first["inference"],
            "joint": joint,
            "tried": {
                "teachers": sum(len(records["setting"]["trace"]) for records in splits),
                "points": sum(searched),
            },
            "seconds": sum(float(one["seconds"]) for records in splits for one in records.values()),
        }
    )
    return summary


def _records(store: Store, run: Run) -> dict[str, Record] | None:
    """All records of a run by name; None if one is missing or was made by another recipe."""
    setting = store.read(run.key("setting"))
    if setting is None:
        return None
    codes = range(len(setting["classes"]))
    needed = {"setting", "inference", *(student_name(*one) for one in product(codes, METHODS))}
    names = [*sorted(needed), *map(tuning_name, METHODS)]
    found = {name: one for name in names if (one := store.read(run.key(name), setting["recipe"]))}
    return found if found.keys() >= needed else None


def _cell(of_splits: list[list[Record]], statistic: Statistic, measure: Measure) -> tuple[Record, Any]:
    """In per cent over the classes where the measure is defined, then over the splits; its replicates."""
    tables = [np.array([one["metrics"][measure] for one in split], dtype=np.float64) for split in of_splits]
    values = np.array([float(OVER_CLASSES[statistic](np.ma.masked_invalid(table))) for table in tables])
    of_split = [over_classes([one["replicates"][measure] for one in split], statistic) for split in of_splits]
    replicates = np.mean(of_split, axis=0)
    low, high = interval(replicates)
    spread = float(100.0 * values.std(ddof=1)) if len(values) > 1 else None
    cell = {"value": float(100.0 * values.mean()), "low": 100.0 * low, "high": 100.0 * high, "spread": spread}
    return cell, replicates.tolist()
