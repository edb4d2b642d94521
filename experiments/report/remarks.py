"""Findings and remarks of the report, computed from the stored results only."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from core.model_selection.joint import overall_score
from experiments.paper import GOAL_SETS, MEASURE_TITLES, MEASURES, METHOD_TITLES, METHODS
from experiments.plans import GRIDS
from experiments.report.results import Results, goal_cells
from experiments.report.tables import prose
from experiments.stats import Outcome
from experiments.store import Record

NEAR_TEACHER = {"letter": 1.0, "satimage": 1.0, "shuttle": 1.0}
"""Points of mean F that gSVM may be below its own teacher on the open grid."""

COMPACT = {"letter": {100: 90.0, 200: 93.0}}
"""Mean F, in per cent, to be reached with so many landmarks."""

_ORDER = ("gsvm", "gsvm0", "svm")
_PAPER_FOLDS = 10
_OPTIMISM = 5.0
"""Points by which held-out folds may be better than the test part before the report says so."""


def findings(results: Results) -> list[str]:
    """What was to be shown, and whether it was."""
    cells = goal_cells(results)
    reached = sum(cell.reached for cell in cells)
    seen = [name for name in prose()["looked_at"] if name in GOAL_SETS and results.outcome(name, "open")]
    lines = [
        f"Open grid: {reached} of {len(cells)} cells are at or above the paper's gSVM."
        + (f" The test parts of {', '.join(seen)} were looked at before: see their notes." if seen else "")
    ]
    for grid in GRIDS:
        counts = [
            f"{METHOD_TITLES[method]} {sum(cell.reached for cell in goal_cells(results, method, grid))}"
            for method in METHODS
        ]
        lines.append(
            f"Cells at or above the paper's gSVM, of {len(cells)}, {grid} grid: {', '.join(counts)}."
        )
    ahead = [one.name for one in results.outcomes if one.lead("gsvm0").low > 0.0]
    lines.append(
        "Difficulty (gSVM over gSVM-0) gains mean F, with an interval above 0, on:"
        f" {', '.join(ahead) or 'none of the data sets'}."
    )
    lines += [f"Open grid: {fault}." for fault in teacher_faults(results)]
    order = order_faults(results)
    lines += [f"Paper's grid, order of methods: {fault}." for fault in order]
    if not order and any(one.grid == "paper" for one in results.outcomes):
        lines.append("Paper's grid: gSVM ≥ gSVM-0 ≥ SVM in every mean.")
    short = compact_faults(results)
    lines += [f"Compact students: {fault}." for fault in short]
    if not short and any(data_set in results.curves for data_set in COMPACT):
        lines.append("Compact students: every mean F that was to be reached is reached.")
    return lines


def order_faults(results: Results, grid: str = "paper") -> list[str]:
    """Where gSVM ≥ gSVM-0 ≥ SVM does not hold in the means over classes, one sentence each."""
    faults = []
    for outcome in results.outcomes:
        for measure in MEASURES if outcome.grid == grid else ():
            values = [round(outcome.value(method, "mean", measure), 2) for method in _ORDER]
            if values != sorted(values, reverse=True):
                shown, title = " / ".join(f"{value:.2f}" for value in values), MEASURE_TITLES[measure]
                faults.append(f"{outcome.data_set}: mean {title} of gSVM / gSVM-0 / SVM is {shown}")
    return faults


def teacher_faults(results: Results) -> list[str]:
    """Where gSVM of the open grid is further below its teacher's mean F than it may be."""
    gaps = {name: -o.lead("teacher").value for name in NEAR_TEACHER if (o := results.outcome(name, "open"))}
    return [
        f"{name}: gSVM is {gap:.2f} points of mean F below its teacher"
        for name, gap in gaps.items()
        if gap > NEAR_TEACHER[name]
    ]


def compact_faults(results: Results) -> list[str]:
    """Where compact students have less than the mean F that they are to have."""
    return [
        f"{name}: mean F with {point['landmarks']} landmarks is {point['f1']:.2f}, below {least:g}"
        for name, goals in COMPACT.items()
        for point in results.curves.get(name, {"points": []})["points"]
        if point["f1"] < (least := goals.get(point["landmarks"], 0.0))
    ]


