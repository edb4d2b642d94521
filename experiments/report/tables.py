"""The tables of the report as data, and as Markdown. Their texts are in ``prose.toml``."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from experiments.paper import (
    GOAL_SETS,
    MEASURE_TITLES,
    MEASURES,
    METHOD_TITLES,
    METHODS,
    STATISTICS,
    Measure,
    published,
)
from experiments.plans import BEYOND_THE_PAPER, GRIDS, PART_ONLY
from experiments.probabilities import ISOTONIC_NEEDS
from experiments.report.results import Results, goal_cells
from experiments.stats import Cell, Outcome

_GRID_TITLES = {"paper": "the paper's grid", "open": "the open grid"}
_CLASS_BY_CLASS = ("news20_bydate",)
_MEASURE_COLUMNS = [
    f"{statistic} {MEASURE_TITLES[measure]}" for statistic in STATISTICS for measure in MEASURES
]

Row = tuple[str, ...]


@cache
def prose() -> dict[str, Any]:
    """The texts of the report."""
    return tomllib.loads((Path(__file__).parent / "prose.toml").read_text(encoding="utf-8"))


@dataclass(frozen=True, slots=True)
class Table:
    """A title, a sentence on how to read it, columns and rows of text, and notes below them."""

    title: str
    note: str
    columns: Row
    rows: tuple[Row, ...]
    footnotes: Row = ()

    def markdown(self) -> str:
        """A section with a pipe table."""
        lines = [f"### {self.title}", "", *([self.note, ""] if self.note else [])]
        lines += [_pipes(self.columns), _pipes(["---", *["---:"] * (len(self.columns) - 1)])]
        lines += [*(_pipes(row) for row in self.rows), ""]
        if self.footnotes:
            lines += [*(f"- Note on {line}" for line in self.footnotes), ""]
        return "\n".join(lines)


def report_tables(results: Results) -> list[Table]:
    """Tables in the order of the report, those without rows left out."""
    tables = [comparison(results, grid, GOAL_SETS, f"Table 3 on {_GRID_TITLES[grid]}") for grid in GRIDS]
    tables += [goals(results), leads(results)]
    for grid in GRIDS:
        title = f"{PART_ONLY} on {_GRID_TITLES[grid]}: a part of the paper's protein, not comparable"
        tables.append(comparison(results, grid, (PART_ONLY,), title))
    for grid in GRIDS:
        title = f"Beyond the paper, {_GRID_TITLES[grid]}"
        tables.append(comparison(results, grid, BEYOND_THE_PAPER, title))
    tables += [class_measures(one) for one in results.outcomes if one.data_set in _CLASS_BY_CLASS]
    tables += [
        compact(results), probabilities(results), inference(results), sparse(results), settings(results),
        missing(results), times(results),
    ]  # fmt: skip
    return [table for table in tables if table.rows]


def comparison(results: Results, grid: str, data_sets: Sequence[str], title: str) -> Table:
    """Ours next to the paper's, cell by cell, with the difference."""
    rows = []
    for data_set in data_sets:
        outcome = results.outcome(data_set, grid)
        if outcome is None:
            continue
        for method in METHODS:
            keys = [(method, statistic, measure) for statistic in STATISTICS for measure in MEASURES]
            cells = [_against(outcome.cell(*key), published(data_set, *key)) for key in keys]
            rows.append((data_set, METHOD_TITLES[method], *cells))
    return _table("comparison", rows, notes_on(rows), _MEASURE_COLUMNS, title=title)


def goals(results: Results) -> Table:
    """The cells of gSVM on the open grid against the paper's gSVM, missed ones first."""
    cells = sorted(goal_cells(results), key=lambda cell: cell.reached)
    rows = [
        (
            cell.data_set,
            f"{cell.statistic} {MEASURE_TITLES[cell.measure]}",
            "–" if cell.ours is None else f"{cell.ours:.2f}",
            f"{cell.paper:.2f}",
            "–" if cell.ours is None else f"{cell.ours - cell.paper:+.2f}",
            "reached" if cell.reached else f"not reached: {cell.reason}",
        )
        for cell in cells
    ]
    return _table(
        "goals", rows, notes_on(rows), reached=sum(cell.reached for cell in cells), cells=len(cells)
    )


