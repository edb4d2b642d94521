"""How a student's hyper-parameters are searched for within a training run."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from core.errors import Fault
from core.model_selection.grid import PAPER_GRID, Grid
from core.model_selection.options import Metric, Strategy
from core.parameters import Doc, Ge, Le, check_parameters


@dataclass(frozen=True, slots=True)
class TuningSpec:
    """A search for C, ε and ϵ of every student by cross-validation.

    Raises InvalidProblem naming every wrong field.
    """

    grid: Grid = field(default_factory=lambda: PAPER_GRID)
    strategy: Annotated[Strategy, Doc("Drop poor points early, or measure every point on every fold.")] = (
        "halving"
    )
    folds: Annotated[int, Ge(2), Le(20), Doc("Stratified folds, each with a teacher of its own.")] = 5
    metric: Annotated[Metric, Doc("What is maximised, at the threshold that threshold.rule chooses.")] = "f1"

    def __post_init__(self) -> None:
        is_grid = isinstance(self.grid, Grid)
        no_grid = None if is_grid else Fault("tuning.grid", "no_grid", "grid must be a Grid")
        check_parameters(self, "tuning", no_grid)
