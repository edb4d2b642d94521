"""SVM+, a student that learns from privileged columns: hyper-parameters and fit."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self, TypeAlias

from core.parameters import Doc, Ge, Gt, Le, Lt, check_parameters
from core.students.base import Need, StudentSpec
from core.students.grid import grid_of
from core.students.privileged import Source, privileged_columns, privileged_needs

if TYPE_CHECKING:
    from core.run import Run
    from core.students.base import Problem
    from core.students.linear import LinearStudent
    from core.types import FloatArray

PrivilegedKernel: TypeAlias = Literal["linear", "rbf"]

CORRECTIONS = (1e-3, 1e-1, 10.0)
"""Values of κ that a search tries."""
_LANDMARKS = 200
"""Landmarks of the RBF kernel on privileged columns: exact up to this many rows, else Nyström."""


@dataclass(frozen=True, slots=True)
class SVMPlus(StudentSpec):
    """SVM+: its slacks are a function u of columns that are known in training only.

        min_{w,u} ½‖w‖² + C (κ/2 ‖u‖² + 1/n Σ_i ξ_i),   z_i w·φ_i ≥ 1 − ξ_i,   ξ_i = u·ψ(x*_i) + b ≥ 0

    (Vapnik and Vashist 2009; their γ is C κ.) Rows that the privileged columns show to be difficult may be on
    the wrong side, the others may not. With an RBF kernel and κ → 0 it is an ordinary SVM.
    The teacher enters, if at all, as privileged information and not as a gate: its scores and its difficulty
    say how much slack a row may need. Raises InvalidProblem naming every wrong field.
    """

    name: ClassVar[str] = "svm+"

    C: Annotated[float, Ge(1e-6), Le(1e8), Doc("Loss weight; the slack of one example weighs C/n.")] = 1e4
    correction: Annotated[
        float, Ge(1e-6), Le(1e6), Doc("κ: penalty of slacks that vary with the privileged columns.")
    ] = 1.0
    privileged: Source = "auto"
    kernel: Annotated[PrivilegedKernel, Doc("Slacks are linear in the privileged columns, or smooth.")] = (
        "rbf"
    )
    tolerance: Annotated[float, Gt(0), Lt(1), Doc("Stop at this relative duality gap.")] = 1e-3
    max_iterations: Annotated[int, Ge(1), Le(10_000), Doc("At most this many steps.")] = 100

    def __post_init__(self) -> None:
        check_parameters(self, "student")

    @property
    def needs(self) -> frozenset[Need]:  # type: ignore[override]
        """Dense rows; also privileged columns, if ``privileged`` asks for them."""
        return privileged_needs(self.privileged)

    def fit(self, problem: Problem, run: Run) -> LinearStudent:
        """Solve the quadratic programme above. Raises InvalidProblem, Cancelled."""
        import numpy as np

        from core.solvers.margins.privileged_hinge import PrivilegedHingeProblem, solve_privileged_hinge
        from core.students.linear import LinearStudent

        features = problem.examples.features
        stated = PrivilegedHingeProblem(
            features, problem.signs, self._privileged_features(problem, run), self.C, self.correction
        )
        solution = solve_privileged_hinge(
            stated, tolerance=self.tolerance, max_iterations=self.max_iterations, run=run
        )
        weights = solution.value[: features.shape[1]]
        return LinearStudent(weights, np.zeros_like(weights), solution, problem.examples.feature_map)

    def grid(self, choice: Any) -> tuple[Self, ...]:
        """κ of ``CORRECTIONS`` times the values of C of a ``Grid`` or a named grid, C rising first."""
        points = product(CORRECTIONS, grid_of(choice).C)
        return tuple(replace(self, C=C, correction=correction) for correction, C in points)

    def params(self) -> dict[str, Any]:
        """C, κ, the source of privileged information, and its kernel."""
        values = {"C": self.C, "correction": self.correction}
        return values | {"privileged": self.privileged, "kernel": self.kernel}

    def _privileged_features(self, problem: Problem, run: Run) -> FloatArray:
        """ψ of the training rows, (n, p); the last column is the constant 1."""
        from core.features.maps import fit_feature_map
        from core.features.spec import FeatureSpec

        _, columns = privileged_columns(problem, self.privileged)
        spec = FeatureSpec("linear" if self.kernel == "linear" else "nystroem", _LANDMARKS)
        features: FloatArray = fit_feature_map(columns, spec, run.seed).transform(columns)
        return features
