"""Students that are linear in the teacher's features."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from core.packed import LinearForm
from core.run import Run
from core.solvers.products import matvec
from core.solvers.solution import Solution
from core.students.base import Decision, SolvedStudent, folded
from core.types import FloatArray, Matrix

if TYPE_CHECKING:
    from core.features.examples import Examples
    from core.features.maps import FeatureMap


@dataclass(frozen=True, slots=True, eq=False)
class LinearStudent(SolvedStudent):
    """It answers yes where v·φ(x) >= threshold.

    decision: v = w_y − θ, (m,). gate_weights: w_y, (m,); zeros for the baseline, which has no gate.
    feature_map: φ; None if the student cannot be packed.
    """

    decision: FloatArray
    gate_weights: FloatArray
    solution: Solution
    feature_map: FeatureMap | None = None

    def scores(self, examples: Examples) -> FloatArray:
        """v·φ, (n,): acceptance minus rejection; Eq. (4) holds where it is at least 0."""
        return self.feature_scores(examples.features)

    def feature_scores(self, features: Matrix) -> FloatArray:
        """v·φ of features Φ (n, m), shape (n,)."""
        return matvec(features, self.decision, Run())

    def pack(self) -> Decision:
        """Decision and gate folded into the basis of the feature map."""
        basis, coef, intercept, gate = folded(self.feature_map, self.decision, self.gate_weights)
        return Decision(basis, LinearForm(coef[0], float(intercept[0]), *gate))
