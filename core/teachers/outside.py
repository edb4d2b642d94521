"""A teacher from outside: its scores of the rows come with the data set; no model of it is needed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from core.errors import Fault, InvalidProblem
from core.teachers.base import Task, Teacher, TeacherSpec

if TYPE_CHECKING:
    from core.features.examples import Examples
    from core.packed.codec import Arrays
    from core.run import Run
    from core.solvers.solution import Summary
    from core.types import FloatArray


@dataclass(frozen=True, slots=True, eq=False)
class OutsideTeacher(Teacher):
    """The scores that come with the rows; for rows without scores, a linear function approximates them.

    weights: W with S ≈ Φ Wᵀ, (K, m), by ridge regression on the rows of the fit.
    """

    weights: FloatArray

    def scores(self, examples: Examples, run: Run) -> FloatArray:
        """S as it was sent, (n, K), or Φ Wᵀ for rows without scores, such as a test part.

        Raises Cancelled.
        """
        from core.solvers.products import matvec

        given = examples.extras.teacher_scores
        return matvec(examples.features, self.weights, run) if given is None else given.astype(float)

    def pack(self, examples: Examples, classes: tuple[str, ...], metadata: Mapping[str, Any]) -> None:
        """None: there is no model of it; its distilled weights are packed instead."""
        del examples, classes, metadata

    def arrays(self) -> Arrays:
        """W."""
        return {"weights": self.weights}


@dataclass(frozen=True, slots=True)
class OutsideScores(TeacherSpec):
    """Scores of a network, a forest or anything else, sent with the rows; no model of it is needed.

    Difficulty and answers follow from the scores as they were sent. Gates are distilled: ridge regression of
    the scores on the features, in each fold on its training rows only. If the teacher was trained on these
    rows, held-out scores are optimistic, as with an imported head: ``seen_rows`` is ``unknown``.
    """

    name: ClassVar[str] = "scores"
    needs: ClassVar[frozenset[Literal["teacher_scores"]]] = frozenset({"teacher_scores"})

    def fit(self, task: Task, run: Run, start: Teacher | None = None) -> OutsideTeacher:
        """Distil the weights. Raises InvalidProblem for rows without scores, Cancelled."""
        from core.teachers.distilled import distilled_weights

        del start
        scores = task.examples.extras.teacher_scores
        if scores is None:
            message = "the rows have no scores of a teacher (teacher_scores)"
            raise InvalidProblem(Fault("teacher_scores", "missing", message))
        return OutsideTeacher(distilled_weights(task.examples.features, scores, run))

    def restore(
        self, arrays: Arrays, n_classes: int, n_features: int, summary: Summary | None
    ) -> OutsideTeacher:
        """The teacher with these weights; the scores are in the data."""
        from core.packed.codec import take_array
        from core.packed.maps import frozen_array

        del summary
        return OutsideTeacher(frozen_array(take_array(arrays, "weights"), "weights", (n_classes, n_features)))

    def metadata(self) -> dict[str, str | float | int]:
        """Name, and that it is unknown whether the teacher was trained on these rows."""
        return {"method": self.name, "seen_rows": "unknown"}
