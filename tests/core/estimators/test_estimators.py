"""The estimators keep scikit-learn's contract, and give what the pipeline gives."""

from __future__ import annotations

import datetime
from decimal import Decimal

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.calibration import CalibratedClassifierCV
from sklearn.datasets import load_iris
from sklearn.ensemble import VotingClassifier
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.naive_bayes import GaussianNB
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
    with pytest.raises(AttributeError) as refused:
        GatedSVMClassifier().predict_proba(X)
    assert "calibration='sigmoid'" in str(refused.value.__cause__)
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
    assert "on held-out rows" in automatic.choice_.reason
    for label, student in automatic.students_.items():
        assert student.calibration.kind == "sigmoid"
        assert student.to_bytes() == chosen.students[label].to_bytes()


@pytest.mark.long
def test_a_named_parameter_leaves_the_others_at_their_declared_defaults(iris):
    plain, named = STMSClassifier(automatic=False).fit(*iris), STMSClassifier(features="linear").fit(*iris)
    assert plain.choice_ is named.choice_ is None
    assert plain._config() == named._config() == TrainingConfig(calibration="sigmoid", folds=3)
    both = STMSClassifier("svm", automatic=True, calibration="none").fit(*iris)
    assert both.choice_ is not None
    assert {student.metadata["C"] for student in both.students_.values()} == {150 * both.choice_.C_per_row}
    assert all(student.calibration is None for student in both.students_.values())


def test_packed_students_answer_like_the_estimator(iris, automatic):
    X, _ = iris
    scores = automatic.student_scores(X)
    assert scores.shape == (150, 3)
    for code, label in enumerate(automatic.classes_):
        np.testing.assert_array_equal(automatic.student_(label).decide(X), scores[:, code] >= 0)


def test_two_classes_give_one_column_but_two_students(iris):
    X, y = iris[0][50:], iris[1][50:]
    classifier = STMSClassifier(automatic=False, calibration="none").fit(X, y)
    both = classifier.student_scores(X)
    np.testing.assert_array_equal(classifier.decision_function(X), both[:, 1] - both[:, 0])
    assert not hasattr(classifier, "predict_proba")


@pytest.mark.parametrize("settings", [{"automatic": False}, {"C": 100.0, "calibration": "isotonic"}])
def test_the_most_probable_class_is_predicted(iris, settings):
    X, y = iris
    for rows in (np.arange(150), np.arange(50, 150)):
        model = STMSClassifier(**settings).fit(X[rows], y[rows])
        shares, decisions = model.predict_proba(X), model.decision_function(X)
        np.testing.assert_allclose(shares.sum(axis=1), 1.0)
        np.testing.assert_array_equal(model.classes_[shares.argmax(axis=1)], model.predict(X))
        chosen = decisions.argmax(axis=1) if decisions.ndim == 2 else (decisions > 0).astype(int)
        np.testing.assert_array_equal(model.classes_[chosen], model.predict(X))
        own = np.stack([model.student_(label).probabilities(X) for label in model.classes_], axis=1)
        np.testing.assert_allclose(shares, own / own.sum(axis=1, keepdims=True), atol=1e-9)
    unsure = STMSClassifier(C=100.0, calibration="auto").fit(X, y)
    with at_fault(InvalidProblem, "not_calibrated"):
        unsure.predict_proba(X)
    assert unsure.predict(X).shape == (150,)


def test_tools_of_scikit_learn_ask_for_probabilities(iris):
    X, y = iris
    plain = STMSClassifier(C=100.0, teacher_C=100.0)
    for scoring, least in (("neg_log_loss", -0.5), ("roc_auc_ovr", 0.9)):
        assert cross_val_score(plain, X, y, cv=3, scoring=scoring).min() > least
    voting = VotingClassifier([("a", plain), ("b", GaussianNB())], voting="soft").fit(X, y)
    assert voting.score(X, y) > 0.9
    assert CalibratedClassifierCV(plain, cv=3).fit(X, y).score(X, y) > 0.9


def test_probabilities_need_two_rows_of_each_class(iris):
    X, y = iris
    alone = np.array(["rare", *y[1:]])
    with at_fault(InvalidProblem, "class_too_small", match="'rare' has one row.*calibration='none'"):
        STMSClassifier(C=100.0).fit(X, alone)
    assert STMSClassifier(C=100.0, calibration="none").fit(X, alone).predict(X).shape == (150,)


