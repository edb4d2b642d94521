"""Findings and remarks of the report, computed from the stored results only."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import product

import numpy as np

from core.model_selection.joint import overall_score
from lab.experiments.paper import MEASURE_TITLES, MEASURES, METHOD_TITLES, METHODS
from lab.experiments.report.outcomes import Outcome
from lab.experiments.report.results import Results, cells_by_grid, goal_cells
from lab.experiments.report.tables import prose
from lab.experiments.store import Record

_ORDER = ("gsvm", "gsvm0", "svm")
_OPTIMISM = 5.0
"""Points by which held-out folds may be better than the test part before the report says so."""


def findings(results: Results) -> list[str]:
    """How many cells of the paper are reached, where difficulty helps, and the order of the methods."""
    lines = list[str]()
    total = len(goal_cells(results))
    for grid, counts in cells_by_grid(results).items():
        shown = [f"{METHOD_TITLES[name]} {counts[name]}" for name in METHODS]
        lines.append(f"Cells at or above the paper's gSVM, of {total}, {grid} grid: {', '.join(shown)}.")
    if seen := [name for name in prose()["looked_at"] if results.outcome(name, "open")]:
        lines.append(f"The test parts of {', '.join(seen)} were looked at before: see their notes.")
    ahead = ", ".join(one.name for one in results.outcomes if one.lead("gsvm0").low > 0.0)
    ahead = ahead or "none of the data sets"
    lines.append(f"Difficulty (gSVM over gSVM-0) gains mean F, with an interval above 0, on: {ahead}.")
    order = order_faults(results)
    lines += [f"Paper's grid, order of methods: {fault}." for fault in order]
    if not order and any(one.grid == "paper" for one in results.outcomes):
        lines.append("Paper's grid: gSVM ≥ gSVM-0 ≥ SVM in every mean.")
    return lines


def order_faults(results: Results) -> list[str]:
    """Where gSVM ≥ gSVM-0 ≥ SVM does not hold in the paper grid's means, one sentence each."""
    faults = []
    for outcome, measure in product([one for one in results.outcomes if one.grid == "paper"], MEASURES):
        values = [round(outcome.value(method, "mean", measure), 2) for method in _ORDER]
        if values != sorted(values, reverse=True):
            shown, title = " / ".join(f"{value:.2f}" for value in values), MEASURE_TITLES[measure]
            faults.append(f"{outcome.data_set}: mean {title} of gSVM / gSVM-0 / SVM is {shown}")
    return faults


def remarks(results: Results) -> list[str]:
    """What weakens the figures and is in no table."""
    outcomes = results.outcomes
    if not outcomes:
        return []
    teachers, points = (sum(one["tried"][what] for one in outcomes) for what in ("teachers", "points"))
    looked_at = (
        f"{teachers} settings of map and teacher and {points} points of students were looked at in the runs"
        " that are shown, all on folds of training parts; what was chosen was measured on the test part."
        " Looks at a test part before these runs are in the notes on its data set."
    )
    named: dict[str, Iterable[str]] = {
        "The largest teacher C that could be chosen was chosen on": (
            one.name for one in outcomes if one["setting"]["teacher_C"] >= max(one.plan.search.teacher_C)
        ),
        "γ lies at the end of the values that were tried on": _gamma_at_the_end(outcomes),
        "gSVM students chose the largest C of their grid:": _students(
            outcomes, ("gsvm",), lambda one, record: record["chosen"]["C"] >= max(one.plan.grid.C)
        ),
        "Solvers stopped before their gap was reached:": _students(
            outcomes, _ORDER, lambda _, record: record["solution"]["status"] != "converged"
        ),
        f"gSVM was more than {_OPTIMISM:g} points better on held-out rows than on the test part on": (
            f"{one.name}: {'overall score' if one['joint'] else 'F'} {held_out:.1f} against {test:.1f}"
            f" on split {one['runs'][0]}"
            for one in outcomes
            for held_out, test in [optimism(one)]
            if held_out - test > _OPTIMISM
        ),
        "Students that were trained again for their probabilities differ from the protocol's on": (
            f"{name}: class {', '.join(record['other_students'])}"
            for name, record in results.probabilities.items()
            if record["other_students"]
        ),
    }
    sentences = [f"{title} {'; '.join(found)}." for title, names in named.items() if (found := list(names))]
    return [looked_at, *sentences]


def _students(
    outcomes: Sequence[Outcome], methods: Sequence[str], applies: Callable[[Outcome, Record], bool]
) -> Iterator[str]:
    """On how many students of each outcome a condition applies."""
    for outcome in outcomes:
        records = [record for method in methods for record in outcome["per_class"][method]]
        count = sum(applies(outcome, record) for record in records)
        if count:
            yield f"{outcome.name} {count} of {len(records)} students"


def _gamma_at_the_end(outcomes: Sequence[Outcome]) -> Iterator[str]:
    for outcome in outcomes:
        chosen = outcome["setting"]["features"]
        features = [one["features"] for one in outcome["setting"]["trace"]]
        tried = {one["gamma"] for one in features if one["scaling"] == chosen["scaling"]}
        if len(tried) > 1 and chosen["gamma"] in {min(tried), max(tried)}:
            yield outcome.name


def optimism(outcome: Outcome) -> tuple[float, float]:
    """The score of gSVM on held-out folds and the same score on the test part, in per cent, on split 0.

    With one point for all classes it is ``overall_score`` of the means over classes, otherwise the mean F;
    both over the classes for which all measures are defined on the test part.
    """
    records = outcome["per_class"]["gsvm"]
    values = np.array([[one["metrics"][measure] for measure in MEASURES] for one in records], dtype=float)
    defined = ~np.isnan(values).any(axis=1)
    if not defined.any():
        return 0.0, 0.0
    means = values[defined].mean(axis=0)
    test = overall_score(means) if outcome["joint"] else means[MEASURES.index("f1")]
    held_out = np.array([one["chosen"]["cv_score"] for one in records])
    return 100.0 * float(held_out[defined].mean()), 100.0 * float(test)
