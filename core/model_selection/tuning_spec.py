"""Settings of the search for a student's hyper-parameters within a training run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from core.model_selection.options import Metric, Scope, Strategy
from core.parameters import Doc, Ge, Le, check_parameters
from core.students.grid import Grid


@dataclass(frozen=True, slots=True)
class TuningSpec:
    """A search for hyper-parameters by cross-validation. Raises InvalidProblem.

    grid: the points to try, ``"paper"``, ``"open"`` or a ``Grid``; see ``StudentSpec.grid``.
    """

    grid: str | Grid = "paper"
    scope: Annotated[
        Scope,
        Doc(
            "students: search the grid for every class and method by itself. job: search kind, scaling, width"
            " and factors of the columns of the features, C of the teacher, and near it one point for the"
            " students of all classes, on some 2000 training rows, and take it if it is better than what"
            " automatic takes on rows that chose neither; what is given for these, and the other"
            " fields of tuning, are ignored. One threshold for all classes takes the place of threshold.rule"
            " accuracy, f1 or expected_f1 if it is clearly better."
        ),
    ] = "students"
    strategy: Annotated[Strategy, Doc("Drop poor points early, or measure every point on every fold.")] = (
        "halving"
    )
    folds: Annotated[int, Ge(2), Le(20), Doc("Stratified folds, each with a teacher of its own.")] = 5
    metric: Annotated[Metric, Doc("What is maximised, at the threshold that threshold.rule chooses.")] = "f1"

    def __post_init__(self) -> None:
        check_parameters(self, "tuning")
