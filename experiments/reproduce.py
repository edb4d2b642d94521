"""The whole run: every part, data set and split asked for, with progress and an estimated finish."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal, Protocol, TypeAlias, get_args

from experiments import compact_curve, probabilities, sparse_query
from experiments.data import DataMissing, load
from experiments.effort import Effort
from experiments.forecast import Forecast
from experiments.plans import GridName, plan_for
from experiments.protocol import Protocol as PaperProtocol
from experiments.results import ResultStore, Run
from experiments.resumable import Step
from experiments.setting import Tell

Part: TypeAlias = Literal["protocol", "probabilities", "sparse", "compact"]
PARTS: tuple[Part, ...] = get_args(Part)
"""In the order in which they are done."""


class Work(Protocol):
    """Records that are made one after the other. recipe: what they depend on."""

    recipe: str

    def costs(self) -> dict[str, float]:
        """Every record with its cost."""

    def steps(self) -> Iterator[Step]:
        """Make what is missing."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What is to be done. max_splits: at most so many splits a data set.

    skip_missing: go on without data sets that are not there; the report lists them.
    """

    data_sets: Sequence[str]
    grids: Sequence[GridName]
    parts: Sequence[Part] = PARTS
    max_splits: int | None = None
    skip_missing: bool = False


@dataclass(frozen=True, slots=True)
class Update:
    """How far the run is.

    run, name: the record that is there now. done, total: records. new: whether it was made now.
    seconds_left: estimated from what was measured so far; None before anything was. note: what was found.
    """

    run: Run
    name: str
    done: int
    total: int
    new: bool
    seconds_left: float | None
    note: str = ""


Listener = Callable[[Update], None]


@dataclass(frozen=True, slots=True)
class _Job:
    """One part of one run, opened when its turn comes: the data of all of them would not fit at once."""

    run: Run
    open: Callable[[Tell], Work]


def reproduce(asked: Asked, folder: Path, store: ResultStore, effort: Effort, listen: Listener) -> None:
    """Make every record that is missing in ``store``; one that is there is not made again.

    Raises DataMissing, InvalidProblem.
    """
    forecast = Forecast()
    planned: list[tuple[_Job, list[str]]] = []
    missing: set[str] = set()
    for job in _jobs(asked, folder, store, effort):
        if job.run.data_set in missing:
            continue
        # The sizes of all data are needed for the estimate; the data themselves only one at a time.
        try:
            work = job.open(_silent)
        except DataMissing as error:
            if not asked.skip_missing:
                raise
            missing.add(job.run.data_set)
            listen(Update(job.run, "data", 0, 0, True, None, f"not run: {error}"))
            continue
        costs = work.costs()
        planned.append((job, list(costs)))
        _expect(forecast, store, job.run, work.recipe, costs)
    if not planned:
        raise DataMissing("There is nothing to do: no data set asked for has the parts and grids asked for.")
    total, done = sum(len(names) for _, names in planned), 0
    for job, names in planned:
        tell = partial(_tell, listen, job.run, done, total)
        try:
            _run(job, tell, store, forecast, listen, done, total)
        except probabilities.NeedsProtocol as error:
            tell(f"not run: {error}")
        forecast.give_up(job.run, names)
        done += len(names)


def _run(
    job: _Job,
    tell: Tell,
    store: ResultStore,
    forecast: Forecast,
    listen: Listener,
    done: int,
    total: int,
) -> None:
    """The steps of one job, each told with the time that is left."""
    for step in job.open(tell).steps():
        done += 1
        if step.new:
            record = store.read(job.run, step.name)
            forecast.observe(job.run, step.name, step.cost, float(record["seconds"]) if record else 0.0)
        listen(Update(job.run, step.name, done, total, step.new, forecast.seconds_left))


def _expect(forecast: Forecast, store: ResultStore, run: Run, recipe: str, costs: dict[str, float]) -> None:
    """Learn from the records that are there, and expect the others."""
    for name, cost in costs.items():
        record = store.read(run, name, recipe)
        if record is None:
            forecast.expect(run, name, cost)
        else:
            forecast.observe(run, name, cost, float(record["seconds"]))


def _jobs(asked: Asked, folder: Path, store: ResultStore, effort: Effort) -> Iterator[_Job]:
    """All parts in order: probabilities and sparse queries start from what the protocol has found."""
    for part in PARTS:
        if part not in asked.parts:
            continue
        for data_set in asked.data_sets:
            for run in _runs(part, data_set, asked):
                yield _Job(run, partial(_OPEN[part], run, folder, store, effort))


def _runs(part: Part, data_set: str, asked: Asked) -> list[Run]:
    """What a part does on a data set; nothing where it has no plan for it."""
    if part == "protocol":
        most = asked.max_splits or 1_000
        return [
            Run(data_set, grid, split)
            for grid in asked.grids
            for split in range(min(plan_for(data_set, grid).splits, most))
        ]
    if part == "compact":
        return [compact_curve.run_of(data_set)] if data_set in compact_curve.CURVES else []
    planned = part == "probabilities" or data_set in sparse_query.DATA_SETS
    return [Run(data_set, probabilities.GRID, 0)] if planned and probabilities.GRID in asked.grids else []


def _protocol(run: Run, folder: Path, store: ResultStore, effort: Effort, tell: Tell) -> PaperProtocol:
    plan = plan_for(run.data_set, run.grid)  # type: ignore[arg-type]
    return PaperProtocol(plan, run, load(run.data_set, folder, run.split), store, effort, tell)


def _after_protocol(
    kind: type[probabilities.Probabilities | sparse_query.SparseQuery],
    run: Run,
    folder: Path,
    store: ResultStore,
    effort: Effort,
    tell: Tell,
) -> Work:
    plan = plan_for(run.data_set, run.grid)  # type: ignore[arg-type]
    data = load(run.data_set, folder, run.split)
    recipe = PaperProtocol(plan, run, data, store, effort, tell).recipe
    return kind(recipe, plan, run, data, store, effort)


def _curve(run: Run, folder: Path, store: ResultStore, effort: Effort, tell: Tell) -> Work:  # noqa: ARG001
    plan = compact_curve.CURVES[run.data_set]
    return compact_curve.CompactCurve(plan, run, load(run.data_set, folder), store, effort)


_OPEN: dict[Part, Callable[[Run, Path, ResultStore, Effort, Tell], Work]] = {
    "protocol": _protocol,
    "probabilities": partial(_after_protocol, probabilities.Probabilities),
    "sparse": partial(_after_protocol, sparse_query.SparseQuery),
    "compact": _curve,
}


def _tell(listen: Listener, run: Run, done: int, total: int, note: str) -> None:
    """Pass on what was found; the search for a setting is the first step of a run."""
    listen(Update(run, "setting", done, total, True, None, note))


def _silent(note: str) -> None:
    """Nobody listens while costs are counted."""
