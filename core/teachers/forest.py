"""Hyper-parameters of a forest; ``core.teachers.forest_fit`` has the fit."""

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
class Forest(TeacherSpec):
    """Trees on bootstrap samples, or on all rows: S is the mean over trees of the class's share in a leaf.

    Breiman (2001); with random splits Geurts, Ernst and Wehenkel (2006), who take all rows. Dense rows only,
    whose columns are put into bins. Held-out scores of bootstrap samples are out of bag: of the trees whose
    sample has not the row. Where trees see all rows, they take a further forest for each fold. Equal rows are
    rows of their own. Raises InvalidProblem naming every wrong field.
    """

    name: ClassVar[str] = "forest"
    needs: ClassVar[frozenset[Literal["teacher_scores", "dense"]]] = frozenset({"dense"})
    grows_trees: ClassVar[bool] = True

    trees: Annotated[int, Ge(1), Le(2000), Doc("Number of trees.")] = 200
    splits: Annotated[
        Literal["random", "best"],
        Doc(
            "Of each column that is tried at a node: the best threshold, as in a random forest, or a random"
            " one, as in extra trees."
        ),
    ] = "best"
    sample: Annotated[
        Literal["bootstrap", "all"],
        Doc(
            "What each tree is grown on: as many rows as there are, drawn with repetitions, or all rows,"
            " which suits random splits and takes further fits in folds."
        ),
    ] = "bootstrap"
    folds: Annotated[
        int, Ge(2), Le(20), Doc("Folds of the held-out scores where each tree is grown on all rows.")
    ] = 3
    max_features: Annotated[
        float | None, Gt(0), Le(1), Doc("Share of the columns that is tried at a node; null: √d of them.")
    ] = None
    min_leaf: Annotated[int, Ge(1), Le(100_000), Doc("Fewest rows of the sample in a leaf.")] = 1
    max_depth: Annotated[int, Ge(1), Le(128), Doc("Most tests from the root to a leaf.")] = 64
    bins: Annotated[
        int,
        Ge(2),
        Le(255),
        Doc("Bins of a column at most, between which thresholds lie: few make queries fast."),
    ] = 64

    def __post_init__(self) -> None:
        check_parameters(self, "teacher")

    def fit(self, task: Task, run: Run, start: Teacher | None = None) -> TreeTeacher:
        """Grow the trees. run: reports stage ``"trees"`` in trees of all fits.

        Raises InvalidProblem, Cancelled.
        """
        from core.teachers.forest_fit import fit_forest

        del start
        return fit_forest(self, task, run)

    def restore(
        self, arrays: Arrays, n_classes: int, n_features: int, summary: Summary | None
    ) -> TreeTeacher:
        """The teacher with these trees."""
        from core.teachers.tree_teacher import TreeTeacher

        del n_features
        return TreeTeacher.restore(arrays, n_classes, summary)

    def metadata(self) -> dict[str, str | float | int]:
        """Name and what the trees depend on."""
        return {"method": self.name, **{k: v for k, v in self.params().items() if v is not None}}
