"""What protocol 2 reports: cells by grid and method, differences on the sets never used, old beside new."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from lab.experiments.markdown import pipe_table
from lab.experiments.paper import FIGURES, GOAL_SETS, METHODS, Measure, Statistic, published
from lab.experiments.protocol_2.runs import PAPER, PRODUCT, SPLITS, TEACHER, UNSEEN_SETS
from lab.experiments.stats import OVER_CLASSES, over_classes
from lab.experiments.store import Record, Run, Store, short

BEST = "best"
GRIDS = (PRODUCT, PAPER)
_ORDER = ("gsvm", "gsvm0", "svm")
"""Of students with equal held-out scores the first of these is the best; then the product's own."""


class Figure(NamedTuple):
    """A value with the middle 95 % of its replicates, in per cent."""

    value: float
    low: float
    high: float

    @classmethod
    def of(cls, value: float, replicates: Any) -> Figure:
        """The percentile interval, moved so that the median of the replicates lies at the value."""
        low, middle, high = np.nanquantile(np.asarray(replicates, dtype=np.float64), [0.025, 0.5, 0.975])
        return cls(100.0 * value, 100.0 * float(value + low - middle), 100.0 * float(value + high - middle))


class Outcome:
    """The complete records of one data set on one grid, by split and method. Splits are averaged."""

    def __init__(self, data_set: str, grid: str, splits: Sequence[dict[str, Record]]) -> None:
        self.data_set, self.grid, self.splits = data_set, grid, splits

    @property
    def methods(self) -> list[str]:
        """Those that were run, and the best of the students."""
        return [*self.splits[0], BEST]

    def record(self, split: int, method: str) -> Record:
        """Of one split; the best student is the one with the largest score on held-out training rows."""
        of_split = self.splits[split]
        if method != BEST:
            return of_split[method]
        students = sorted(
            of_split.keys() - {TEACHER}, key=lambda one: _ORDER.index(one) if one in _ORDER else 9
        )
        return max((of_split[one] for one in students), key=lambda one: one["held_out_score"] or 0.0)

    def figure(self, method: str, statistic: Statistic, measure: Measure) -> Figure:
        """Over the classes where the measure is defined, then over the splits."""
        return Figure.of(*self._over_splits(method, statistic, measure))

    def lead(self, method: str, over: str) -> tuple[float, Any]:
        """By how much mean F of a method is ahead of another's, and its replicates on the same rows."""
        (ours, own), (theirs, other) = (self._over_splits(one, "mean", "f1") for one in (method, over))
        return ours - theirs, own - other

    def _over_splits(self, method: str, statistic: Statistic, measure: Measure) -> tuple[float, Any]:
        values, replicates = [], []
        for split in range(len(self.splits)):
            classes = self.record(split, method)["classes"]
            table = np.array([one["metrics"][measure] for one in classes], dtype=np.float64)
            values.append(float(OVER_CLASSES[statistic](np.ma.masked_invalid(table))))
            replicates.append(over_classes([one["replicates"][measure] for one in classes], statistic))
        return float(np.mean(values)), np.mean(replicates, axis=0)


def read(store: Store, data_set: str, grid: str) -> Outcome | None:
    """All splits of a set on a grid; None unless every planned record is there."""
    splits = []
    for split in range(SPLITS.get(data_set, 1)):
        run = Run(data_set, grid, split)
        teacher = store.read(Run(data_set, PRODUCT, split).key(TEACHER))
        students = {name: one for name in _STUDENTS[grid] if (one := store.read(run.key(name)))}
        if teacher is None or len(students) < len(_STUDENTS[grid]):
            return None
        splits.append({TEACHER: teacher, **students})
    return Outcome(data_set, grid, splits)


_STUDENTS = {PRODUCT: ("gsvm", "gsvm0", "svm", "automatic"), PAPER: ("gsvm", "gsvm0", "svm")}


