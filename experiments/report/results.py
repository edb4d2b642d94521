"""What the report shows: the newest complete results of every part, taken from a work folder and stored."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from experiments.compact import summarise_compact
from experiments.data import TEXT_SETS
from experiments.paper import GOAL_SETS, MEASURES, STATISTICS, Measure, Statistic, published
from experiments.plans import CURVES, DATA_SETS, GRIDS, Effort, GridName, plan_for
from experiments.probabilities import GRID, summarise_probabilities
from experiments.sparse import summarise_sparse
from experiments.stats import Outcome, outcome_recipe, summarise_protocol
from experiments.store import Record, Run, Store, recipe_of

_ABSENT = "not run, or not complete"
_AFTER_PROTOCOL: dict[str, Callable[[Store, str], Record | None]] = {
    "probabilities": summarise_probabilities,
    "sparse": summarise_sparse,
}


@dataclass(frozen=True, slots=True)
class Results:
    """outcomes: of the protocol, in the order of the plans. The others by data set.

    missing: planned runs that are not complete, each a record with part, data_set, grid and state.
    planned: the number of all planned runs.
    """

    outcomes: list[Outcome] = field(default_factory=list)
    curves: dict[str, Record] = field(default_factory=dict)
    probabilities: dict[str, Record] = field(default_factory=dict)
    sparse: dict[str, Record] = field(default_factory=dict)
    missing: list[Record] = field(default_factory=list)
    planned: int = 0

    def outcome(self, data_set: str, grid: str) -> Outcome | None:
        """The results of a data set on a grid, if there are any."""
        same = (one for one in self.outcomes if (one.data_set, one.grid) == (data_set, grid))
        return next(same, None)

    def seconds(self) -> dict[str, float]:
        """Wall time by part, of the records that are shown."""
        parts = {"probabilities": self.probabilities, "sparse": self.sparse, "compact": self.curves}
        return {"protocol": sum(float(one["seconds"]) for one in self.outcomes)} | {
            part: sum(float(record["seconds"]) for record in records.values())
            for part, records in parts.items()
        }


def update(kept: Store, work: Store, effort: Effort) -> None:
    """Store every complete result of a work folder, unless the stored one has more splits."""
    for data_set, grid in _protocol_runs():
        record, recipe = (
            summarise_protocol(work, data_set, grid),
            outcome_recipe(plan_for(data_set, grid), effort),
        )
        stored = kept.read(f"{data_set}/{grid}", recipe)
        if record is not None and (stored is None or len(stored["runs"]) <= len(record["runs"])):
            kept.write(f"{data_set}/{grid}", recipe, record)
    for data_set in CURVES:
        curve = summarise_compact(work, data_set)
        if curve is not None:
            kept.write(f"{data_set}/compact", recipe_of(curve["plan"], effort.seed, effort.replicates), curve)
    for part, summarise in _AFTER_PROTOCOL.items():
        for data_set in DATA_SETS:
            record = summarise(work, data_set)
            if record is not None:
                recipe = recipe_of(record["protocol"], effort.seed, effort.replicates)
                kept.write(f"{data_set}/{part}", recipe, record)


def read(kept: Store, work: Store, effort: Effort) -> Results:
    """The stored results that were made by the present plans with this seed and number of replicates."""

    def stored(part: str, recipe_parts: dict[str, object]) -> dict[str, Record]:
        recipes = {name: recipe_of(one, effort.seed, effort.replicates) for name, one in recipe_parts.items()}
        records = {name: kept.read(f"{name}/{part}", recipe) for name, recipe in recipes.items()}
        return {name: record for name, record in records.items() if record is not None}

    found = {
        key: kept.read("/".join(key), outcome_recipe(plan_for(*key), effort)) for key in _protocol_runs()
    }
    outcomes = [Outcome(*key, record) for key, record in found.items() if record is not None]
    protocols = {one.data_set: one["setting"]["recipe"] for one in outcomes if one.grid == GRID}
    results = Results(
        outcomes,
        stored("compact", {name: plan.as_dict() for name, plan in CURVES.items()}),
        stored("probabilities", protocols),
        stored("sparse", protocols),
    )
    states = list(_states(results, work))
    return replace(results, missing=[one for one in states if not one["complete"]], planned=len(states))


def _protocol_runs() -> Iterator[tuple[str, GridName]]:
    return ((data_set, grid) for data_set in DATA_SETS for grid in GRIDS)


def _states(results: Results, work: Store) -> Iterator[Record]:
    """Every planned run with its state."""
    for data_set, grid in _protocol_runs():
        outcome, planned = results.outcome(data_set, grid), plan_for(data_set, grid).splits
        done, stored = (0 if outcome is None else len(outcome["runs"])), work.count(Run(data_set, grid, 0))
        unfinished = f"not complete: {stored} records of split 0" if stored else "not run"
        text = f"{done} of {planned} splits" if done else unfinished
        yield _state("protocol", data_set, grid, done == planned, text)
    for data_set in DATA_SETS:
        yield _state("probabilities", data_set, GRID, data_set in results.probabilities)
    for data_set in DATA_SETS:
        if data_set in TEXT_SETS:
            yield _state("sparse queries", data_set, GRID, data_set in results.sparse)
    for data_set, plan in CURVES.items():
        done, planned = len(results.curves.get(data_set, {"points": []})["points"]), len(plan.sizes)
        text = f"{done} of {planned} numbers of landmarks" if done else _ABSENT
        yield _state("compact", data_set, "–", done == planned, text)


def _state(part: str, data_set: str, grid: str, complete: bool, text: str = _ABSENT) -> Record:
    return {
        "part": part,
        "data_set": data_set,
        "grid": grid,
        "complete": complete,
        "state": "complete" if complete else text,
    }


@dataclass(frozen=True, slots=True)
class GoalCell:
    """One of our figures against the paper's gSVM. ours: None where the data set has not been run."""

    data_set: str
    statistic: Statistic
    measure: Measure
    ours: float | None
    paper: float
    reason: str

    @property
    def reached(self) -> bool:
        """Compared as the paper prints: with two decimals."""
        return self.ours is not None and round(self.ours, 2) >= self.paper


def goal_cells(results: Results, method: str = "gsvm", grid: str = "open") -> list[GoalCell]:
    """The 30 cells of a method on a grid against the paper's gSVM, each with the reason if it is missed."""
    cells = []
    for data_set in GOAL_SETS:
        outcome = results.outcome(data_set, grid)
        for statistic in STATISTICS:
            for measure in MEASURES:
                paper = published(data_set, "gsvm", statistic, measure)
                if paper is None:
                    raise LookupError(f"Table 3 has no figures for {data_set}")
                ours, reason = None, "not run"
                if outcome is not None:
                    cell = outcome.cell(method, statistic, measure)
                    ours, where = cell.value, "inside" if cell.low <= paper <= cell.high else "outside"
                    reason = (
                        f"the paper's figure is {where} our 95 % interval {cell.low:.2f} to {cell.high:.2f};"
                        f" our teacher has {outcome.value('teacher', statistic, measure):.2f}"
                        + _smallest_class(outcome)
                    )
                cells.append(GoalCell(data_set, statistic, measure, ours, paper, reason))
    return cells


def _smallest_class(outcome: Outcome) -> str:
    records = outcome["per_class"]["teacher"]
    counts = {one["label"]: one["metrics"]["tp"] + one["metrics"]["fn"] for one in records}
    label = min(counts, key=lambda name: int(counts[name]))
    if counts[label] >= 20:
        return ""
    return f"; class {label} has {counts[label]} test row{'' if counts[label] == 1 else 's'}"
