"""A teacher that interpolates its training rows: a kernel function per class, 1 on its rows, 0 on others."""

from __future__ import annotations

import json
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import numpy as np

from core.data.row_scaling import RowScaling, scale_rows
from core.errors import Fault, InvalidPackage, InvalidProblem
from core.packed import PackedTeacher, RbfBasis
from core.packed.codec import Arrays, take_array
from core.packed.maps import Floats, frozen_array, with_scaled_rows
from core.parameters import Doc, Ge, Gt, Le, Lt, check_parameters
from core.run import Run
from core.teachers.base import FitShape, Task, Teacher, TeacherSpec

if TYPE_CHECKING:
    from core.features.examples import Examples
    from core.solvers.solution import Summary
    from core.types import FloatArray


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
        """Choose the kernel if it is left open, and solve for α.

        The fit depends only on rows, labels and seed, so it can be repeated. Raises InvalidProblem,
        Cancelled.
        """
        from core.solvers.kernel.system import solve_kernel_system
        from core.teachers.kernel_width import choose_kernel

        del start
        X = task.examples.X
        if not isinstance(X, np.ndarray):
            raise InvalidProblem(Fault("X", "sparse", "a kernel interpolation needs dense rows"))
        choice = choose_kernel(
            X,
            task.labels,
            task.n_classes,
            gamma=self.gamma,
            scaling=self.scaling,
            row_scaling=self.row_scaling,
            jitter=self.jitter,
            run=run,
        )
        n = len(task.labels)
        landmarks = choice.apply(X).astype(np.float32)
        one_hot = np.zeros((n, task.n_classes))
        one_hot[np.arange(n), task.labels] = 1.0
        solution = solve_kernel_system(
            landmarks,
            one_hot,
            jitter=self.jitter,
            tolerance=self.tolerance,
            max_iterations=self.max_iterations,
            memory_bytes=self.memory_gib * 2.0**30,
            with_inverse_diagonal=n <= self.left_out,
            run=run,
        )
        left_out = solution.fitted
        if solution.inverse_diagonal is not None:
            left_out = one_hot - solution.value / solution.inverse_diagonal[:, None]
        facts: dict[str, str | float] = {
            "gamma": choice.gamma,
            "scaling": choice.scaling,
            "row_scaling": str(choice.row_scaling),
            "jitter": solution.jitter,
        }
        facts |= {} if choice.error is None else {"left_out_error": choice.error}
        facts |= {} if solution.condition is None else {"condition": solution.condition}
        standardisation = choice.standardisation
        return KernelTeacher(
            standardisation.shift,
            standardisation.scale,
            landmarks,
            solution.value,
            left_out,
            facts,
            solution.summary(),
        )

    def fit_bytes(self, shape: FitShape) -> int:
        """Bytes of the kernel's factor and inverse, nine arrays like Y, and the rows in both precisions."""
        n = shape.rows
        factor = min(2 * n * (n + 1024), int(self.memory_gib * 2**30))
        return 2 * factor + 72 * shape.cells + 40 * n * shape.columns

    def restore(
        self, arrays: Arrays, n_classes: int, n_features: int, summary: Summary | None
    ) -> KernelTeacher:
        """The teacher with these arrays."""
        del n_features
        return KernelTeacher.restore(arrays, n_classes, summary)

    def metadata(self) -> dict[str, str | float | int]:
        """Name and the requested jitter; the fitted teacher adds what was chosen."""
        return {"method": self.name, "jitter": float(self.jitter)}


@dataclass(frozen=True, slots=True, eq=False)
class KernelTeacher(Teacher):
    """S(x) = Σ_i α_i exp(−‖z − z_i‖²) with z = (x' − shift)·scale.

    x': the scaled row. scale includes the factor √γ.
    landmarks: z_i, (n, d) float32: the training rows. alpha: (n, K).
    left_out: scores of the training rows, (n, K): leave-one-out scores, or those of the fit.
    facts: chosen γ and scalings, their leave-one-out error, the jitter that was used, condition estimate.
    """

    shift: Floats
    scale: Floats
    landmarks: FloatArray
    alpha: Floats
    left_out: Floats
    facts: Mapping[str, str | float]
    summary: Summary | None = None

    @classmethod
    def restore(cls, arrays: Arrays, n_classes: int, summary: Summary | None) -> KernelTeacher:
        """The teacher with these ``arrays``. Raises InvalidPackage, InvalidProblem."""
        landmarks = take_array(arrays, "landmarks")
        if landmarks.ndim != 2:
            raise InvalidPackage("The landmarks of the teacher are not a matrix.")
        n, d = landmarks.shape
        try:
            facts = dict(json.loads(take_array(arrays, "facts").tobytes()))
            RowScaling(str(facts.get("row_scaling", RowScaling.NONE)))
        except (ValueError, TypeError) as error:
            raise InvalidPackage("The facts of the teacher are not those of an interpolation.") from error
        return cls(
            frozen_array(take_array(arrays, "shift"), "shift", (d,)),
            frozen_array(take_array(arrays, "scale"), "scale", (d,)),
            landmarks,
            frozen_array(take_array(arrays, "alpha"), "alpha", (n, n_classes)),
            frozen_array(take_array(arrays, "left_out"), "left_out", (n, n_classes)),
            facts,
            summary,
        )

    @property
    def row_scaling(self) -> RowScaling:
        """The scaling of each row; teachers that were stored before it existed have none."""
        return RowScaling(str(self.facts.get("row_scaling", RowScaling.NONE)))

    def scores(self, examples: Examples, run: Run = Run()) -> FloatArray:
        """S, (n, K), in float64 as queries compute it, in blocks on the run's threads."""
        from core.data.scaling import Standardisation
        from core.solvers.kernel.rows import KernelRows
        from core.solvers.threads import one_blas_thread

        scaled = scale_rows(examples.X, self.row_scaling)
        rows = KernelRows(np.ascontiguousarray(Standardisation(self.shift, self.scale).apply(scaled)))
        kernel = KernelRows(self.landmarks.astype(np.float64))
        with one_blas_thread(), ThreadPoolExecutor(run.threads) as pool:
            return kernel.of(rows, self.alpha, pool, run)

    @property
    def own_scores(self) -> FloatArray:
        """Scores of the training rows, (n, K): leave-one-out scores if the rows were few enough for these."""
        return self.left_out

    def pack(
        self, examples: Examples, classes: tuple[str, ...], metadata: Mapping[str, Any]
    ) -> PackedTeacher:
        """All training rows as landmarks of one kernel, with α."""
        del examples
        basis = RbfBasis(self.shift, self.scale, self.landmarks.astype(np.float64))
        packed = with_scaled_rows(basis, self.row_scaling)
        return PackedTeacher(
            packed, self.alpha.T, np.zeros(len(classes)), classes, {**metadata, **self.facts}
        )

    def arrays(self) -> Arrays:
        """All arrays, including the training rows."""
        return {
            "shift": self.shift,
            "scale": self.scale,
            "landmarks": self.landmarks,
            "alpha": self.alpha,
            "left_out": self.left_out,
            "facts": np.frombuffer(json.dumps(dict(self.facts), sort_keys=True).encode(), dtype=np.uint8),
        }
