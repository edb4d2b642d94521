"""What all students share: their hyper-parameters, what they learn from, and what a fit gives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

import numpy as np

from core.data.bounds import not_whole, out_of_bounds, refuse, unknown_choice
from core.solvers.dual_cd import solve_dual_cd
from core.solvers.gated_hinge import GatedHingeProblem
from core.solvers.mm_irls import solve_mm_irls
from core.solvers.products import project
from core.solvers.solution import Solution
from core.types import BoolArray, CancelCheck, FloatArray, IntArray, Matrix, ProgressCallback

Method: TypeAlias = Literal["gsvm", "gsvm0", "svm"]
Solver: TypeAlias = Literal["dual_cd", "mm_irls"]


@dataclass(frozen=True, slots=True)
class StudentSpec:
    """Hyper-parameters of one student. Raises InvalidProblem naming every field out of bounds.

    method: ``"gsvm"`` (Eq. 12), ``"gsvm0"`` (Eq. 8, no difficulty), ``"svm"`` (no teacher: the baseline).
    C: loss weight; the loss of example i weighs C / (n d_i). The paper's grid ends at 1e3, too early.
    margin: ε >= 0 of Eq. (6), how far past the gate is wanted; the baseline's is always 1.
    floor: ϵ in (0, 1] of Eq. (11), the difficulty of the easiest examples; used by ``"gsvm"`` only.
    solver: ``"dual_cd"``, or ``"mm_irls"``, the paper's Algorithm 2.
    tolerance: relative duality gap to stop at. max_epochs: passes (dual_cd) or iterations (mm_irls) at most.
    """

    method: Method = "gsvm"
    C: float = 1e5
    margin: float = 1.0
    floor: float = 0.3
    solver: Solver = "dual_cd"
    tolerance: float = 1e-3
    max_epochs: int = 2000

    def __post_init__(self) -> None:
        refuse(
            unknown_choice("student.method", self.method, get_args(Method)),
            out_of_bounds("student.C", self.C, 0.0, 1e12, open_low=True),
            out_of_bounds("student.margin", self.margin, 0.0, 1e6),
            out_of_bounds("student.floor", self.floor, 0.0, 1.0, open_low=True),
            unknown_choice("student.solver", self.solver, get_args(Solver)),
            out_of_bounds("student.tolerance", self.tolerance, 0.0, 1.0, open_low=True, open_high=True),
            not_whole("student.max_epochs", self.max_epochs, 1, 2**31 - 1),
        )


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
        return project(features, self.decision, lambda: None)


def solve(
    problem: GatedHingeProblem,
    spec: StudentSpec,
    *,
    seed: int = 0,
    progress: ProgressCallback | None = None,
    should_cancel: CancelCheck | None = None,
) -> Solution:
    """Solve a student's problem with the solver its spec names. Raises Cancelled."""
    if spec.solver == "mm_irls":
        return solve_mm_irls(
            problem,
            tolerance=spec.tolerance,
            max_iterations=spec.max_epochs,
            progress=progress,
            should_cancel=should_cancel,
        )
    return solve_dual_cd(
        problem,
        tolerance=spec.tolerance,
        max_epochs=spec.max_epochs,
        seed=seed,
        progress=progress,
        should_cancel=should_cancel,
    )
