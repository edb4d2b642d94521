"""The multi-class optimal margin distribution machine as a teacher: hyper-parameters and fit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

from core.parameters import Doc, Ge, Gt, Le, Lt, check_parameters
from core.teachers.base import FitShape, Task, Teacher, TeacherSpec

if TYPE_CHECKING:
    from core.packed.codec import Arrays
    from core.run import Run
    from core.solvers.solution import Summary
    from core.teachers.linear import LinearTeacher


@dataclass(frozen=True, slots=True)
class McODM(TeacherSpec):
    """mcODM: the margins of all rows near 1, with small variance, not only the smallest ones large.

    Zhang and Zhou (ICML 2017). Linear in the features, as the structural SVM is. Raises InvalidProblem naming
    every wrong field.
    """

    name: ClassVar[str] = "mcodm"

    C: Annotated[
        float, Ge(1e-6), Le(1e8), Doc("λ, the loss weight; the loss of one example weighs C/(n (1 − θ)²).")
    ] = 1e4
    band: Annotated[float, Ge(0), Lt(1), Doc("θ: margins from 1 − θ to 1 + θ have no loss.")] = 0.2
    excess: Annotated[
        float, Gt(0), Le(1), Doc("μ: weight of margins above the band, relative to those below it.")
    ] = 0.2
    tolerance: Annotated[
        float,
        Gt(0),
        Lt(1),
        Doc("Stop at this relative duality gap, and change of the objective by the outer loop."),
    ] = 1e-3
    max_epochs: Annotated[int, Ge(1), Le(100_000), Doc("At most this many passes over the examples.")] = 5000
    max_outer: Annotated[int, Ge(1), Le(1000), Doc("At most this many inner problems.")] = 50

    def __post_init__(self) -> None:
        check_parameters(self, "teacher")

    def fit(self, task: Task, run: Run, start: Teacher | None = None) -> LinearTeacher:
        """Solve the inner problems to a fixed point, see ``core.solvers.margins.multiclass_odm``.

        start: an mcODM of the same rows, usually at another C; ignored without dual variables.
        """
        from core.solvers.margins.multiclass_odm import MulticlassMarginProblem, solve_multiclass_odm
        from core.teachers.linear import LinearTeacher

        initial_dual = None
        if isinstance(start, LinearTeacher) and start.dual is not None and start.C is not None:
            rows, width = start.dual.shape
            if (rows, width) == (len(task.labels), task.n_classes + 1):
                initial_dual = start.dual * min(1.0, self.C / start.C)
        solution = solve_multiclass_odm(
            MulticlassMarginProblem(
                task.examples.features, task.labels, task.n_classes, self.C, self.band, self.excess
            ),
            tolerance=self.tolerance,
            max_epochs=self.max_epochs,
            max_outer=self.max_outer,
            initial_dual=initial_dual,
            run=run,
        )
        return LinearTeacher(solution.value, solution.summary(), solution.dual, self.C)

    def fit_bytes(self, shape: FitShape) -> int:
        """Bytes of α twice at start and end, its coefficients, the active classes, and W nine times."""
        return 36 * shape.cells + 72 * shape.weights

    def restore(
        self, arrays: Arrays, n_classes: int, n_features: int, summary: Summary | None
    ) -> LinearTeacher:
        """The teacher with these weights."""
        from core.teachers.linear import LinearTeacher

        return LinearTeacher.restore(arrays, n_classes, n_features, summary, self.C)