NO_LABEL = r"Row 1 has no label. Leave rows without a label out of X and y"


@pytest.mark.parametrize("frame", [False, True])
@pytest.mark.parametrize(
    ("change", "code", "words"),
    [
        (lambda y: [y[0], None, *y[2:]], "missing_label", NO_LABEL),
        (lambda y: [y[0], float("nan"), *y[2:]], "missing_label", NO_LABEL),
        (lambda y: [y[0], np.datetime64("NaT"), *y[2:]], "missing_label", NO_LABEL),
        (lambda y: [y[0], "", *y[2:]], "missing_label", NO_LABEL),
        (lambda y: np.where(np.arange(150) == 1, np.nan, np.arange(150) // 50), "missing_label", NO_LABEL),
        (lambda y: np.array([y[0], None, *y[2:]], dtype=object)[:, None], "missing_label", NO_LABEL),
        (lambda y: np.ma.masked_array(np.arange(150) % 2, np.arange(150) == 1), "missing_label", NO_LABEL),
        (lambda y: ["a", 1] * 75, "mixed_labels", "row 1 differs from row 0"),
        (lambda y: np.eye(3)[np.arange(150) % 3], "wrong_shape", r"\(150, 3\).*y.argmax\(axis=1\)"),
        (lambda y: np.array([1] * 150, "m8[s]"), "bad_label_type", "give them as text"),
        (lambda y: [datetime.timedelta(1)] * 150, "bad_label_type", "give it as text"),
    ],
)
def test_what_is_wrong_with_labels_is_named(iris, frame: bool, change, code: str, words: str):
    X, y = iris
    rows = {"a": X[:, 0], "t": ["u", "v", "w"] * 50} if frame else X
    with at_fault(InvalidProblem, code, field="y", match=words):
        STMSClassifier(automatic=False).fit(rows, change(y))


@pytest.mark.parametrize(
    ("labels", "classes"),
    [
        ([Decimal("1.50"), Decimal("2")], ["1.5", "2"]),
        ([datetime.date(2024, 5, 6), datetime.date(2023, 1, 1)], ["2023-01-01", "2024-05-06"]),
        ([True, False], [False, True]),
        (np.array([3, 1], dtype=object), [1, 3]),
        ([1.0, 0.0], [0.0, 1.0]),
        (["b", "a"], ["a", "b"]),
    ],
)
def test_labels_of_every_type_are_classes(iris, labels, classes: list):
    X, _ = iris
    for rows in (X, {"a": X[:, 0], "t": ["u", "v", "w"] * 50}):
        y = np.resize(labels, 150) if isinstance(labels, np.ndarray) else [*labels] * 75
        model = STMSClassifier(automatic=False, calibration="none").fit(rows, y)
        assert model.classes_.tolist() == classes


@pytest.mark.parametrize(
    ("rows", "code", "words"),
    [
        (
            np.ma.masked_array(np.ones((9, 2)), np.arange(18).reshape(9, 2) == 3),
            "missing_value",
            "row 1, column 1",
        ),
        (np.ones((9, 2), "m8[s]"), "not_numeric", "send seconds as a number"),
        (np.full((9, 2), np.timedelta64(1, "s"), dtype=object), "not_numeric", "send seconds as a number"),
        (np.ones((9, 2), "M8[s]"), "not_numeric", "columns with names"),
        (np.ones((9, 2), complex), "not_numeric", "Complex data not supported"),
        (np.ones(9, [("a", "f8")]), "not_numeric", "a column of each field"),
        (np.where(np.arange(18).reshape(9, 2) == 5, np.nan, 1.0), "not_finite", "NaN at row 2, column 1"),
        (np.where(np.arange(18).reshape(9, 2) == 5, np.inf, 1.0), "not_finite", "infinite value at row 2"),
        (
            sp.csr_array(np.where(np.arange(18).reshape(9, 2) == 5, np.inf, 1.0)),
            "not_finite",
            "row 2, column 1",
        ),
    ],
)
def test_what_is_no_number_in_an_array_is_named(iris, rows, code: str, words: str):
    with at_fault(InvalidProblem, code, match=words):
        STMSClassifier(automatic=False).fit(rows, [*"aabbccabc"])
    fitted = StructuralSVMClassifier(C=1.0).fit(np.arange(18.0).reshape(9, 2), [*"aaabbbccc"])
    with at_fault(InvalidProblem, code, match=words):
        fitted.predict(rows)


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
