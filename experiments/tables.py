"""The report's tables, as data that can be written as Markdown or as HTML."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from experiments.goals import goal_cells
from experiments.paper import (
    MEASURE_TITLES,
    MEASURES,
    METHOD_TITLES,
    METHODS,
    STATISTICS,
    published,
)
from experiments.plans import plan_for
from experiments.summary import Cell, Outcome, Summary


@dataclass(frozen=True, slots=True)
class Table:
    """A title, a sentence on how to read it, columns and rows of text."""

    title: str
    note: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def markdown(self) -> str:
        """A section with a pipe table."""
        lines = [f"### {self.title}", "", self.note, ""] if self.note else [f"### {self.title}", ""]
        lines.append(_pipes(self.columns))
        lines.append(_pipes(["---", *["---:"] * (len(self.columns) - 1)]))
        return "\n".join([*lines, *(_pipes(row) for row in self.rows), ""])

    def html(self) -> str:
        """A section with a table."""
        head = "".join(f"<th>{escape(column)}</th>" for column in self.columns)
        body = "\n".join(
            "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in self.rows
        )
        return (
            f"<h3>{escape(self.title)}</h3>\n<p>{escape(self.note)}</p>\n"
            f"<table><thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody></table>\n"
        )


def comparison(summary: Summary, grid: str, data_sets: Sequence[str], title: str) -> Table:
    """Ours next to the paper's, cell by cell, with the difference."""
    rows = []
    for data_set in data_sets:
        outcome = summary.get(data_set, {}).get(grid)
        if outcome is None:
            continue
        for method in METHODS:
            cells = [
                _against(
                    outcome.cells[method, statistic, measure], published(data_set, method, statistic, measure)
                )
                for statistic in STATISTICS
                for measure in MEASURES
            ]
            rows.append((data_set, METHOD_TITLES[method], *cells))
    note = "Per cent: ours [95 % bootstrap interval over test rows] / the paper's figure (ours minus it)."
    return Table(title, note, ("data set", "method", *_measure_columns()), tuple(rows))


def goals(summary: Summary) -> Table:
    """The cells where gSVM of the open grid has to be at or above the paper's gSVM, missed ones first."""
    cells = sorted(goal_cells(summary), key=lambda cell: cell.reached)
    rows = tuple(
        (
            cell.data_set,
            f"{cell.statistic} {MEASURE_TITLES[cell.measure]}",
            "–" if cell.ours is None else f"{cell.ours:.2f}",
            f"{cell.paper:.2f}",
            "–" if cell.ours is None else f"{cell.ours - cell.paper:+.2f}",
            "reached" if cell.reached else f"not reached: {cell.reason}",
        )
        for cell in cells
    )
    reached = sum(cell.reached for cell in cells)
    note = f"{reached} of {len(cells)} cells are reached."
    return Table(
        "Open grid against the paper's gSVM", note, ("data set", "cell", "ours", "paper", "", ""), rows
    )


def settings(summary: Summary) -> Table:
    """What was chosen, and how, on split 0 of each data set and grid."""
    rows = []
    for data_set, grids in summary.items():
        for grid, outcome in grids.items():
            features = outcome.setting["features"]
            gamma = "scale rule" if features["gamma"] is None else f"{features['gamma']:g}"
            kind = (
                features["kind"]
                if features["kind"] == "linear"
                else f"{features['kind']} {features['n_components']}"
            )
            rows.append(
                (
                    data_set,
                    grid,
                    f"{kind}, {features['scaling']}",
                    "–" if features["kind"] == "linear" else gamma,
                    f"{outcome.setting['teacher_C']:g}",
                    _search(outcome),
                    str(len(outcome.runs)),
                    f"{outcome.seconds / 60:.1f}",
                )
            )
    columns = ("data set", "grid", "features", "γ", "teacher C", "students' search", "splits", "minutes")
    note = "Features and teacher's C of the open grid are those of split 0; all were chosen on training rows."
    return Table("Settings", note, columns, tuple(rows))


def per_class(outcome: Outcome) -> Table:
    """Accuracy / F / AUC of each class and method on split 0."""
    rows = tuple(
        (label, *(_measures(outcome.per_class[method][code]["metrics"]) for method in METHODS))
        for code, label in enumerate(outcome.classes)
    )
    title = f"{outcome.data_set}, {outcome.grid} grid: accuracy / F / AUC of each class"
    return Table(title, "", ("class", *(METHOD_TITLES[method] for method in METHODS)), rows)


def inference(summary: Summary) -> Table:
    """Figure 4's numbers."""
    rows = []
    for data_set, grids in summary.items():
        for grid, outcome in grids.items():
            timed = outcome.inference
            whole, scoring = timed["seconds_per_query"], timed["seconds_for_scoring"]
            rows.append(
                (
                    data_set,
                    grid,
                    str(timed["classes"]),
                    f"{timed['classes_evaluated']:.1f}",
                    f"{1e6 * whole['teacher']:.1f}",
                    f"{whole['remark_2'] / whole['teacher']:.2f}",
                    f"{whole['student'] / whole['teacher']:.2f}",
                    f"{scoring['student'] / scoring['teacher']:.2f}",
                )
            )
    columns = (
        "data set", "grid", "classes", "scores by Remark 2", "teacher, µs",
        "Remark 2 / teacher", "student / teacher", "student / teacher, scoring only",
    )  # fmt: skip
    note = (
        "One raw row in, one answer out, one thread. Teacher and students share the basis functions, whose"
        " cost all pay; the last column leaves them out."
    )
    return Table("Inference time", note, columns, tuple(rows))


def _search(outcome: Outcome) -> str:
    plan = plan_for(outcome.data_set, outcome.grid)  # type: ignore[arg-type]
    used = dict.fromkeys(plan.strategy_of(run.split) for run in outcome.runs)
    groups = " by groups" if plan.by_groups and outcome.setting.get("grouped") else ""
    return f"{' then '.join(used)}, {plan.folds} folds{groups}"


def _measure_columns() -> list[str]:
    return [f"{statistic} {MEASURE_TITLES[measure]}" for statistic in STATISTICS for measure in MEASURES]


def _against(cell: Cell, paper: float | None) -> str:
    ours = f"{cell.value:.2f} [{cell.low:.2f}, {cell.high:.2f}]"
    return ours if paper is None else f"{ours} / {paper:.2f} ({cell.value - paper:+.2f})"


def _measures(metrics: dict[str, float | None]) -> str:
    values = (metrics[measure] for measure in MEASURES)
    return " / ".join("–" if value is None else f"{100 * value:.2f}" for value in values)


def _pipes(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
