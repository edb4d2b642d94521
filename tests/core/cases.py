"""What students are fitted to in tests, with the difficulty given instead of computed from scores."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from core.features.examples import Examples
from core.run import Run
from core.students.base import Problem
from core.students.gated import GATED


@dataclass(frozen=True, slots=True, eq=False)
class Case:
    """positive, gate, difficulty: (n,). gate_weights: (m,)."""

    positive: np.ndarray
    gate: np.ndarray
    gate_weights: np.ndarray
    difficulty: np.ndarray

    @property
    def signs(self) -> np.ndarray:
        return np.where(self.positive, 1.0, -1.0)

    def take(self, rows) -> Case:
        return Case(self.positive[rows], self.gate[rows], self.gate_weights, self.difficulty[rows])


@dataclass(frozen=True, slots=True, eq=False)
class GivenDifficulty(Problem):
    degrees: np.ndarray | None = None

    def difficulty(self, floor: float) -> np.ndarray:
        return self.degrees


def gated(method: str = "gsvm", *values, **fields):
    """The specification of a gated SVM."""
    return GATED[method](*values, **fields)


def fit_student(features, case: Case, spec, run: Run = Run()):
    """The student of a case on features (n, m)."""
    problem = GivenDifficulty(
        case.positive,
        Examples.of_features(features),
        case.gate,
        case.gate_weights,
        np.zeros(len(case.gate)),
        np.where(case.positive, 0, 1),
        class_weights=None,
        degrees=case.difficulty,
    )
    return spec.fit(problem, run)
