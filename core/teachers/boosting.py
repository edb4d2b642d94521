"""Hyper-parameters of boosted trees; ``core.teachers.boosting_fit`` has the fit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from core.parameters import Doc, Ge, Gt, Le, check_parameters
from core.teachers.base import Task, Teacher, TeacherSpec

if TYPE_CHECKING:
    from core.packed.codec import Arrays
    from core.run import Run
    from core.solvers.solution import Summary
    from core.teachers.tree_teacher import TreeTeacher


@dataclass(frozen=True, slots=True)
class Boosting(TeacherSpec):
    """Gradient boosting: S is the sum of the class's trees, each fitted to what those before have left.

    Friedman (2001), grown on histograms of binned columns; S is the class's logit up to a term that all
    classes share. Dense rows only. Held-out scores take a further fit for each fold. Raises InvalidProblem
    naming every wrong field.
    """

    name: ClassVar[str] = "boosting"
    needs: ClassVar[frozenset[Literal["teacher_scores", "dense"]]] = frozenset({"dense"})
    grows_trees: ClassVar[bool] = True

    iterations: Annotated[int, Ge(1), Le(2000), Doc("Trees of each class.")] = 100
    learning_rate: Annotated[float, Gt(0), Le(1), Doc("Factor of every tree's values.")] = 0.1
    leaves: Annotated[int, Ge(2), Le(1024), Doc("Most leaves of a tree.")] = 31
    min_leaf: Annotated[int, Ge(1), Le(100_000), Doc("Fewest rows in a leaf.")] = 20
    ridge: Annotated[float, Ge(0), Le(1e6), Doc("Weight of the squares of a tree's values.")] = 0.0
    max_depth: Annotated[int, Ge(1), Le(128), Doc("Most tests from the root to a leaf.")] = 64
    bins: Annotated[int, Ge(2), Le(255), Doc("Bins of a column at most, between which thresholds lie.")] = 128
    folds: Annotated[int, Ge(2), Le(10), Doc("Further fits, for scores of rows that were held out.")] = 3

    def __post_init__(self) -> None:
        check_parameters(self, "teacher")

    def fit(self, task: Task, run: Run, start: Teacher | None = None) -> TreeTeacher:
        """Grow the trees. run: reports stage ``"trees"`` in iterations. Raises InvalidProblem, Cancelled."""
        from core.teachers.boosting_fit import fit_boosting

        del start
        return fit_boosting(self, task, run)

    def restore(
        self, arrays: Arrays, n_classes: int, n_features: int, summary: Summary | None
    ) -> TreeTeacher:
        """The teacher with these trees."""
        from core.teachers.tree_teacher import TreeTeacher

        del n_features
        return TreeTeacher.restore(arrays, n_classes, summary)
