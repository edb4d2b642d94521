"""Students whose kind depends on the teacher: copies of trees, or polytopes for other teachers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from core.parameters import Doc, Ge, Le, check_parameters
from core.students.base import MetadataValue, StudentSpec
from core.students.polytope import MAX_PIECES, Polytope
from core.students.rivals import Rivals
from core.students.trees import Trees

if TYPE_CHECKING:
    from core.run import Run
    from core.students.base import Problem, Student
    from core.teachers.base import TeacherSpec


@dataclass(frozen=True, slots=True)
class Automatic(StudentSpec):
    """Exact copies of a teacher of trees, ``trees``, and of other teachers students of kind ``polytope``.

    With ``automatic`` the teacher is chosen, too, where it is of kind ssvm: a structural SVM, a forest or
    boosted trees, whichever is best on held-out rows (``core.model_selection.family_choice``). For rows
    with texts, and of many classes where it is as good, students copy the teacher's scores, ``rivals``.
    of_scores: what is fitted to a teacher that is no trees, in place of a polytope of ``pieces`` and C.
    Raises InvalidProblem naming every wrong field.
    """

    name: ClassVar[str] = "automatic"

    pieces: Annotated[
        int,
        Ge(1),
        Le(MAX_PIECES),
        Doc("p of a polytope, the number of rejections; at most one for each other class."),
    ] = 8
    C: Annotated[
        float, Ge(1e-6), Le(1e8), Doc("Loss weight of a polytope; the loss of one example weighs C/(n d).")
    ] = 1e4
    of_scores: StudentSpec | None = None

    def __post_init__(self) -> None:
        check_parameters(self, "student")

    def suited(self, teacher: TeacherSpec) -> StudentSpec:
        """``Trees`` for a teacher of trees, otherwise a polytope or ``of_scores``."""
        return self._of(teacher.grows_trees)

    def _of(self, has_trees: bool) -> StudentSpec:
        return Trees() if has_trees else self.of_scores or Polytope(pieces=self.pieces, C=self.C)

    def with_point(self, values: dict[str, Any]) -> Automatic:
        """The same with a polytope of these hyper-parameters."""
        return replace(self, of_scores=Polytope(**values)) if values else self

    def copying(self, rivals: int | None = None) -> Automatic:
        """The same, but copying the scores of a teacher that has no trees. rivals: as in `Rivals`."""
        return replace(self, of_scores=Rivals(rivals))

    def fit(self, problem: Problem, run: Run) -> Student:
        """The student that suits the teacher. Raises InvalidProblem, Cancelled."""
        return self._of(problem.trees is not None).fit(problem, run)

    def metadata(self) -> dict[str, MetadataValue]:
        """Empty: the student that suits the teacher has its own metadata."""
        return {}