def leads(results: Results) -> Table:
    """By how much gSVM is ahead of the others in mean F, on the same resampled test rows."""
    rows = []
    for outcome in results.outcomes:
        ahead = {method: outcome.lead(method) for method in ("teacher", "gsvm0", "svm")}
        cells = {name: f"{one.value:+.2f} [{one.low:+.2f}, {one.high:+.2f}]" for name, one in ahead.items()}
        rows.append(_row("leads", o=outcome, **cells))
    return _table("leads", rows, notes_on(rows))


def per_class(outcome: Outcome) -> Table:
    """Accuracy / F / AUC of each class and method on split 0; for the HTML page."""
    records = [outcome["per_class"][method] for method in METHODS]
    rows = tuple(
        (label, *(" / ".join(_per_cent(one[code]["metrics"][m]) for m in MEASURES) for one in records))
        for code, label in enumerate(outcome["classes"])
    )
    title = f"{outcome.data_set}, {outcome.grid} grid: accuracy / F / AUC of each class"
    return Table(title, "", ("class", *(METHOD_TITLES[method] for method in METHODS)), rows)


def class_measures(outcome: Outcome) -> Table:
    """F and AUC of each class on split 0, one column for each measure and method."""
    shown: tuple[Measure, ...] = ("f1", "auc")
    pairs = [(measure, method) for measure in shown for method in METHODS]
    columns = [f"{MEASURE_TITLES[measure]}, {METHOD_TITLES[method]}" for measure, method in pairs]
    records = outcome["per_class"]
    rows = [
        (label, *(_per_cent(records[method][code]["metrics"][measure]) for measure, method in pairs))
        for code, label in enumerate(outcome["classes"])
    ]
    rows.append(("mean", *(f"{outcome.value(method, 'mean', measure):.2f}" for measure, method in pairs)))
    title = f"{outcome.data_set}, {outcome.grid} grid: F and AUC of each class"
    return _table("classes", rows, notes_on([(outcome.data_set,)]), columns, title=title)


def compact(results: Results) -> Table:
    """Mean F and the time of a query for each number of landmarks."""
    rows, lines = list[Row](), []
    for name, curve in results.curves.items():
        micro = 1e6 * curve["teacher_seconds_per_query"]
        rows.append(_row("compact", "teacher_row", name=name, c=curve, micro=micro))
        for point in curve["points"]:
            rows.append(_row("compact", name=name, p=point, micro=1e6 * point["seconds_per_query"]))
        footnote = prose()["tables"]["compact"]["footnote"]
        lines.append(footnote.format(name=name, c=curve, f=curve["plan"]["features"]))
    return _table("compact", rows, lines)


def probabilities(results: Results) -> Table:
    """Brier scores and calibration errors; of the sigmoid also for the classes that have both kinds."""
    rows = list[Row]()
    for name, record in results.probabilities.items():
        K, kinds = record["n_classes"], record["kinds"]
        for one in kinds.values():
            better = sum(each["brier"] < each["base_brier"] for each in one["classes"])
            skill, n = 1 - one["brier"] / one["base_brier"], len(one["classes"])
            rows.append(_row("probabilities", name=name, one=one, n=n, K=K, skill=skill, better=better))
        if len(kinds) == 2 and n < K:
            labels = {one["label"] for one in kinds["isotonic"]["classes"]}
            brier = np.mean([one["brier"] for one in kinds["sigmoid"]["classes"] if one["label"] in labels])
            rows.append(_row("probabilities", "same_row", name=name, n=n, K=K, brier=brier))
    return _table("probabilities", rows, needs=ISOTONIC_NEEDS)


