"""The baseline without a teacher: an ordinary linear SVM for one class against the rest."""

from __future__ import annotations

import numpy as np

from core.run import Run
from core.solvers.gated_hinge import GatedHingeProblem
from core.students.base import FittedStudent, Lesson, solve
from core.students.spec import StudentSpec
from core.types import Matrix


def fit_svm(
    features: Matrix,
    lesson: Lesson,
    spec: StudentSpec,
    run: Run = Run(),
) -> FittedStudent:
    """Fit min_v ½‖v‖² + (C/n) Σ_i [1 − z_i v·φ_i]_+: Eq. (8) with S = 0, ε = 1 and v = −θ.

    features: Φ, (n, m), dense or CSR. Only the truth of the lesson is used. Raises InvalidProblem, Cancelled.
    """
    problem = GatedHingeProblem.svm(features, lesson.signs, C=spec.C)
    solution = solve(problem, spec, run)
    return FittedStudent(-solution.value, np.zeros_like(solution.value), solution, spec)
