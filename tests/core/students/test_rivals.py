"""Students that copy the scores of a linear teacher: the class against its nearest rivals and a threshold."""

from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.metrics import f1_score

from core.data.column_layout import ColumnLayout
from core.data.dataset import LabelledData
from core.encoding.rules import most_terms
from core.errors import InvalidProblem
from core.features.spec import FeatureSpec
from core.model_selection.threshold import choose_threshold
from core.run import Run
from core.students.automatic import Automatic
from core.students.rivals import Rivals, _number, rejecting_rivals
from core.teachers.forest import Forest
from core.teachers.ssvm import SSVM
from core.training.config import (
    AUTOMATIC_CALIBRATION,
    AUTOMATIC_FOLDS,
    AUTOMATIC_STUDENT,
    AUTOMATIC_THRESHOLD,
    TrainingConfig,
)
from core.training.pipeline import prepare, train
from core.training.preparation import _fold_of
from core.training.student_training import train_student
from tests.refusals import at_fault

CONFIG = TrainingConfig(
    features=FeatureSpec("linear"),
    teacher=SSVM(C=100.0),
    students=(Rivals(),),
    threshold="expected_f1",
    calibration="sigmoid",
    folds=3,
)


def blobs(noise: float, n: int = 300, K: int = 6, d: int = 8, seed: int = 0) -> LabelledData:
    rng = np.random.default_rng(seed)
    codes = np.arange(n) % K
    centres = np.random.default_rng(99).normal(size=(K, d))
    return LabelledData.from_arrays(centres[codes] + noise * rng.normal(size=(n, d)), codes)


def test_with_all_rivals_and_no_threshold_it_is_the_answer_of_the_teacher():
    data, rows = blobs(0.1), blobs(1.0, seed=5).X
    model = train(data, replace(CONFIG, students=(Rivals(rivals=5),)))
    answers = model.teacher.predict(rows)
    for code, label in enumerate(data.classes):
        student = model.students[label]
        assert student.form.functions == 5, "the held-out rows are separated: no threshold is needed"
        assert student.threshold == 0.0
        assert (student.decide(rows) == (answers == code)).all()


def test_equal_scores_go_to_the_class_that_comes_first():
    """A row of zeros has the score 0 for all classes, without an intercept."""
    data = blobs(0.1)
    model = train(data, replace(CONFIG, students=(Rivals(rivals=5),)))
    prepared = prepare(data, CONFIG)
    scores = np.zeros((1, 6))
    says = [train_student(prepared, code).fitted.of_teacher(scores)[0] >= 0.0 for code in range(6)]
    assert says == [True, False, False, False, False, False]
    assert set(model.students) == set(data.classes)


def test_scores_are_those_of_the_teacher_and_packed_ones_too():
    data = blobs(1.0)
    prepared = prepare(data, replace(CONFIG, students=(Rivals(rivals=2),)))
    trained = train_student(prepared, 3)
    fitted, scores = trained.fitted, prepared.scores
    margins = [scores[:, 3] - scores[:, rival] for rival in fitted.rivals]
    expected = np.min([*margins, scores[:, 3] - fitted.own], axis=0)
    np.testing.assert_allclose(fitted.scores(prepared.examples), expected, rtol=0, atol=1e-9)
    np.testing.assert_allclose(fitted.of_teacher(scores), expected, rtol=0, atol=1e-9)
    np.testing.assert_allclose(trained.packed.scores(data.X), expected, rtol=0, atol=1e-9)
    np.testing.assert_allclose(trained.packed.gate(data.X), scores[:, 3], rtol=0, atol=1e-9)
    assert trained.chosen == {"rivals": 2, "least_score": fitted.own}


def test_held_out_scores_come_from_teachers_without_the_row():
    data = blobs(1.0)
    prepared = prepare(data, CONFIG)
    assert prepared.held_out.shape == (300, 6)
    assert not np.isnan(prepared.held_out).any()
    assert np.abs(prepared.held_out - prepared.scores).max() > 1e-3
    fold_of = _fold_of(prepared.labelled, CONFIG)
    for fold in range(3):
        others, held_out = np.flatnonzero(fold_of != fold), np.flatnonzero(fold_of == fold)
        teacher = prepared.config.teacher.fit(prepared.task.take(others), Run())
        scores = teacher.scores(prepared.examples.take(held_out), Run())
        np.testing.assert_allclose(prepared.held_out[held_out], scores, rtol=0, atol=1e-9)


def test_rows_without_labels_have_no_held_out_scores():
    data = blobs(1.0)
    y = data.y.copy()
    y[::7] = -1
    prepared = prepare(replace(data, y=y), CONFIG)
    problem = prepared.problem(2)
    assert len(problem.held_out) == len(problem.codes) == 300
    assert np.isnan(problem.held_out[len(prepared.labelled.labels) :]).all()
    assert np.isfinite(train_student(prepared, 2).packed.threshold)


