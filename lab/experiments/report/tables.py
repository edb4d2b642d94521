"""The tables of the report as data, and as Markdown. Their texts are in ``prose.toml``."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from lab.experiments.markdown import pipe_table
from lab.experiments.paper import (
    FIGURES,
    GOAL_SETS,
    MEASURE_TITLES,
    MEASURES,
    METHOD_TITLES,
    METHODS,
    published,
)
from lab.experiments.plans import BEYOND_THE_PAPER, GRIDS, PART_ONLY
from lab.experiments.probabilities import ISOTONIC_NEEDS
from lab.experiments.report.outcomes import Cell, Outcome
from lab.experiments.report.results import Results, goal_cells

_GRID_TITLES = {"paper": "the paper's grid", "open": "the open grid"}
_CLASS_BY_CLASS = ("news20_bydate",)

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
        lines += [*pipe_table(self.columns, self.rows), ""]
        if self.footnotes:
            lines += [*(f"- Note on {line}" for line in self.footnotes), ""]
        return "\n".join(lines)


def report_tables(results: Results) -> list[Table]:
    """Tables in the order of the report, those without rows left out."""
    groups = {
        "Table 3 on {}": GOAL_SETS,
        f"{PART_ONLY} on {{}}: a part of the paper's protein, not comparable": (PART_ONLY,),
        "Beyond the paper, {}": BEYOND_THE_PAPER,
    }
    compared = [
        comparison(results, grid, names, title.format(_GRID_TITLES[grid]))
        for title, names in groups.items()
        for grid in GRIDS
    ]
    missing, planned = [_row("missing", **one) for one in results.missing()], len(results.states())
    seconds = {part: value for part, value in results.seconds().items() if value}
    seconds["all"] = sum(seconds.values())
    tables = [
        *compared[:2], goals(results), leads(results), *compared[2:],
        *(per_class(one) for one in results.outcomes if one.data_set in _CLASS_BY_CLASS),
        compact(results), probabilities(results), inference(results), settings(results),
        _table("missing", missing, complete=planned - len(missing), planned=planned),
        _table("times", [_row("times", part=part, minutes=value / 60) for part, value in seconds.items()]),
    ]  # fmt: skip
    return [table for table in tables if table.rows]


def comparison(results: Results, grid: str, data_sets: Sequence[str], title: str) -> Table:
    """Ours next to the paper's, cell by cell, with the difference."""
    rows = list[Row]()
    for outcome in (one for name in data_sets if (one := results.outcome(name, grid))):
        for method in METHODS:
            ours = (outcome.cell(method, *figure) for figure in FIGURES)
            papers = (published(outcome.data_set, method, *figure) for figure in FIGURES)
            rows.append((outcome.data_set, METHOD_TITLES[method], *map(_against, ours, papers)))
    titles = [f"{statistic} {MEASURE_TITLES[measure]}" for statistic, measure in FIGURES]
    return _table("comparison", rows, notes_on(rows), titles, title=title)


def goals(results: Results) -> Table:
    """The cells of gSVM on the open grid against the paper's gSVM, missed ones first."""
    cells = sorted(goal_cells(results), key=lambda cell: bool(cell["reached"]))
    rows = list[Row]()
    for cell in cells:
        name = f"{cell['statistic']} {MEASURE_TITLES[cell['measure']]}"
        ours, paper = cell["ours"], cell["paper"]
        shown = ("–", "–") if ours is None else (f"{ours:.2f}", f"{ours - paper:+.2f}")
        reason = "reached" if cell["reached"] else f"not reached: {cell['reason']}"
        rows.append((cell["data_set"], name, shown[0], f"{paper:.2f}", shown[1], reason))
    return _table("goals", rows, notes_on(rows), reached=sum(c["reached"] for c in cells), cells=len(cells))


def leads(results: Results) -> Table:
    """By how much gSVM is ahead of the others in mean F, on the same resampled test rows."""
    rows = list[Row]()
    for one in results.outcomes:
        teacher, gsvm0, svm = map(one.lead, ("teacher", "gsvm0", "svm"))
        rows.append(_row("leads", o=one, teacher=teacher, gsvm0=gsvm0, svm=svm))
    return _table("leads", rows, notes_on(rows))


def per_class(outcome: Outcome) -> Table:
    """Accuracy / F / AUC of each class and method on split 0."""
    rows = list[Row]()
    for code, label in enumerate(outcome["classes"]):
        metrics = [outcome["per_class"][method][code]["metrics"] for method in METHODS]
        values = [[one[measure] for measure in MEASURES] for one in metrics]
        rows.append(
            (label, *(" / ".join("–" if v is None else f"{100 * v:.2f}" for v in one) for one in values))
        )
    titles = [METHOD_TITLES[method] for method in METHODS]
    return _table("classes", rows, notes_on([(outcome.data_set,)]), titles, o=outcome)


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
