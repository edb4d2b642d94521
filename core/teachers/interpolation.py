"""A teacher that interpolates its training rows: a kernel function a class, 1 on its rows, 0 on others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from core.parameters import Doc, Ge, Gt, Le, Lt, check_parameters
from core.teachers.base import Task, Teacher, TeacherSpec

if TYPE_CHECKING:
    from core.packed.codec import Arrays
    from core.run import Run
    from core.solvers.solution import Summary
    from core.teachers.kernel_teacher import KernelTeacher


@dataclass(frozen=True, slots=True)
class KernelInterpolation(TeacherSpec):
    """S(x) = Σ_i α_i exp(−γ‖x − x_i‖²) with (K + jI) α = Y, Y one-hot; dense rows only.

    Globerson, Classification with linear equations; Zhang et al. (2016). Its scores are not linear in the
    students' features, so their gate is distilled. Raises InvalidProblem naming every wrong field.
    """

    name: ClassVar[str] = "interpolation"

    gamma: Annotated[
        float | None,
        Gt(0),
        Le(1e6),
        Doc("γ of the kernel exp(−γ‖x − x'‖²) on scaled columns; null: chosen with the scaling."),
    ] = None
    scaling: Annotated[
        Literal["auto", "zscore", "minmax", "none"],
        Doc("Of the columns; auto: that with the fewest leave-one-out errors on at most 1200 rows."),
    ] = "auto"
    row_scaling: Annotated[
        Literal["auto", "none", "unit", "hellinger"],
        Doc(
            "Of each row, before its columns: x / ‖x‖, or √(x / Σ_j x_j) for values that are not negative;"
            " auto: chosen with the scaling of the columns, which is none where rows are scaled."
        ),
    ] = "auto"
    jitter: Annotated[
        float,
        Ge(1e-7),
        Le(1),
        Doc("j: added to the kernel's diagonal; multiplied by ten where the matrix cannot be factored."),
    ] = 1e-4
    tolerance: Annotated[
        float, Gt(0), Lt(1), Doc("Stop at this relative residual ‖(K + jI)α − Y‖ / ‖Y‖.")
    ] = 1e-2
    max_iterations: Annotated[
        int, Ge(0), Le(100_000), Doc("At most this many steps of conjugate gradients.")
    ] = 200
    memory_gib: Annotated[
        float,
        Gt(0),
        Le(1024),
        Doc("Memory for the kernel matrix, 2 n² bytes; where it is too little, K is computed at every step."),
    ] = 4.0
    left_out: Annotated[
        int,
        Ge(0),
        Le(1_000_000),
        Doc(
            "Up to so many rows students learn from leave-one-out scores, which double the time; beyond, from"
            " scores that repeat the labels."
        ),
    ] = 20_000

    def __post_init__(self) -> None:
        check_parameters(self, "teacher")

    def fit(self, task: Task, run: Run, start: Teacher | None = None) -> KernelTeacher:
        """Solve for α. The fit depends on nothing but rows, labels and seed, so that it can be repeated."""
        from core.teachers.kernel_teacher import fit_interpolation

        del start
        return fit_interpolation(self, task, run)

    def restore(
        self, arrays: Arrays, n_classes: int, n_features: int, summary: Summary | None
    ) -> KernelTeacher:
        """The teacher with these arrays."""
        from core.teachers.kernel_teacher import KernelTeacher

        del n_features
        return KernelTeacher.restore(arrays, n_classes, summary)

    def metadata(self) -> dict[str, str | float | int]:
        """Name and jitter asked for; the fitted teacher adds what was chosen."""
        return {"method": self.name, "jitter": float(self.jitter)}
