"""The teacher of the paper: a structural SVM with 0/1 loss, that is Crammer and Singer's multiclass SVM."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

from core.parameters import Doc, Ge, Gt, Le, Lt, check_parameters
from core.solvers.memory import MOST_PLANE_ENTRIES, PLANE_BYTES
from core.teachers.base import FitShape, Task, Teacher, TeacherSpec

if TYPE_CHECKING:
    from core.packed.codec import Arrays
    from core.run import Run
    from core.solvers.solution import Summary
    from core.teachers.linear import LinearTeacher


@dataclass(frozen=True, slots=True)
class SSVM(TeacherSpec):
    """The multiclass structural SVM (Eq. 1). Raises InvalidProblem naming every wrong field."""

    name: ClassVar[str] = "ssvm"

    C: Annotated[float, Ge(1e-6), Le(1e8), Doc("Loss weight; the loss of one example weighs C/n.")] = 3e4
    tolerance: Annotated[float, Gt(0), Lt(1), Doc("Stop at this relative duality gap.")] = 1e-3
    max_epochs: Annotated[int, Ge(1), Le(100_000), Doc("At most this many passes over the examples.")] = 5000

    def __post_init__(self) -> None:
        check_parameters(self, "teacher")

    def fit(self, task: Task, run: Run, start: Teacher | None = None) -> LinearTeacher:
        """Fit Eq. (1): min_W ½‖W‖² + (C/n) Σ_i max_k (Δ(k, y_i) + w_k·φ_i − w_{y_i}·φ_i).

        start: a linear teacher of the same rows, usually at another C; ignored without dual variables.
        """
        from core.solvers.crammer_singer import CrammerSingerProblem, solve_crammer_singer
        from core.teachers.linear import LinearTeacher

        features = task.examples.features
        initial_dual = None
        if isinstance(start, LinearTeacher) and start.dual is not None and start.C is not None:
            # The dual box is [.., C/n]. Scaling by the ratio of C keeps a solution feasible, and variables at
            # the bound stay at the bound.
            initial_dual = start.dual * (self.C / start.C)
        solution = solve_crammer_singer(
            CrammerSingerProblem(features, task.labels, task.n_classes, self.C / features.shape[0]),
            tolerance=self.tolerance,
            max_epochs=self.max_epochs,
            initial_dual=initial_dual,
            run=run,
        )
        return LinearTeacher(solution.value, solution.summary(), solution.dual, self.C)

    def fit_bytes(self, shape: FitShape) -> int:
        """Bytes of α, active classes, α before a round, a copy of active rows, and W nine times.

        See ``core.solvers.crammer_singer``; combined steps take most if there are few classes.
        """
        plane = PLANE_BYTES * min(shape.cells, MOST_PLANE_ENTRIES)
        copied = int(1.1 * shape.values)
        return 20 * shape.cells + plane + copied + 72 * shape.weights

    def restore(
        self, arrays: Arrays, n_classes: int, n_features: int, summary: Summary | None
    ) -> LinearTeacher:
        """The teacher with these weights."""
        from core.teachers.linear import LinearTeacher

        return LinearTeacher.restore(arrays, n_classes, n_features, summary, self.C)

    def metadata(self) -> dict[str, str | float | int]:
        """Name and C."""
        return {"method": self.name, "C": float(self.C)}
