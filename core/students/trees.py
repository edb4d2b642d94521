"""Hyper-parameters of students of trees; ``core.students.tree_student`` has the copy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

from core.parameters import Doc, Ge, Le, check_parameters
from core.students.base import MetadataValue, Need, StudentSpec

if TYPE_CHECKING:
    from core.run import Run
    from core.students.base import Problem
    from core.students.tree_student import TreeStudent


@dataclass(frozen=True, slots=True)
class Trees(StudentSpec):
    """What a forest or boosted trees say of one class and its nearest rivals, with exactly the same scores.

    Nothing is trained: what makes no difference to these classes is cut off the teacher's trees. The student
    answers yes where S^y is at least each rival's score and, of a forest, a share of all others' together.
    With all K − 1 rivals this is the teacher's own answer. Threshold and calibration follow from the
    teacher's held-out scores. Raises InvalidProblem naming every wrong field.
    """

    name: ClassVar[str] = "trees"
    needs: ClassVar[frozenset[Need]] = frozenset({"trees"})
    copies_teacher: ClassVar[bool] = True

    rivals: Annotated[
        int | None,
        Ge(0),
        Le(10_000),
        Doc(
            "p, the number of rivals, at most one for each other class: those whose rows have the largest"
            " scores of the class. null: 8 of a forest, or 5 or 3 where only these have an index of leaves,"
            " which answers single rows fastest, and none where the class's score alone predicts held-out"
            " rows better; all of boosted trees, whose scores have no sum."
        ),
    ] = None

    rest: Annotated[
        float,
        Ge(0),
        Le(1),
        Doc(
            "Of a forest: the student answers yes only where S^y is at least this share of the score of all"
            " classes together that are no rivals. 1 suits where one of these has nearly all of it."
        ),
    ] = 0.5

    def __post_init__(self) -> None:
        check_parameters(self, "student")

    def fit(self, problem: Problem, run: Run) -> TreeStudent:
        """Copy the teacher's trees. Raises InvalidProblem for a teacher without trees."""
        from core.students.tree_student import copy_trees

        del run
        return copy_trees(self, problem)

    def metadata(self) -> dict[str, MetadataValue]:
        """Nothing: the fitted student says how many rivals it has."""
        return {}
