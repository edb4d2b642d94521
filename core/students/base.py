"""What all students share: what they learn from, and what a fit gives."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from core.run import Run
from core.solvers.dual_cd import solve_dual_cd
from core.solvers.gated_hinge import GatedHingeProblem
from core.solvers.mm_irls import solve_mm_irls
from core.solvers.products import project
from core.solvers.solution import Solution
from core.students.spec import StudentSpec
from core.types import BoolArray, FloatArray, IntArray, Matrix


@dataclass(frozen=True, slots=True, eq=False)
class Lesson:
    """What one student learns from: the truth about its class, and the teacher's view of it.

    positive: true where the example is of the class, (n,).
    gate: the teacher's score S^y, (n,). gate_weights: w_y with S^y = Φ w_y, (m,).
    difficulty: d in (0, 1], (n,).
    """

    positive: BoolArray
    gate: FloatArray
    gate_weights: FloatArray
    difficulty: FloatArray

    @property
    def signs(self) -> FloatArray:
        """z, +1 for the class and −1 for the rest, (n,)."""
        return np.where(self.positive, 1.0, -1.0)

    def take(self, rows: IntArray) -> Lesson:
        """The same lesson on some of the examples."""
        return Lesson(self.positive[rows], self.gate[rows], self.gate_weights, self.difficulty[rows])


@dataclass(frozen=True, slots=True, eq=False)
class FittedStudent:
    """A student in feature space: it says yes where v·φ(x) >= threshold.

    decision: v = w_y − θ, (m,). gate_weights: w_y, (m,); zeros for the baseline, which has no gate.
    """

    decision: FloatArray
    gate_weights: FloatArray
    solution: Solution
    spec: StudentSpec

    def scores(self, features: Matrix) -> FloatArray:
        """v·φ, shape (n,): acceptance minus rejection, Eq. (4) holds where it is at least 0."""
        return project(features, self.decision, Run())


def solve(
    problem: GatedHingeProblem,
    spec: StudentSpec,
    run: Run = Run(),
) -> Solution:
    """Solve a student's problem with the solver its spec names. Raises Cancelled."""
    if spec.solver == "mm_irls":
        return solve_mm_irls(
            problem,
            tolerance=spec.tolerance,
            max_iterations=spec.max_epochs,
            run=run,
        )
    return solve_dual_cd(
        problem,
        tolerance=spec.tolerance,
        max_epochs=spec.max_epochs,
        run=run,
    )
