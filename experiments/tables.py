"""Tables of the protocol: ours against the paper's, goals, settings, classes, inference."""

from __future__ import annotations

from collections.abc import Sequence

from experiments.goals import goal_cells
from experiments.notes import notes_on
from experiments.paper import (
    MEASURE_TITLES,
    MEASURES,
    METHOD_TITLES,
    METHODS,
    STATISTICS,
    Measure,
    published,
)
from experiments.plans import plan_for
from experiments.summary import Cell, Outcome, Summary
from experiments.table import Table

OTHERS = ("teacher", "gsvm0", "svm")


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
    notes = notes_on(row[0] for row in rows)
    return Table(title, note, ("data set", "method", *_measure_columns()), tuple(rows), notes)


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
    title = "Open grid against the paper's gSVM"
    columns = ("data set", "cell", "ours", "paper", "difference", "reached")
    return Table(title, note, columns, rows, notes_on(row[0] for row in rows))


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
                    f"{outcome.tried.teachers}",
                    f"{outcome.tried.points}",
                    f"{outcome.seconds / 60:.1f}",
                )
            )
    columns = (
        "data set", "grid", "features", "γ", "teacher C", "students' search", "splits",
        "teacher settings tried", "student points tried", "minutes",
    )  # fmt: skip
    note = (
        "Features, γ and C of split 0; each split chooses its own, on its training rows only. Tried:"
        " settings of map and teacher, and points of students of all classes and methods, over all splits;"
        " each on several folds. Minutes are wall time."
    )
    return Table("Settings, and how many were looked at", note, columns, tuple(rows))


def per_class(outcome: Outcome) -> Table:
    """Accuracy / F / AUC of each class and method on split 0."""
    rows = tuple(
        (label, *(_measures(outcome.per_class[method][code]["metrics"]) for method in METHODS))
        for code, label in enumerate(outcome.classes)
    )
    title = f"{outcome.data_set}, {outcome.grid} grid: accuracy / F / AUC of each class"
    return Table(title, "", ("class", *(METHOD_TITLES[method] for method in METHODS)), rows)


def class_measures(outcome: Outcome, measures: Sequence[Measure]) -> Table:
    """Some measures of each class, one column a measure and method, on split 0."""
    columns = [
        f"{MEASURE_TITLES[measure]}, {METHOD_TITLES[method]}" for measure in measures for method in METHODS
    ]
    rows = []
    for code, label in enumerate(outcome.classes):
        values = (
            outcome.per_class[method][code]["metrics"][measure] for measure in measures for method in METHODS
        )
        rows.append((label, *map(_per_cent, values)))
    means = (outcome.value(method, "mean", measure) for measure in measures for method in METHODS)
    rows.append(("mean", *(f"{value:.2f}" for value in means)))
    titles = " and ".join(MEASURE_TITLES[measure] for measure in measures)
    title = f"{outcome.data_set}, {outcome.grid} grid: {titles} of each class"
    return Table(
        title, "Per cent, on the test part.", ("class", *columns), tuple(rows), notes_on([outcome.data_set])
    )


def leads(summary: Summary) -> Table:
    """How far gSVM is ahead of the others in mean F, on the same resampled test rows."""
    rows = []
    for data_set, grids in summary.items():
        for grid, outcome in grids.items():
            found = [outcome.lead(method, "mean", "f1") for method in OTHERS]
            rows.append(
                (data_set, grid, *(f"{one.value:+.2f} [{one.low:+.2f}, {one.high:+.2f}]" for one in found))
            )
    note = (
        "Points of mean F by which gSVM is ahead [95 % bootstrap interval of the difference]; an interval"
        " that holds 0 is no evidence either way."
    )
    columns = ("data set", "grid", *(f"over {METHOD_TITLES[method]}" for method in OTHERS))
    return Table("gSVM against the others", note, columns, tuple(rows), notes_on(row[0] for row in rows))


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
        "One raw row in, one answer out, one thread, products in compiled code. The teacher is one matrix"
        " product and an argmax; by Remark 2 it scores class by class and stops at the first that wins."
        " Teacher and students share the basis functions, whose cost all pay; the last column leaves them"
        " out."
    )
    return Table("Inference time", note, columns, tuple(rows))


def _search(outcome: Outcome) -> str:
    plan = plan_for(outcome.data_set, outcome.grid)  # type: ignore[arg-type]
    if outcome.joint:
        used = {"one point for all classes": None}
    else:
        used = dict.fromkeys(str(plan.strategy_of(run.split)) for run in outcome.runs)
    groups = " by groups" if plan.by_groups and outcome.setting.get("grouped") else ""
    return f"{' then '.join(used)}, {plan.folds} folds{groups}"


def _measure_columns() -> list[str]:
    return [f"{statistic} {MEASURE_TITLES[measure]}" for statistic in STATISTICS for measure in MEASURES]


def _against(cell: Cell, paper: float | None) -> str:
    ours = f"{cell.value:.2f} [{cell.low:.2f}, {cell.high:.2f}]"
    return ours if paper is None else f"{ours} / {paper:.2f} ({cell.value - paper:+.2f})"


def _measures(metrics: dict[str, float | None]) -> str:
    return " / ".join(_per_cent(metrics[measure]) for measure in MEASURES)


def _per_cent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.2f}"