def test_of_two_classes_there_is_the_score_and_a_threshold():
    data = blobs(2.0, K=2)
    trained = train_student(prepare(data, CONFIG), 1)
    assert trained.packed.form.functions == 1
    assert trained.fitted.rivals == ()
    assert trained.fitted.own != 0.0


def test_the_threshold_rejects_in_place_of_rivals_that_are_missing():
    data, test = blobs(0.8, n=600), blobs(0.8, n=600, seed=1)
    prepared = prepare(data, replace(CONFIG, students=(Rivals(rivals=1),)))
    with_threshold, without = [], []
    for target in range(6):
        trained = train_student(prepared, target)
        truth = test.y == target
        fitted = trained.fitted
        margin = replace(fitted, decisions=fitted.decisions[:1], shifts=fitted.shifts[:1])
        examples = prepared.examples_of(test)
        with_threshold.append(f1_score(truth, fitted.scores(examples) >= 0.0))
        without.append(f1_score(truth, margin.scores(examples) >= 0.0))
    assert np.mean(with_threshold) > np.mean(without) + 0.1


def test_the_rule_may_move_the_threshold_from_zero_where_that_is_better():
    """Zero is kept unless the other threshold has a larger F on the held-out rows."""
    for noise in (0.3, 3.0):
        prepared = prepare(blobs(noise, n=900, K=3), CONFIG)
        for target in range(3):
            trained = train_student(prepared, target)
            truth, scores = prepared.labels == target, trained.fitted.of_teacher(prepared.held_out)
            found = choose_threshold(truth, scores, "expected_f1")
            best = max((0.0, found), key=lambda value: f1_score(truth, scores >= value))
            assert trained.packed.threshold == best


def test_rivals_reject_what_those_before_them_leave():
    # Rows 0 to 3 are of other classes: class 1 rejects rows 0 and 1, class 2 the same by more, class 3 row 2.
    scores = np.array([[1, 2, 3, 0], [1, 2, 3, 0], [1, 0, 0, 1.5], [1, 0.9, 0, 0], [5, 0, 0, 0.0]])
    truth = np.array([False, False, False, False, True])
    assert rejecting_rivals(scores, truth, 0, 3) == (2, 3, 1)
    assert rejecting_rivals(scores, truth, 0, 0) == ()


def texts(n: int, K: int, dense: int = 0) -> LabelledData:
    """Rows of terms, with columns of numbers before them."""
    rng = np.random.default_rng(0)
    codes = np.arange(n) % K
    terms = (rng.random((n, 40)) < 0.05).astype(float)
    terms[np.arange(n), codes] = 1.0
    rows = np.hstack([rng.normal(size=(n, dense)), terms])
    layout = ColumnLayout(40 + dense, dense, tuple(range(dense)))
    return replace(LabelledData.from_arrays(sp.csr_array(rows), codes), layout=layout)


AUTOMATIC = TrainingConfig(
    automatic=True,
    students=(AUTOMATIC_STUDENT,),
    threshold=AUTOMATIC_THRESHOLD,
    calibration=AUTOMATIC_CALIBRATION,
    folds=AUTOMATIC_FOLDS,
)


def test_automatic_copies_scores_of_texts_and_not_of_numbers():
    model = train(texts(400, 4), AUTOMATIC)
    assert {student.metadata["method"] for student in model.students.values()} == {"rivals"}
    assert {student.calibration.kind for student in model.students.values()} == {"sigmoid"}
    budget = replace(AUTOMATIC, threshold="fpr").with_layout(texts(400, 4).layout)
    assert budget.students[0].suited(SSVM()).name == "polytope"
    assert Automatic().suited(SSVM()).name == "polytope"
    assert Automatic().suited(Forest()).name == "trees"
    assert Automatic().copying().suited(Forest()).name == "trees"


@pytest.mark.parametrize(
    ("n_classes", "n_features", "expected"),
    [
        (17, 65_536, 16),
        (77, 26_070, 24),
        (77, most_terms(77), 76),
        (1000, 65_536, 4),
        (3, 100, 2),
        (2, 100, 0),
    ],
)
def test_students_of_many_classes_have_fewer_rivals(n_classes, n_features, expected):
    assert _number(Rivals(), n_classes, n_features) == expected
    assert _number(Rivals(rivals=1), n_classes, n_features) == min(1, expected)


def test_a_teacher_of_trees_is_refused_before_anything_is_fitted():
    with at_fault(InvalidProblem, "not_linear", match="linear in the features"):
        prepare(blobs(1.0), replace(CONFIG, teacher=Forest()))


def test_a_teacher_that_is_not_linear_is_refused():
    prepared = prepare(blobs(1.0), CONFIG)
    for change in ({"is_distilled": True}, {"held_out": None}):
        with pytest.raises(InvalidProblem, match="linear in the features"):
            Rivals().fit(replace(prepared.problem(0), **change), Run())