def summarise(store: Store, earlier: dict[str, dict[str, int]]) -> Record:
    """Everything that is reported, JSON-ready.

    earlier: cells that the first protocol reached, by grid and method.
    """
    outcomes = {
        (name, grid): one
        for name, grid in product((*GOAL_SETS, *UNSEEN_SETS), GRIDS)
        if (one := read(store, name, grid)) is not None
    }
    goals = {
        grid: [one for (name, own), one in outcomes.items() if own == grid and name in GOAL_SETS]
        for grid in GRIDS
    }
    unseen = [one for (name, grid), one in outcomes.items() if grid == PRODUCT and name in UNSEEN_SETS]
    cells = {
        grid: {method: _cells(some, method) for method in _methods(some)} for grid, some in goals.items()
    }
    summary: Record = short(
        {
            "cells": {
                grid: {method: sum(one["reached"] for one in own) for method, own in by_method.items()}
                for grid, by_method in cells.items()
            },
            "cells_measured": {grid: len(some) * len(FIGURES) for grid, some in goals.items()},
            "cells_of_protocol_1": earlier,
            "missed": {
                grid: [one for one in by_method.get(BEST, []) if not one["reached"]]
                for grid, by_method in cells.items()
            },
            "unseen": {
                "sets": [one.data_set for one in unseen],
                "mean_f1": {
                    one.data_set: {
                        method: one.figure(method, "mean", "f1")._asdict() for method in one.methods
                    }
                    for one in unseen
                },
                **{f"{ours}_minus_{theirs}": _mean_lead(unseen, ours, theirs) for ours, theirs in _LEADS},
            },
        }
    )
    return summary


_LEADS = (("gsvm", "svm"), ("gsvm", TEACHER), (BEST, TEACHER))


def _methods(outcomes: Sequence[Outcome]) -> list[str]:
    return outcomes[0].methods if outcomes else []


def _cells(outcomes: Sequence[Outcome], method: str) -> list[Record]:
    """The cells of a method against the paper's gSVM, compared as the paper prints, with two decimals."""
    cells = []
    for outcome, (statistic, measure) in product(outcomes, FIGURES):
        paper = published(outcome.data_set, "gsvm", statistic, measure)
        if paper is None:
            raise LookupError(f"Table 3 has no figures for {outcome.data_set}")
        ours = outcome.figure(method, statistic, measure)
        cells.append(
            {
                "data_set": outcome.data_set,
                "statistic": statistic,
                "measure": measure,
                **ours._asdict(),
                "paper": paper,
                "teacher": outcome.figure(TEACHER, statistic, measure).value,
                "reached": round(ours.value, 2) >= paper,
            }
        )
    return cells


def _mean_lead(outcomes: Sequence[Outcome], ours: str, theirs: str) -> Record | None:
    """Mean over the sets of the difference in mean F; the sets' test rows are resampled independently."""
    if not outcomes:
        return None
    leads = [one.lead(ours, theirs) for one in outcomes]
    mean = float(np.mean([value for value, _ in leads]))
    return Figure.of(mean, np.mean([replicates for _, replicates in leads], axis=0))._asdict()


def markdown(summary: Record) -> str:
    """The summary as a page: first the cells of every method, then the sets never used."""
    lines = [
        "# Protocol 2: results",
        "",
        "Rules, grids and looks at test parts before: `lab/experiments/protocol_2.md`.",
        "",
    ]
    total = len(GOAL_SETS) * len(FIGURES)
    for grid, counts in summary["cells"].items():
        shown = ", ".join(f"{method} {count}" for method, count in counts.items())
        measured = summary["cells_measured"][grid]
        lines.append(
            f"- Cells reached on the grid `{grid}`, of {total} ({measured} measured): {shown or 'not run'}."
        )
    for grid, counts in summary["cells_of_protocol_1"].items():
        shown = ", ".join(f"{method} {counts[method]}" for method in METHODS)
        lines.append(f"- Protocol 1, grid `{grid}`: {shown}.")
    for ours, theirs in _LEADS:
        lead = summary["unseen"][f"{ours}_minus_{theirs}"]
        if lead is not None:
            interval = f"{lead['value']:+.2f} [{lead['low']:+.2f}, {lead['high']:+.2f}]"
            sets = len(summary["unseen"]["sets"])
            lines.append(
                f"- Mean F of {ours} minus {theirs}, mean of {sets} sets never used: {interval} points."
            )
    unseen = [
        (name, method, _interval(one))
        for name, methods in summary["unseen"]["mean_f1"].items()
        for method, one in methods.items()
    ]
    missed = [
        (
            grid,
            f"{one['data_set']}, {one['statistic']} {one['measure']}",
            _interval(one),
            f"{one['paper']:.2f}",
            f"{one['teacher']:.2f}",
        )
        for grid, cells in summary["missed"].items()
        for one in cells
    ]
    lines += ["", *pipe_table(("set never used", "method", "mean F, %"), unseen, texts=2), ""]
    lines += pipe_table(
        ("grid", "cell of `best` that is missed", "ours", "paper", "teacher"), missed, texts=2
    )
    return "\n".join([*lines, ""])


def _interval(figure: Record) -> str:
    return f"{figure['value']:.2f} [{figure['low']:.2f}, {figure['high']:.2f}]"
