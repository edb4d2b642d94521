"""A teacher and a student defined in this file train, tune, calibrate and pack like the ones of core."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar

import numpy as np
import pytest

from core.data.dataset import LabelledData
from core.errors import InvalidProblem
from core.features.spec import FeatureSpec
from core.learners import STUDENTS, TEACHERS
from core.model_selection.tuning_spec import TuningSpec
from core.packed import LinearForm, PackedStudent
from core.parameters import Doc, Gt, Le, check_parameters
from core.solvers.solution import Summary
from core.students.base import Decision, Student, StudentSpec
from core.students.gated import GSVM
from core.teachers.base import Teacher, TeacherSpec
from core.teachers.linear import LinearTeacher
from core.training.config import TrainingConfig
from core.training.evaluation import Evaluator
from core.training.pipeline import evaluate, prepare, train
from core.training.preparation import Preparation
from core.training.student_training import train_student


@dataclass(frozen=True, slots=True)
class Centroids(TeacherSpec):
    """A toy teacher: the score of a class is minus the squared distance to its mean, up to what all share."""

    name: ClassVar[str] = "centroids"

    scale: Annotated[float, Gt(0), Le(10), Doc("Factor of all scores.")] = 1.0

    def __post_init__(self) -> None:
        check_parameters(self, "teacher")

    def fit(self, task, run, start=None) -> Teacher:
        features = np.asarray(task.examples.features)
        weights = np.zeros((task.n_classes, features.shape[1]))
        for code in range(task.n_classes):
            mean = features[task.labels == code].mean(axis=0)
            weights[code] = self.scale * 2.0 * mean
            weights[code, -1] = -self.scale * (mean @ mean)
        return LinearTeacher(weights)

    def restore(self, arrays, n_classes, n_features, summary) -> Teacher:
        return LinearTeacher.restore(arrays, n_classes, n_features, summary)


@dataclass(frozen=True, slots=True, eq=False)
class RidgeStudent(Student):
    decision: np.ndarray
    gate_weights: np.ndarray
    feature_map: Any
    summary: Summary

    def scores(self, examples):
        return np.asarray(examples.features) @ self.decision

    def pack(self) -> Decision:
        basis, coef, intercept = self.feature_map.fold(np.stack([self.decision, self.gate_weights]))
        return Decision(basis, LinearForm(coef[0], float(intercept[0]), coef[1], float(intercept[1])))


@dataclass(frozen=True, slots=True)
class Ridge(StudentSpec):
    """A toy student: ridge regression of ±1, drawn to the gate."""

    name: ClassVar[str] = "ridge"

    alpha: Annotated[float, Gt(0), Le(1e6), Doc("Weight of the penalty.")] = 1.0

    def __post_init__(self) -> None:
        check_parameters(self, "student")

    def fit(self, problem, run) -> Student:
        run.check_cancel()
        features, gate = np.asarray(problem.examples.features), problem.gate_weights
        gram = features.T @ features + self.alpha * np.eye(features.shape[1])
        decision = np.linalg.solve(gram, features.T @ problem.signs + self.alpha * gate)
        loss = float(np.mean((features @ decision - problem.signs) ** 2))
        return RidgeStudent(
            decision, gate, problem.examples.feature_map, Summary(loss, None, None, 1, 0.0, None)
        )

    def grid(self, choice) -> tuple[Ridge, ...]:
        return tuple(replace(self, alpha=alpha) for alpha in (0.1, 1.0, 100.0))


@pytest.fixture(scope="module")
def data() -> LabelledData:
    rng = np.random.default_rng(0)
    codes = np.arange(240) % 3
    return LabelledData.from_arrays(rng.normal(size=(3, 4))[codes] + 0.7 * rng.normal(size=(240, 4)), codes)


CONFIG = TrainingConfig(
    features=FeatureSpec("linear"),
    teacher=Centroids(),
    students=(Ridge(), GSVM(C=10.0)),
    tuning=TuningSpec(folds=3),
    threshold="f1",
    calibration="sigmoid",
)


def test_a_learner_of_ones_own_trains_tunes_calibrates_and_packs(data):
    model = train(data, CONFIG, test=data)
    for label, student in model.students.items():
        assert student.metadata["method"] == "ridge"
        assert student.metadata["alpha"] in (0.1, 1.0, 100.0)
        assert student.metadata["tuning_points"] == 3
        assert student.calibration is not None
        assert PackedStudent.from_bytes(student.to_bytes()).digest == student.digest
        assert (student.decide(data.X) == (data.y == data.classes.index(label))).mean() > 0.8
    assert model.teacher.metadata["method"] == "centroids"
    assert set(model.evaluation.methods) == {"teacher", "ridge", "gsvm"}
    first = model.trained[0]
    assert first.chosen["alpha"] == first.spec.alpha
    assert [point["alpha"] for point in first.trace["points"]] == [0.1, 1.0, 100.0]


def test_a_stored_preparation_of_ones_own_teacher_gives_the_same_students(data):
    preparation = prepare(data, CONFIG)
    again = Preparation.from_bytes(preparation.to_bytes(), data, CONFIG)
    assert train_student(again, 1).packed.digest == train_student(preparation, 1).packed.digest
    evaluation = evaluate(Evaluator.of(again, data), [train_student(again, 1)])
    assert evaluation.mean("ridge").f1 > 0.7


def test_a_registered_learner_is_found_by_its_name_until_it_is_taken_out():
    with STUDENTS.registered(Ridge), TEACHERS.registered(Centroids):
        assert STUDENTS.named("ridge", "student.method") is Ridge
        assert TEACHERS["centroids"] is Centroids
        with pytest.raises(InvalidProblem, match="already"):
            STUDENTS.register(Ridge)
    with pytest.raises(InvalidProblem, match="must be one of gsvm, gsvm0, svm, compact"):
        STUDENTS.named("ridge", "student.method")


def test_the_gate_of_a_teacher_that_is_not_linear_is_distilled(data):
    @dataclass(frozen=True, slots=True)
    class Opaque(Centroids):
        def fit(self, task, run, start=None) -> Teacher:
            teacher = Centroids.fit(self, task, run)

            class Hidden(Teacher):
                def scores(self, examples, run):
                    return teacher.scores(examples, run)

                def pack(self, examples, classes, metadata):
                    return None

                def arrays(self):
                    return teacher.arrays()

            return Hidden()

    config = replace(CONFIG, students=(GSVM(C=10.0),), tuning=None)
    known = train(data, config)
    hidden = train(data, replace(config, teacher=Opaque()))
    for label, student in known.students.items():
        expected, found = student.scores(data.X), hidden.students[label].scores(data.X)
        np.testing.assert_allclose(found, expected, atol=1e-2 * np.abs(expected).max())
    assert hidden.teacher.metadata["stand_in"] == "distilled"
    np.testing.assert_allclose(
        hidden.teacher.scores(data.X), known.teacher.scores(data.X), rtol=1e-3, atol=1e-3
    )
