"""How a student's hyper-parameters are searched for within a training run."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import get_args

from core.data.bounds import not_whole, refuse, unknown_choice
from core.errors import Fault
from core.model_selection.grid import PAPER_GRID, Grid
from core.model_selection.results import Metric, Strategy


@dataclass(frozen=True, slots=True)
class TuningSpec:
    """A search for the C, ε and ϵ of every student. Raises InvalidProblem naming every wrong field.

    grid: the points to try. strategy, metric: see ``tune_student``; the metric is taken at the threshold that
    the run's threshold rule chooses.
    folds: each has a teacher of its own, fitted once for all students.
    """

    grid: Grid = field(default_factory=lambda: PAPER_GRID)
    strategy: Strategy = "halving"
    folds: int = 5
    metric: Metric = "f1"

    def __post_init__(self) -> None:
        refuse(
            None if isinstance(self.grid, Grid) else Fault("tuning.grid", "no_grid", "grid must be a Grid"),
            unknown_choice("tuning.strategy", self.strategy, get_args(Strategy)),
            not_whole("tuning.folds", self.folds, 2, 1000),
            unknown_choice("tuning.metric", self.metric, get_args(Metric)),
        )
