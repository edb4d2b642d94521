"""Gated SVM: the teacher's score of the class is the gate, the student learns when not to believe it."""

from __future__ import annotations

from core.run import Run
from core.solvers.gated_hinge import GatedHingeProblem
from core.students.base import FittedStudent, Lesson, solve
from core.students.spec import StudentSpec
from core.types import Matrix


def fit_gsvm(
    features: Matrix,
    lesson: Lesson,
    spec: StudentSpec,
    run: Run = Run(),
) -> FittedStudent:
    """Fit Eq. (12), or Eq. (8) when ``spec.method`` is ``"gsvm0"``:

        min_θ ½‖θ‖² + (C/n) Σ_i d_i⁻¹ [ε + z_i θ·φ_i − z_i S_i]_+

    The decision S^y >= θ·φ of Eq. (4) is v·φ >= 0 with v = w_y − θ, as the teacher is linear in the same
    features.

    features: Φ, (n, m), dense or CSR. Raises InvalidProblem, Cancelled.
    """
    problem = GatedHingeProblem.gated(
        features,
        lesson.signs,
        lesson.gate,
        C=spec.C,
        margin=spec.margin,
        difficulty=lesson.difficulty if spec.method == "gsvm" else None,
    )
    solution = solve(problem, spec, run)
    return FittedStudent(lesson.gate_weights - solution.value, lesson.gate_weights, solution, spec)