def remarks(results: Results) -> list[str]:
    """How the search was done, and what weakens the figures."""
    outcomes = results.outcomes
    named: dict[str, Iterable[str]] = {
        "On the paper's grid the students were searched by successive halving, not exhaustively, on": (
            _by_halving(outcomes)
        ),
        f"Fewer than {_PAPER_FOLDS} folds were used for the students on": (
            f"{one.name}: {one.plan.folds}" for one in outcomes if one.plan.folds < _PAPER_FOLDS
        ),
        "The largest teacher C that could be chosen was chosen on": (
            one.name for one in outcomes if one["setting"]["teacher_C"] >= max(one.plan.search.teacher_C)
        ),
        "γ lies at the end of the values that were tried on": _gamma_at_the_end(outcomes),
        "gSVM students chose the largest C of their grid:": (
            f"{one.name} {count} of {len(records)}"
            for one in outcomes
            if (records := one["per_class"]["gsvm"])
            and (count := sum(record["chosen"]["C"] >= max(one.plan.grid.C) for record in records))
        ),
        f"gSVM was more than {_OPTIMISM:g} points better on held-out rows than on the test part on": (
            _optimistic(outcomes)
        ),
        "Solvers stopped before their gap was reached:": (
            f"{one.name} {count} of {len(records)} students"
            for one in outcomes
            if (records := [record for method in _ORDER for record in one["per_class"][method]])
            and (count := sum(record["solution"]["status"] != "converged" for record in records))
        ),
        "gSVM is behind in mean F, and the interval of its lead lies below 0:": _leads(outcomes, behind=True),
        "The interval of gSVM's lead in mean F contains 0, so that no order is shown:": (
            _leads(outcomes, behind=False)
        ),
        "The curve's teacher is another one than the open grid's; mean F:": (
            f"{name} {curve['teacher_f1']:.2f} against {outcome.value('teacher', 'mean', 'f1'):.2f}"
            for name, curve in results.curves.items()
            if (outcome := results.outcome(name, "open"))
        ),
        "Students that were trained again for their probabilities differ from the protocol's on": (
            f"{name}: class {', '.join(record['other_students'])}"
            for name, record in results.probabilities.items()
            if record["other_students"]
        ),
        "Calibrated probabilities are no better than the share of the class on": (
            f"{name} ({kind}): class {', '.join(poor)}"
            for name, record in results.probabilities.items()
            for kind, one in record["kinds"].items()
            if (poor := [each["label"] for each in one["classes"] if each["brier"] >= each["base_brier"]])
        ),
    }
    sentences = [f"{title} {'; '.join(found)}." for title, names in named.items() if (found := list(names))]
    return [*_looked_at(outcomes), *sentences]


def _looked_at(outcomes: Sequence[Outcome]) -> Iterator[str]:
    teachers = sum(outcome["tried"]["teachers"] for outcome in outcomes)
    points = sum(outcome["tried"]["points"] for outcome in outcomes)
    if outcomes:
        yield (
            f"{teachers} settings of map and teacher and {points} points of students were looked at in the"
            " runs that are shown, all on folds of training parts; what was chosen was measured on the test"
            " part. Looks at a test part before these runs are in the notes on its data set."
        )


def _by_halving(outcomes: Sequence[Outcome]) -> Iterator[str]:
    for outcome in outcomes:
        strategies = [outcome.plan.strategy_of(split) for split in outcome["runs"]]
        halved = strategies.count("halving")
        if outcome.grid == "paper" and halved:
            splits = "" if len(strategies) == 1 else f", {halved} of {len(strategies)} splits"
            yield f"{outcome.data_set}{splits}"


def _gamma_at_the_end(outcomes: Sequence[Outcome]) -> Iterator[str]:
    for outcome in outcomes:
        chosen, trace = outcome["setting"]["features"], outcome["setting"]["trace"]
        features = [one["features"] for one in trace]
        tried = {one["gamma"] for one in features if one["scaling"] == chosen["scaling"]}
        if len(tried) > 1 and chosen["gamma"] in {min(tried), max(tried)}:
            yield outcome.name


def _optimistic(outcomes: Sequence[Outcome]) -> Iterator[str]:
    """Held-out and test figures of split 0, of the score that the search maximised, in per cent."""
    for outcome in outcomes:
        held_out, test = optimism(outcome)
        if held_out - test > _OPTIMISM:
            what = "overall score" if outcome["joint"] else "F"
            yield f"{outcome.name}: {what} {held_out:.1f} against {test:.1f} on split {outcome['runs'][0]}"


def optimism(outcome: Outcome) -> tuple[float, float]:
    """The score of gSVM on held-out folds and the same score on the test part, in per cent, on split 0.

    With one point for all classes it is ``overall_score`` of the means over classes, otherwise the mean F;
    both over the classes for which all measures are defined on the test part.
    """
    records = [one for one in outcome["per_class"]["gsvm"] if None not in _values(one)]
    if not records:
        return 0.0, 0.0
    means = np.array([_values(record) for record in records], dtype=np.float64).mean(axis=0)
    test = overall_score(means) if outcome["joint"] else means[MEASURES.index("f1")]
    return 100.0 * float(np.mean([one["chosen"]["cv_score"] for one in records])), 100.0 * float(test)


def _values(record: Record) -> list[float | None]:
    return [record["metrics"][measure] for measure in MEASURES]


def _leads(outcomes: Sequence[Outcome], *, behind: bool) -> Iterator[str]:
    """Where the interval of gSVM's lead in mean F over another student is below 0, or contains 0."""
    for outcome in outcomes:
        leads = {method: outcome.lead(method) for method in ("gsvm0", "svm")}
        named = [
            METHOD_TITLES[method]
            for method, lead in leads.items()
            if (lead.high < 0.0 if behind else lead.low <= 0.0 <= lead.high)
        ]
        if named:
            yield f"{outcome.name} over {' and '.join(named)}"
