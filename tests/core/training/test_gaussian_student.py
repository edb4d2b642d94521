"""A student with mean and variance, from its fit to its probabilities."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np
import pytest
from sklearn.datasets import load_iris

from core.data.dataset import LabelledData
from core.packed import GaussianForm, PackedStudent, SigmoidCalibration
from core.parameters import Doc, Gt, Le, check_parameters
from core.solvers.solution import Summary
from core.students.base import Decision, Problem, Student, StudentSpec
from core.training.config import TrainingConfig
from core.training.pipeline import train


@dataclass(frozen=True)
class BayesianRegression(StudentSpec):
    """Bayesian linear regression of ±1 on the features (Rasmussen and Williams, Section 2.1)."""

    name: ClassVar[str] = "bayes"
    noise: Annotated[float, Gt(0), Le(10), Doc("Variance of the labels about the regression.")] = 0.2

    def __post_init__(self) -> None:
        check_parameters(self, "student")

    def fit(self, problem: Problem, run: Any) -> Student:
        features = np.asarray(problem.examples.features, dtype=np.float64)
        precision = features.T @ features / self.noise + np.eye(features.shape[1])
        mean = np.linalg.solve(precision, features.T @ problem.signs) / self.noise
        return Fitted(mean, problem.examples.feature_map, Summary(0.0, None, None, 1, 0.0, None))


@dataclass(frozen=True)
class Fitted(Student):
    mean: Any
    feature_map: Any
    summary: Any

    def scores(self, examples: Any) -> Any:
        # With a variance that is the same everywhere the score is the mean over a constant.
        return np.asarray(examples.features, dtype=np.float64) @ self.mean / np.sqrt(1.5)

    def pack(self) -> Decision:
        basis, coef, intercept = self.feature_map.fold(self.mean[np.newaxis])
        form = GaussianForm(coef[0], float(intercept[0]), np.zeros((1, coef.shape[1])), 0.5)
        return Decision(basis, form)


@pytest.fixture(scope="module")
def data() -> LabelledData:
    X, y = load_iris(return_X_y=True)
    return LabelledData.from_arrays(X, np.array(["a", "b", "c"])[y])


def test_its_probability_is_its_own_unless_a_calibration_is_asked_for(data: LabelledData):
    for rule, kind in (("auto", "probit"), ("none", None), ("sigmoid", "sigmoid")):
        config = TrainingConfig(students=(BayesianRegression(),), calibration=rule)
        student = train(data, config).students["a"]
        calibration = student.calibration
        assert (None if calibration is None else calibration.kind) == kind
        assert student.metadata["calibration"] == (kind or "none")


def test_the_packed_student_gives_the_scores_and_probabilities_of_the_fit(data: LabelledData):
    model = train(data, TrainingConfig(students=(BayesianRegression(),)))
    trained = next(one for one in model.trained if one.label == "b")
    X = np.asarray(data.X)
    packed = PackedStudent.from_bytes(trained.packed.to_bytes())
    expected = trained.fitted.scores(model.preparation.examples)
    np.testing.assert_allclose(packed.scores(X), expected, rtol=1e-9, atol=1e-12)
    probabilities = packed.probabilities(X)
    assert ((probabilities >= 0.5) == (expected >= 0.0)).all()
    assert not isinstance(packed.calibration, SigmoidCalibration)
