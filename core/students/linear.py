"""Students that are linear in the teacher's features, and the fit of the gated SVMs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from core.errors import Fault, InvalidProblem
from core.packed import LinearForm
from core.run import Run
from core.solvers.dual_cd import solve_dual_cd
from core.solvers.gated_hinge import GatedHingeProblem
from core.solvers.mm_irls import solve_mm_irls
from core.solvers.products import matvec
from core.solvers.solution import Solution, Summary
from core.students.base import Decision, MetadataValue, Problem, Student
from core.students.difficulty import class_weights
from core.types import FloatArray, Matrix

if TYPE_CHECKING:
    from core.features.examples import Examples
    from core.features.maps import FeatureMap
    from core.students.gated import GatedSpec


@dataclass(frozen=True, slots=True, eq=False)
class LinearStudent(Student):
    """It answers yes where v·φ(x) >= threshold.

    decision: v = w_y − θ, (m,). gate_weights: w_y, (m,); zeros for the baseline, which has no gate.
    feature_map: φ; None where the student cannot be packed.
    """

    decision: FloatArray
    gate_weights: FloatArray
    solution: Solution
    feature_map: FeatureMap | None = None

    @property
    def summary(self) -> Summary:  # type: ignore[override]
        """How the solver ended."""
        return self.solution.summary()

    def scores(self, examples: Examples) -> FloatArray:
        """v·φ, (n,): acceptance minus rejection; Eq. (4) holds where it is at least 0."""
        return self.feature_scores(examples.features)

    def feature_scores(self, features: Matrix) -> FloatArray:
        """v·φ of features Φ (n, m), shape (n,)."""
        return matvec(features, self.decision, Run())

    def pack(self) -> Decision:
        """Decision and gate folded into the basis of the feature map."""
        if self.feature_map is None:
            raise InvalidProblem(Fault("features", "no_map", "features without a map cannot be packed"))
        basis, coef, intercept = self.feature_map.fold(np.stack([self.decision, self.gate_weights]))
        return Decision(basis, LinearForm(coef[0], float(intercept[0]), coef[1], float(intercept[1])))

    def metadata(self) -> dict[str, MetadataValue]:
        """Objective, gap and status of the solver."""
        solution = self.solution
        return {
            "objective": solution.objective,
            "relative_gap": solution.relative_gap,
            "status": solution.status.value,
        }


def fit_gated(spec: GatedSpec, problem: Problem, run: Run) -> LinearStudent:
    """Fit Eq. (12):

        min_θ ½‖θ‖² + (C/n) Σ_i b_i d_i⁻¹ [ε + z_i θ·φ_i − z_i S_i]_+

    with d = 1 for gSVM-0, Eq. (8), and with S = 0 and ε = 1 for the SVM. b is 1 in the paper; here it is
    (n₋/n₊)^β for examples of the class.

    The decision S^y >= θ·φ of Eq. (4) is v·φ >= 0 with v = w_y − θ, as the teacher is linear in the same
    features. Raises InvalidProblem, Cancelled.
    """
    C, margin, floor, balance = spec.point
    examples = problem.examples
    weights = class_weights(problem.positive, balance) if balance else None
    if not spec.uses_gate:
        difficulty = None if weights is None else 1.0 / weights
        hinge = GatedHingeProblem.svm(examples.features, problem.signs, C=C, difficulty=difficulty)
        solution = _solve(hinge, spec, run)
        zeros = np.zeros_like(solution.value)
        return LinearStudent(-solution.value, zeros, solution, examples.feature_map)
    if problem.gate_weights is None:
        message = f"{spec.name} needs a teacher whose scores are linear in the features"
        raise InvalidProblem(Fault("teacher", "no_gate", message))
    difficulty = None if floor == 1.0 else problem.difficulty(floor)
    if weights is not None:
        difficulty = 1.0 / weights if difficulty is None else difficulty / weights
    gated = GatedHingeProblem.gated(
        examples.features,
        problem.signs,
        problem.linear_gate,
        C=C,
        margin=margin,
        difficulty=difficulty,
    )
    solution = _solve(gated, spec, run)
    return LinearStudent(
        problem.gate_weights - solution.value, problem.gate_weights, solution, examples.feature_map
    )


def _solve(problem: GatedHingeProblem, spec: GatedSpec, run: Run) -> Solution:
    if spec.solver == "mm_irls":
        return solve_mm_irls(problem, tolerance=spec.tolerance, max_iterations=spec.max_epochs, run=run)
    return solve_dual_cd(problem, tolerance=spec.tolerance, max_epochs=spec.max_epochs, run=run)
