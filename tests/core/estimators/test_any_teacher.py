"""Any scikit-learn classifier, or teacher of ours, in STMSClassifier."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.datasets import load_iris
from sklearn.ensemble import RandomForestClassifier
from sklearn.neighbors import KNeighborsClassifier
from sklearn.svm import SVC, LinearSVC

from core.data.dataset import LabelledData
from core.errors import InvalidProblem
from core.estimators import STMSClassifier
from core.features.examples import Examples
from core.model_selection.folds import task_of_features
from core.run import Run
from core.students.trees import Trees
from core.teachers.forest import Forest
from core.teachers.interpolation import KernelInterpolation
from core.teachers.scikit import Scikit
from core.training.config import TrainingConfig
from core.training.pipeline import prepare
from tests.refusals import at_fault

X, Y = load_iris(return_X_y=True)
NAMES = np.array(["setosa", "versicolor", "virginica"])[Y]
FOREST = RandomForestClassifier(20, random_state=0)


@pytest.mark.long
@pytest.mark.parametrize(
    "teacher",
    [
        FOREST,
        RandomForestClassifier(60, oob_score=True),
        KNeighborsClassifier(),
        LinearSVC(),
        KernelInterpolation(),
    ],
    ids=lambda one: type(one).__name__,
)
def test_students_learn_from_it(teacher):
    model = STMSClassifier(
        "gsvm", teacher=teacher, features="nystroem", n_components=40, threshold="f1", C=100.0
    )
    assert clone(model).fit(X, NAMES).score(X, NAMES) > 0.93
    again = model.fit(X, NAMES)
    assert set(again.students_) == {"setosa", "versicolor", "virginica"}
    assert again.student_("setosa").decide(X).sum() == pytest.approx(50, abs=2)


def test_without_other_parameters_the_rest_is_chosen():
    model = STMSClassifier(teacher=FOREST).fit(X, NAMES)
    assert model.choice_ is not None
    assert model.score(X, NAMES) > 0.93
    assert model.packed_teacher_.metadata["method"] == "RandomForestClassifier"
    assert model.packed_teacher_.metadata["stand_in"] == "distilled"
    assert (model.packed_teacher_.predict(X) == Y).mean() > 0.93


def data() -> LabelledData:
    return LabelledData.from_arrays(X, NAMES)


def test_fold_teachers_are_fitted_to_the_rows_of_their_folds():
    config = TrainingConfig(teacher=Scikit(KNeighborsClassifier(1)), threshold="f1", folds=3)
    preparation = prepare(data(), config)
    assert len(preparation.fold_teachers) == 3
    sizes = [teacher.classifier.n_samples_fit_ for teacher in preparation.fold_teachers]
    assert sizes == [100, 100, 100]
    assert preparation.teacher.classifier.n_samples_fit_ == 150


def test_a_forest_speaks_of_its_own_rows_by_the_trees_that_have_not_seen_them():
    preparation = prepare(data(), TrainingConfig(teacher=Scikit(RandomForestClassifier(60, oob_score=True))))
    votes = preparation.teacher.classifier.oob_decision_function_
    np.testing.assert_allclose(preparation.scores, np.log(np.maximum(votes, 1e-3)))


def test_a_class_that_it_has_never_seen_scores_lowest():
    task = task_of_features(X, Y, 3)
    teacher = Scikit(LinearSVC()).fit(task.take(np.flatnonzero(Y != 1)), Run())
    scores = teacher.scores(Examples.of_features(X), Run())
    assert scores.shape == (150, 3)
    assert (scores.argmin(axis=1) == 1).all()


def test_scores_of_another_shape_are_refused():
    teacher = Scikit(SVC(decision_function_shape="ovo")).fit(
        task_of_features(X[:100], np.arange(100) % 4, 4), Run()
    )
    with at_fault(InvalidProblem, "wrong_scores"):
        teacher.scores(Examples.of_features(X), Run())


def test_what_cannot_teach_is_refused():
    with at_fault(InvalidProblem, "no_classifier"):
        STMSClassifier(teacher=object()).fit(X, NAMES)
    with at_fault(InvalidProblem, "not_allowed"):
        STMSClassifier(teacher=FOREST, teacher_C=1.0).fit(X, NAMES)


def test_nothing_of_it_is_stored():
    preparation = prepare(data(), TrainingConfig(teacher=Scikit(FOREST)))
    with at_fault(InvalidProblem, "not_storable"):
        preparation.to_bytes()
    with pytest.raises(InvalidProblem):
        replace(preparation.config.teacher).restore({}, 3, 5, None)


def test_students_of_trees_are_given_as_a_specification():
    rng = np.random.default_rng(0)
    codes = np.arange(150) % 3
    X = rng.normal(size=(150, 4)) + 2.0 * np.eye(4)[codes]
    model = STMSClassifier(Trees(rivals=2), teacher=Forest(trees=20)).fit(X, codes)
    assert {student.map.kind for student in model.students_.values()} == {"trees"}
    np.testing.assert_array_equal(
        model.student_scores(X)[:, 1], model.student_(1).scores(X) - model.student_(1).threshold
    )
    assert model.score(X, codes) > 0.9
    with pytest.raises(ValueError, match="C must be set"):
        STMSClassifier(Trees(), teacher=Forest(), C=3.0).fit(X, codes)
