"""The estimators keep scikit-learn's contract, and give what the pipeline gives."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.datasets import load_iris
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from core.data.dataset import LabelledData
from core.errors import InvalidProblem
from core.estimators import GatedSVMClassifier, STMSClassifier, StructuralSVMClassifier
from core.model_selection.tuning_spec import TuningSpec
from core.students.grid import Grid
from core.training.config import TrainingConfig
from core.training.pipeline import train
from tests.refusals import at_fault


# The default C is meant for thousands of rows; on the checks' few it makes every fit ten times as long.
@pytest.mark.long
@parametrize_with_checks([STMSClassifier(C=100.0, teacher_C=100.0)])
def test_scikit_learn_accepts_the_estimator_of_teacher_and_students(estimator, check):
    check(estimator)


@pytest.mark.long
@pytest.mark.no_cover
@parametrize_with_checks(
    [StructuralSVMClassifier(C=100.0), GatedSVMClassifier(C=100.0, teacher_C=100.0), STMSClassifier()]
)
def test_scikit_learn_accepts_the_other_estimators_and_the_defaults(estimator, check):
    check(estimator)


@pytest.fixture(scope="module")
def iris():
    X, y = load_iris(return_X_y=True)
    return X, np.array(["setosa", "versicolor", "virginica"])[y]


@pytest.fixture(scope="module")
def automatic(iris):
    """An estimator without parameters, fitted to the flowers."""
    return STMSClassifier().fit(*iris)


def test_the_teacher_learns_iris(iris):
    X, y = iris
    assert cross_val_score(StructuralSVMClassifier(), X, y, cv=3).min() > 0.9


def test_the_students_together_learn_iris(iris):
    X, y = iris
    # A hundred rows: the default C, meant for thousands, would leave hardly any regularisation.
    classifier = STMSClassifier(C=100.0, teacher_C=100.0, features="nystroem", n_components=40)
    assert cross_val_score(classifier, X, y, cv=3).min() > 0.9


@pytest.mark.parametrize("method", ["gsvm", "gsvm0", "svm"])
def test_one_student_tells_its_class_from_the_others(iris, method):
    X, y = iris
    classifier = GatedSVMClassifier(
        method, target_class="versicolor", features="nystroem", n_components=40, C=1e3
    ).fit(X, y)
    np.testing.assert_array_equal(classifier.classes_, [False, True])
    assert classifier.predict(X).dtype == np.bool_
    assert classifier.score(X, y) == classifier.score(X, y == "versicolor") > 0.9
    assert classifier.student_.label == "versicolor"
    assert classifier.packed_teacher_.classes == ("setosa", "versicolor", "virginica")


def test_two_classes_need_no_target(iris):
    X, y = iris[0][50:], iris[1][50:]
    classifier = GatedSVMClassifier(threshold="f1").fit(X, y)
    np.testing.assert_array_equal(classifier.classes_, ["versicolor", "virginica"])
    decision = classifier.decision_function(X)
    np.testing.assert_array_equal(classifier.predict(X) == "virginica", decision >= 0)
    np.testing.assert_allclose(
        classifier.student_.scores(X) - classifier.student_.threshold, decision, atol=1e-9
    )


def test_three_classes_need_a_target(iris):
    with at_fault(InvalidProblem, "not_binary", match="Name the target_class"):
        GatedSVMClassifier().fit(*iris)


def test_a_calibrated_student_tells_probabilities(iris):
    X, y = iris
    grid = Grid(C=(1.0, 100.0), margins=(1.0,))
    classifier = GatedSVMClassifier(
        target_class="virginica", tuning=TuningSpec(grid, folds=3), calibration="sigmoid"
    ).fit(X, y)
    assert classifier.student_.metadata["C"] in grid.C
    probability = classifier.predict_proba(X)
    np.testing.assert_allclose(probability.sum(axis=1), 1.0)
    np.testing.assert_allclose(probability[:, 1], classifier.student_.probabilities(X), atol=1e-9)
    assert probability[y == "virginica", 1].mean() > 0.8
    assert not hasattr(GatedSVMClassifier(), "predict_proba")
    unsure = GatedSVMClassifier(target_class="virginica", calibration="auto").fit(X, y)
    with at_fault(InvalidProblem, "not_calibrated", match="not calibrated"):
        unsure.predict_proba(X)


def test_students_of_all_classes_are_tuned_and_calibrated(iris):
    X, y = iris
    tuning = TuningSpec(Grid(C=(1.0, 100.0)), folds=3)
    classifier = STMSClassifier(tuning=tuning, calibration="isotonic").fit(X, y)
    assert {student.calibration.kind for student in classifier.students_.values()} == {"isotonic"}


@pytest.mark.long
def test_without_parameters_features_and_c_are_chosen(iris, automatic):
    chosen = train(LabelledData.from_arrays(*iris), automatic._config())
    assert automatic.choice_ == chosen.preparation.choice
    assert "leave-one-out" in automatic.choice_.reason
    for label, student in automatic.students_.items():
        assert student.calibration.kind == "sigmoid"
        assert student.to_bytes() == chosen.students[label].to_bytes()


@pytest.mark.long
def test_a_named_parameter_leaves_the_others_at_their_declared_defaults(iris):
    plain, named = STMSClassifier(automatic=False).fit(*iris), STMSClassifier(features="linear").fit(*iris)
    assert plain.choice_ is named.choice_ is None
    assert plain._config() == named._config() == TrainingConfig(calibration="none")
    both = STMSClassifier("svm", automatic=True, calibration="none").fit(*iris)
    assert both.choice_ is not None
    assert {student.metadata["C"] for student in both.students_.values()} == {150 * both.choice_.C_per_row}
    assert all(student.calibration is None for student in both.students_.values())


def test_packed_students_answer_like_the_estimator(iris, automatic):
    X, _ = iris
    scores = automatic.decision_function(X)
    assert scores.shape == (150, 3)
    for code, label in enumerate(automatic.classes_):
        np.testing.assert_array_equal(automatic.student_(label).decide(X), scores[:, code] >= 0)


def test_two_classes_give_one_column_but_two_students(iris):
    X, y = iris[0][50:], iris[1][50:]
    classifier = STMSClassifier().fit(X, y)
    both = classifier.student_scores(X)
    np.testing.assert_array_equal(classifier.decision_function(X), both[:, 1] - both[:, 0])


def test_the_packed_teacher_scores_like_the_estimator(iris):
    X, y = iris
    classifier = StructuralSVMClassifier(C=100.0, features="fourier", n_components=50).fit(X, y)
    np.testing.assert_allclose(classifier.packed_.scores(X), classifier.decision_function(X), atol=1e-9)
    assert classifier.coef_.shape == (3, 51)


def test_sparse_rows_are_accepted(iris):
    X, y = iris
    # Well conditioned and solved tightly: at the default C solutions this near in objective lie far apart.
    settings = {"C": 100.0, "scaling": "none", "tolerance": 1e-8}
    dense = StructuralSVMClassifier(**settings).fit(X, y)
    sparse = StructuralSVMClassifier(**settings).fit(sp.csr_matrix(X), y)
    np.testing.assert_allclose(
        sparse.decision_function(sp.csr_array(X)), dense.decision_function(X), rtol=0.01, atol=0.01
    )


def test_a_random_state_object_is_drawn_from(iris):
    X, y = iris
    settings = {"features": "fourier", "n_components": 20}
    first = StructuralSVMClassifier(**settings, random_state=np.random.RandomState(3)).fit(X, y)
    again = StructuralSVMClassifier(**settings, random_state=np.random.RandomState(3)).fit(X, y)
    other = StructuralSVMClassifier(**settings, random_state=np.random.RandomState(4)).fit(X, y)
    np.testing.assert_array_equal(first.coef_, again.coef_)
    assert (first.coef_ != other.coef_).any()


def test_the_estimators_work_in_pipelines_and_searches(iris):
    X, y = iris
    search = GridSearchCV(
        make_pipeline(StandardScaler(), GatedSVMClassifier(target_class="setosa", scaling="none")),
        {"gatedsvmclassifier__C": [1.0, 100.0]},
        cv=2,
    ).fit(X, y)
    assert search.best_score_ > 0.95


@pytest.mark.parametrize(
    ("estimator", "field"),
    [
        (StructuralSVMClassifier(C=0.0), "teacher.C"),
        (StructuralSVMClassifier(n_components=0), "features.n_components"),
        (StructuralSVMClassifier(scaling="robust"), "features.scaling"),
        (GatedSVMClassifier(target_class="lily"), "target_class"),
        (GatedSVMClassifier(target_class="setosa", difficulty_floor=0.0), "student.difficulty_floor"),
        (GatedSVMClassifier(target_class="setosa", threshold="best"), "threshold"),
        (GatedSVMClassifier(), "y"),
        (STMSClassifier(method="odm"), "student.method"),
        (STMSClassifier(n_jobs=0), "n_jobs"),
    ],
)
def test_unusable_parameters_are_named(iris, estimator, field: str):
    with pytest.raises(InvalidProblem) as caught:
        estimator.fit(*iris)
    assert [fault.field for fault in caught.value.faults] == [field]


def test_one_class_is_refused(iris):
    with pytest.raises(InvalidProblem, match="1 class"):
        STMSClassifier().fit(iris[0][:50], iris[1][:50])


def test_an_unknown_label_has_no_student(automatic):
    with pytest.raises(InvalidProblem, match="no class 'lily'"):
        automatic.student_("lily")
