"""Fit the student that a spec names."""

from __future__ import annotations

from core.run import Run
from core.students.base import FittedStudent, Lesson
from core.students.gsvm import fit_gsvm
from core.students.spec import StudentSpec
from core.students.svm import fit_svm
from core.types import Matrix

_FITS = {"gsvm": fit_gsvm, "gsvm0": fit_gsvm, "svm": fit_svm}


def fit_student(
    features: Matrix,
    lesson: Lesson,
    spec: StudentSpec,
    run: Run = Run(),
) -> FittedStudent:
    """Fit the student that ``spec.method`` names. Raises InvalidProblem, Cancelled."""
    fit = _FITS[spec.method]
    return fit(features, lesson, spec, run)
