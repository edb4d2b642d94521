"""What the report shows: the newest complete results of every part, taken from a work folder and stored."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Any

from lab.experiments.compact import summarise_compact
from lab.experiments.paper import FIGURES, GOAL_SETS, METHODS, published
from lab.experiments.plans import CURVES, DATA_SETS, GRIDS, Effort, as_record, plan_for
from lab.experiments.probabilities import GRID, summarise_probabilities
from lab.experiments.report.outcomes import Outcome, summarise_protocol
from lab.experiments.store import Record, Store, recipe_of


@dataclass(frozen=True, slots=True)
class Results:
    """outcomes: of the protocol, in the order of the plans. The others by data set."""

    outcomes: list[Outcome]
    curves: dict[str, Record]
    probabilities: dict[str, Record]

    def outcome(self, data_set: str, grid: str) -> Outcome | None:
        """The results of a data set on a grid, if there are any."""
        same = (one for one in self.outcomes if (one.data_set, one.grid) == (data_set, grid))
        return next(same, None)

    def states(self) -> list[Record]:
        """Every planned run: its splits, or numbers of landmarks, that are done, and how many are planned."""
        done: dict[tuple[str, str, str], tuple[int, int]] = {}
        for data_set, grid in product(DATA_SETS, GRIDS):
            outcome, planned = self.outcome(data_set, grid), plan_for(data_set, grid).splits
            done["protocol", data_set, grid] = 0 if outcome is None else len(outcome["runs"]), planned
        for data_set in DATA_SETS:
            done["probabilities", data_set, GRID] = int(data_set in self.probabilities), 1
        for data_set, plan in CURVES.items():
            points = self.curves[data_set]["points"] if data_set in self.curves else ()
            done["compact", data_set, "–"] = len(points), len(plan.sizes)
        names = ("part", "data_set", "grid", "done", "planned")
        return [dict(zip(names, (*run, *counts), strict=True)) for run, counts in done.items()]

    def missing(self) -> list[Record]:
        """The planned runs that are not complete."""
        return [one for one in self.states() if one["done"] < one["planned"]]

    def seconds(self) -> dict[str, float]:
        """Wall time by part, of the records that are shown."""
        parts: dict[str, Any] = {
            "protocol": self.outcomes,
            "probabilities": self.probabilities.values(),
            "compact": self.curves.values(),
        }
        return {part: sum(float(one["seconds"]) for one in records) for part, records in parts.items()}


def update(kept: Store, work: Store, effort: Effort) -> None:
    """Store every complete result of a work folder, unless the stored one has more splits."""
    for data_set, grid in product(DATA_SETS, GRIDS):
        record, recipe = summarise_protocol(work, data_set, grid), _recipe(plan_for(data_set, grid), effort)
        stored = kept.read(f"{data_set}/{grid}", recipe)
        if record is not None and (stored is None or len(stored["runs"]) <= len(record["runs"])):
            kept.write(f"{data_set}/{grid}", recipe, record)
    for data_set, plan in CURVES.items():
        if curve := summarise_compact(work, data_set):
            kept.write(f"{data_set}/compact", _recipe(plan, effort), curve)
    for data_set in DATA_SETS:
        if record := summarise_probabilities(work, data_set):
            kept.write(f"{data_set}/probabilities", _recipe(record["protocol"], effort), record)


def read(kept: Store, effort: Effort) -> Results:
    """The stored results that were made by the present plans with this seed and number of replicates."""

    def stored(part: str, basis_of: dict[str, Any]) -> dict[str, Record]:
        found = {name: kept.read(f"{name}/{part}", _recipe(one, effort)) for name, one in basis_of.items()}
        return {name: record for name, record in found.items() if record is not None}

    by_grid = {grid: stored(grid, {name: plan_for(name, grid) for name in DATA_SETS}) for grid in GRIDS}
    outcomes = [
        Outcome(name, grid, by_grid[grid][name])
        for name, grid in product(DATA_SETS, GRIDS) if name in by_grid[grid]
    ]  # fmt: skip
    protocols = {name: record["setting"]["recipe"] for name, record in by_grid[GRID].items()}
    return Results(outcomes, stored("compact", dict(CURVES)), stored("probabilities", protocols))


def _recipe(basis: Any, effort: Effort) -> str:
    """The recipe of a stored result. basis: its plan, or the recipe of the protocol that it belongs to."""
    return recipe_of(basis if isinstance(basis, str) else as_record(basis), effort.seed, effort.replicates)


def goal_cells(results: Results, method: str = "gsvm", grid: str = "open") -> list[Record]:
    """The 30 cells of a method on a grid against the paper's gSVM, each with the reason if it is missed.

    ours: None where the data set has not been run. reached: compared as the paper prints, with two decimals.
    """
    cells = []
    for data_set, (statistic, measure) in product(GOAL_SETS, FIGURES):
        outcome, paper = results.outcome(data_set, grid), published(data_set, "gsvm", statistic, measure)
        if paper is None:
            raise LookupError(f"Table 3 has no figures for {data_set}")
        cell: Record = {"data_set": data_set, "statistic": statistic, "measure": measure, "ours": None}
        cell |= {"paper": paper, "reason": "not run", "reached": False}
        if outcome is not None:
            ours, low, high = outcome.cell(method, statistic, measure)
            where = "inside" if low <= paper <= high else "outside"
            teacher = outcome.value("teacher", statistic, measure)
            reason = f"the paper's figure is {where} our 95 % interval {low:.2f} to {high:.2f};"
            reason += f" our teacher has {teacher:.2f}{_smallest_class(outcome)}"
            cell |= {"ours": ours, "reason": reason, "reached": round(ours, 2) >= paper}
        cells.append(cell)
    return cells


def cells_by_grid(results: Results) -> dict[str, dict[str, int]]:
    """How many of the 30 cells each method reaches, by grid."""
    return {
        grid: {method: sum(one["reached"] for one in goal_cells(results, method, grid)) for method in METHODS}
        for grid in GRIDS
    }


def _smallest_class(outcome: Outcome) -> str:
    records = outcome["per_class"]["teacher"]
    count, label = min((one["metrics"]["tp"] + one["metrics"]["fn"], one["label"]) for one in records)
    return "" if count >= 20 else f"; class {label} has {count} test row{'' if count == 1 else 's'}"
