"""What a reader has to be told beside the tables: what falls short, how it was searched. From data only."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import numpy as np

from experiments.gathered import Gathered
from experiments.goals import COMPACT, compact_faults, goal_cells, order_faults, teacher_faults
from experiments.paper import MEASURES, METHOD_TITLES
from experiments.plans import plan_for
from experiments.results import Record
from experiments.summary import Cell, Outcome, Summary

_PAPER_FOLDS = 10
_OPTIMISM = 5.0
"""Points by which held-out folds may be better than the test part before it is worth a remark."""


def findings(gathered: Gathered) -> list[str]:
    """What was to be shown, and whether it was."""
    summary = gathered.summary
    cells = goal_cells(summary)
    missed = [cell for cell in cells if not cell.reached]
    lines = [f"Open grid: {len(cells) - len(missed)} of {len(cells)} cells are at or above the paper's gSVM."]
    lines += [f"Open grid: {fault}." for fault in teacher_faults(summary)]
    order = order_faults(summary)
    lines += [f"Paper's grid, order of methods: {fault}." for fault in order]
    if not order and any("paper" in grids for grids in summary.values()):
        lines.append("Paper's grid: gSVM ≥ gSVM-0 ≥ SVM in every mean.")
    short = compact_faults(gathered.curves)
    lines += [f"Compact students: {fault}." for fault in short]
    if not short and any(data_set in gathered.curves for data_set in COMPACT):
        lines.append("Compact students: every mean F that was to be reached is reached.")
    return lines


def remarks(gathered: Gathered) -> list[str]:
    """How it was searched, and what weakens the figures."""
    outcomes = [outcome for grids in gathered.summary.values() for outcome in grids.values()]
    lines = [_looked_at(outcomes)] if outcomes else []
    for title, named in (
        (
            "On the paper's grid the students were searched by successive halving, not exhaustively, on",
            _by_halving(outcomes),
        ),
        (f"Fewer than {_PAPER_FOLDS} folds were used for the students on", _fewer_folds(outcomes)),
        ("The largest teacher C that could be chosen was chosen on", _largest_teacher(outcomes)),
        ("γ lies at the end of what was tried on", _gamma_at_the_end(outcomes)),
        ("gSVM students chose the largest C of their grid:", _largest_C(outcomes)),
        (
            f"gSVM was more than {_OPTIMISM:g} points better on held-out rows than on the test part on",
            _optimistic(outcomes),
        ),
        ("Solvers stopped before their gap was reached:", _not_converged(outcomes)),
        ("gSVM is behind in mean F, and the interval of its lead lies below 0:", _behind(outcomes)),
        ("The interval of gSVM's lead in mean F holds 0, so that no order is shown:", _unclear(outcomes)),
        ("The curve's teacher is another one than the open grid's; mean F:", _two_teachers(gathered)),
        (
            "Students that were trained again for their probabilities differ from the protocol's on",
            _others(gathered),
        ),
        ("Calibrated probabilities are no better than the share of the class on", _no_skill(gathered)),
        (
            "Taken from an earlier report's files, made by the same plan with the same seed:",
            gathered.shelved,
        ),
    ):
        found = list(named)
        if found:
            lines.append(f"{title} {'; '.join(found)}.")
    return lines


def _name(outcome: Outcome) -> str:
    return f"{outcome.data_set} ({outcome.grid})"


def _looked_at(outcomes: list[Outcome]) -> str:
    teachers = sum(outcome.tried.teachers for outcome in outcomes)
    points = sum(outcome.tried.points for outcome in outcomes)
    return (
        f"{teachers} settings of map and teacher and {points} points of students were looked at in the runs"
        " that are shown, all on folds of training parts; what was chosen was measured on the test part."
        " Looks at a test part before these runs are in the notes on its data set."
    )


def _by_halving(outcomes: list[Outcome]) -> Iterator[str]:
    for outcome in outcomes:
        if outcome.grid == "paper":
            strategies = [plan_for(outcome.data_set, "paper").strategy_of(run.split) for run in outcome.runs]
            halved = strategies.count("halving")
            if halved:
                splits = "" if len(strategies) == 1 else f", {halved} of {len(strategies)} splits"
                yield f"{outcome.data_set}{splits}"


def _fewer_folds(outcomes: list[Outcome]) -> Iterator[str]:
    for outcome in outcomes:
        folds = plan_for(outcome.data_set, outcome.grid).folds  # type: ignore[arg-type]
        if folds < _PAPER_FOLDS:
            yield f"{_name(outcome)}: {folds}"


def _largest_teacher(outcomes: list[Outcome]) -> Iterator[str]:
    for outcome in outcomes:
        values = plan_for(outcome.data_set, outcome.grid).search.teacher_C  # type: ignore[arg-type]
        if outcome.setting["teacher_C"] >= max(values):
            yield _name(outcome)


def _gamma_at_the_end(outcomes: list[Outcome]) -> Iterator[str]:
    for outcome in outcomes:
        chosen = outcome.setting["features"]
        tried = {
            one["features"]["gamma"]
            for one in outcome.setting["trace"]
            if one["features"]["scaling"] == chosen["scaling"]
        }
        if len(tried) > 1 and chosen["gamma"] in {min(tried), max(tried)}:
            yield _name(outcome)


def _largest_C(outcomes: list[Outcome]) -> Iterator[str]:  # noqa: N802
    for outcome in outcomes:
        largest = max(plan_for(outcome.data_set, outcome.grid).grid.C)  # type: ignore[arg-type]
        records = outcome.per_class["gsvm"]
        count = sum(record["chosen"]["C"] >= largest for record in records)
        if count:
            yield f"{_name(outcome)} {count} of {len(records)}"


def _optimistic(outcomes: list[Outcome]) -> Iterator[str]:
    for outcome in outcomes:
        records = [one for one in outcome.per_class["gsvm"] if None not in _values(one)]
        measures = MEASURES if outcome.joint else ("f1",)
        test = 100.0 * np.mean([record["metrics"][measure] for record in records for measure in measures])
        held_out = 100.0 * np.mean([record["chosen"]["cv_score"] for record in records])
        if held_out - test > _OPTIMISM:
            what = "mean of accuracy, F and AUC" if outcome.joint else "F"
            split = outcome.runs[0].split
            yield f"{_name(outcome)}: {what} {held_out:.1f} against {test:.1f} on split {split}"


def _values(record: Record) -> list[float | None]:
    return [record["metrics"][measure] for measure in MEASURES]


def _not_converged(outcomes: list[Outcome]) -> Iterator[str]:
    for outcome in outcomes:
        records = [record for method in ("svm", "gsvm0", "gsvm") for record in outcome.per_class[method]]
        count = sum(record["solution"]["status"] != "converged" for record in records)
        if count:
            yield f"{_name(outcome)} {count} of {len(records)} students"


def _unclear(outcomes: list[Outcome]) -> Iterator[str]:
    return _over(outcomes, lambda lead: lead.low <= 0.0 <= lead.high)


def _behind(outcomes: list[Outcome]) -> Iterator[str]:
    return _over(outcomes, lambda lead: lead.high < 0.0)


def _over(outcomes: list[Outcome], holds: Callable[[Cell], bool]) -> Iterator[str]:
    """Where gSVM's lead in mean F over one of the other students is such."""
    for outcome in outcomes:
        named = [
            METHOD_TITLES[method] for method in ("gsvm0", "svm") if holds(outcome.lead(method, "mean", "f1"))
        ]
        if named:
            yield f"{_name(outcome)} over {' and '.join(named)}"


def _two_teachers(gathered: Gathered) -> Iterator[str]:
    summary: Summary = gathered.summary
    for data_set, curve in gathered.curves.items():
        outcome = summary.get(data_set, {}).get("open")
        if outcome is not None:
            ours = outcome.value("teacher", "mean", "f1")
            yield f"{data_set} {curve.teacher_f1:.2f} against {ours:.2f}"


def _no_skill(gathered: Gathered) -> Iterable[str]:
    for data_set, found in gathered.probabilities.items():
        for calibrated in found.kinds.values():
            poor = [one.label for one in calibrated.classes if one.brier >= one.base_brier]
            if poor:
                yield f"{data_set} ({calibrated.kind}): class {', '.join(poor)}"


def _others(gathered: Gathered) -> Iterator[str]:
    for data_set, found in gathered.probabilities.items():
        if found.other_students:
            yield f"{data_set}: class {', '.join(found.other_students)}"
