"""The optimal margin distribution machine as a student: hyper-parameters and fit."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self, TypeAlias

from core.errors import Fault, InvalidProblem
from core.parameters import Doc, Ge, Gt, Le, Lt, check_parameters
from core.students.base import Need, StudentSpec
from core.students.grid import grid_of

if TYPE_CHECKING:
    from core.run import Run
    from core.students.base import Problem
    from core.students.linear import LinearStudent

Gate: TypeAlias = Literal["teacher", "none"]

BANDS = (0.2, 0.6)
EXCESSES = (0.2, 0.8)
"""Values of θ and μ that a search tries."""


@dataclass(frozen=True, slots=True)
class ODM(StudentSpec):
    """Optimal margin distribution machine: all margins near 1, not only the smallest ones large.

    With v = w_y + w for a student with a gate, and v = w without:

        min_w ½‖w‖² + C/(2 n (1 − θ)²) Σ_i ([1 − θ − z_i v·φ_i]_+² + μ [z_i v·φ_i − 1 − θ]_+²)

    (Zhang and Zhou, Optimal Margin Distribution Machine; C is their λ.) The teacher's score S^y = w_y·φ
    enters as the gate, as a margin can be measured from it: the student learns what to add to the teacher.
    Raises InvalidProblem naming every wrong field.
    """

    name: ClassVar[str] = "odm"

    C: Annotated[
        float, Ge(1e-6), Le(1e8), Doc("λ, the loss weight; the loss of one example weighs C/(n (1 − θ)²).")
    ] = 1e3
    band: Annotated[float, Ge(0), Lt(1), Doc("θ: margins from 1 − θ to 1 + θ have no loss.")] = 0.2
    excess: Annotated[
        float, Gt(0), Le(1), Doc("μ: weight of margins above the band, relative to those below it.")
    ] = 0.2
    gate: Annotated[
        Gate, Doc("teacher: the hyperplane starts from the teacher's of the class; none: from zero.")
    ] = "teacher"
    tolerance: Annotated[float, Gt(0), Lt(1), Doc("Stop at this relative duality gap.")] = 1e-3
    max_iterations: Annotated[int, Ge(1), Le(100_000), Doc("At most this many Newton steps.")] = 200

    def __post_init__(self) -> None:
        check_parameters(self, "student")

    @property
    def needs(self) -> frozenset[Need]:  # type: ignore[override]
        """The teacher's weights, if there is a gate."""
        return frozenset({"gate_weights"}) if self.gate == "teacher" else frozenset()

    def fit(self, problem: Problem, run: Run) -> LinearStudent:
        """Minimise the objective above. Raises InvalidProblem for a teacher without a gate, Cancelled."""
        import numpy as np

        from core.solvers.margins.margin_distribution import (
            MarginDistributionProblem,
            solve_margin_distribution,
        )
        from core.students.linear import LinearStudent

        features = problem.examples.features
        weights = problem.gate_weights if self.gate == "teacher" else np.zeros(features.shape[1])
        if weights is None:
            message = "odm with a gate needs a teacher whose scores are linear in the features"
            raise InvalidProblem(Fault("teacher", "no_gate", message))
        gate = problem.linear_gate if self.gate == "teacher" else np.zeros_like(problem.gate)
        stated = MarginDistributionProblem(
            features, problem.signs, gate, C=self.C, band=self.band, excess=self.excess
        )
        solution = solve_margin_distribution(
            stated, tolerance=self.tolerance, max_iterations=self.max_iterations, run=run
        )
        return LinearStudent(weights + solution.value, weights, solution, problem.examples.feature_map)

    def grid(self, choice: Any) -> tuple[Self, ...]:
        """θ and μ of ``BANDS`` and ``EXCESSES`` times the values of C of a ``Grid`` or a named grid."""
        points = product(BANDS, EXCESSES, grid_of(choice).C)
        return tuple(replace(self, C=C, band=band, excess=excess) for band, excess, C in points)

    def params(self) -> dict[str, Any]:
        """C, θ, μ, and whether there is a gate."""
        return {"C": self.C, "band": self.band, "excess": self.excess, "gate": self.gate}