def inference(results: Results) -> Table:
    """Figure 4's numbers."""
    rows = []
    for outcome in results.outcomes:
        timed = outcome["inference"]
        whole, scoring = timed["seconds_per_query"], timed["seconds_for_scoring"]
        ratios = {name: whole[name] / whole["teacher"] for name in ("remark_2", "student")}
        ratios |= {"scoring": scoring["student"] / scoring["teacher"], "micro": 1e6 * whole["teacher"]}
        rows.append(_row("inference", o=outcome, timed=timed, **ratios))
    return _table("inference", rows)


def sparse(results: Results) -> Table:
    """Time of a query against the non-zeros of its row."""
    rows, lines = list[Row](), []
    for name, record in results.sparse.items():
        for group in record["groups"]:
            values = {"name": name, "nonzeros": group["nonzeros"], "columns": record["columns"]}
            values |= {way: 1e6 * seconds for way, seconds in group["seconds"].items()}
            rows.append(_row("sparse", **values, ratio=values["sparse"] / values["dense"]))
        micro, nano = 1e6 * record["seconds_a_query"], 1e9 * record["seconds_a_nonzero"]
        lines.append(prose()["tables"]["sparse"]["footnote"].format(name=name, micro=micro, nano=nano))
    return _table("sparse", rows, lines)


def settings(results: Results) -> Table:
    """What was chosen, and how, on split 0 of each data set and grid."""
    rows = []
    for outcome in results.outcomes:
        setting, plan = outcome["setting"], outcome.plan
        features = setting["features"]
        linear, gamma = features["kind"] == "linear", features["gamma"]
        strategies = dict.fromkeys(str(plan.strategy_of(split)) for split in outcome["runs"])
        values = {
            "kind": "linear" if linear else f"{features['kind']} {features['n_components']}",
            "gamma": "–" if linear else "scale rule" if gamma is None else f"{gamma:g}",
            "search": "one point for all classes" if outcome["joint"] else " then ".join(strategies),
            "groups": " by groups" if plan.by_groups and setting.get("grouped") else "",
            "splits": len(outcome["runs"]),
            "minutes": outcome["seconds"] / 60,
        }
        taken = {name: outcome[name] for name in ("tried", "code")} | {"teacher_C": setting["teacher_C"]}
        rows.append(_row("settings", o=outcome, features=features, **taken, **values))
    return _table("settings", rows)


def missing(results: Results) -> Table:
    """Every planned run that is not complete."""
    rows = [_row("missing", **one) for one in results.missing]
    return _table("missing", rows, complete=results.planned - len(rows), planned=results.planned)


def times(results: Results) -> Table:
    """Wall time of what is shown."""
    seconds = {part: value for part, value in results.seconds().items() if value}
    seconds["all"] = sum(seconds.values())
    return _table("times", [_row("times", part=part, minutes=value / 60) for part, value in seconds.items()])


def notes_on(rows: Iterable[Row]) -> list[str]:
    """The notes on the data sets in the first column, in their order, each once."""
    notes = prose()["notes"]
    return [f"{name}: {notes[name]}" for name in dict.fromkeys(row[0] for row in rows) if name in notes]


def _table(
    name: str, rows: Sequence[Row], footnotes: Sequence[str] = (), more: Sequence[str] = (), **values: object
) -> Table:
    text = prose()["tables"][name]
    title, note = (text[part].format(**values) for part in ("title", "note"))
    return Table(title, note, (*text["columns"], *more), tuple(rows), tuple(footnotes))


def _row(table: str, form: str = "row", **values: Any) -> Row:
    """One row of a table by its format in ``prose.toml``."""
    text: str = prose()["tables"][table][form]
    return tuple(cell.format(**values) for cell in text.split(" | "))


def _against(cell: Cell, paper: float | None) -> str:
    ours = f"{cell.value:.2f} [{cell.low:.2f}, {cell.high:.2f}]"
    return ours if paper is None else f"{ours} / {paper:.2f} ({cell.value - paper:+.2f})"


def _per_cent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.2f}"


def _pipes(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
