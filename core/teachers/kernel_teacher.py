"""A fitted kernel interpolation: scores, leave-one-out scores, package."""

from __future__ import annotations

import json
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from core.data.row_scaling import RowScaling, scale_rows
from core.data.scaling import Standardisation
from core.errors import Fault, InvalidPackage, InvalidProblem
from core.packed import PackedTeacher, RbfBasis
from core.packed.codec import Arrays, take_array
from core.packed.maps import Floats, frozen_array, with_scaled_rows
from core.run import Run
from core.solvers.jit import is_sparse
from core.solvers.kernel.rows import KernelRows
from core.solvers.kernel.system import solve_kernel_system
from core.solvers.solution import Summary
from core.solvers.threads import one_blas_thread
from core.teachers.base import Task, Teacher
from core.teachers.kernel_width import choose_kernel
from core.types import FloatArray

if TYPE_CHECKING:
    from core.features.examples import Examples
    from core.teachers.interpolation import KernelInterpolation


@dataclass(frozen=True, slots=True, eq=False)
class KernelTeacher(Teacher):
    """S(x) = Σ_i α_i exp(−‖z − z_i‖²) with z = (x' − shift)·scale.

    x': the scaled row. √γ is a factor of scale.
    landmarks: z_i, (n, d) float32: the training rows. alpha: (n, K).
    left_out: scores of the training rows, (n, K): by leave-one-out, or as fitted.
    facts: γ and scalings as chosen, their leave-one-out error, j as used, and the condition estimate.
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
        """Of each row; teachers that were stored before it existed have none."""
        return RowScaling(str(self.facts.get("row_scaling", RowScaling.NONE)))

    def scores(self, examples: Examples, run: Run = Run()) -> FloatArray:
        """S, (n, K), in float64 as queries compute it, by blocks on the run's threads."""
        scaled = scale_rows(examples.X, self.row_scaling)
        rows = KernelRows(np.ascontiguousarray(Standardisation(self.shift, self.scale).apply(scaled)))
        kernel = KernelRows(self.landmarks.astype(np.float64))
        with one_blas_thread(), ThreadPoolExecutor(run.threads) as pool:
            return kernel.of(rows, self.alpha, pool, run)

    @property
    def own_scores(self) -> FloatArray:
        """Scores of the training rows by interpolations without them, (n, K), where there were few enough."""
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
        """Everything, the training rows too."""
        return {
            "shift": self.shift,
            "scale": self.scale,
            "landmarks": self.landmarks,
            "alpha": self.alpha,
            "left_out": self.left_out,
            "facts": np.frombuffer(json.dumps(dict(self.facts), sort_keys=True).encode(), dtype=np.uint8),
        }


def fit_interpolation(spec: KernelInterpolation, task: Task, run: Run) -> KernelTeacher:
    """Choose the kernel where it is left open, and solve for α. Raises InvalidProblem, Cancelled."""
    X = task.examples.X
    if is_sparse(X):
        raise InvalidProblem(Fault("X", "sparse", "a kernel interpolation needs dense rows"))
    choice = choose_kernel(X, task.labels, task.n_classes, spec, run)
    n = len(task.labels)
    landmarks = choice.apply(X).astype(np.float32)
    one_hot = np.zeros((n, task.n_classes))
    one_hot[np.arange(n), task.labels] = 1.0
    solution = solve_kernel_system(
        landmarks,
        one_hot,
        jitter=spec.jitter,
        tolerance=spec.tolerance,
        max_iterations=spec.max_iterations,
        memory_bytes=spec.memory_gib * 2.0**30,
        with_inverse_diagonal=n <= spec.left_out,
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
