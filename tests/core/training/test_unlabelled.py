"""Students of rows that only the teacher has named."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

from core.data.dataset import LabelledData
from core.data.extras import RawExtras
from core.errors import InvalidProblem
from core.features.examples import Examples
from core.features.spec import FeatureSpec
from core.run import Run
from core.students.gated import GSVM
from core.students.polytope import Polytope
from core.teachers.outside import OutsideScores
from core.training.config import TrainingConfig
from core.training.pipeline import prepare, train
from core.training.preparation import Preparation, with_unlabelled
from core.training.student_training import train_student


def rows(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    codes = np.arange(n) % 3
    return rng.normal(size=(n, 4)) + 2.0 * np.eye(4)[codes], codes


def preparation(*, sparse: bool = False, **others: object):
    X, codes = rows(30, 0)
    table = sp.csr_array(X) if sparse else X
    config = TrainingConfig(features=FeatureSpec("linear", scaling="none"), **others)
    return prepare(LabelledData.from_arrays(table, codes), config)


@pytest.mark.parametrize("sparse", [False, True])
def test_students_learn_from_the_answers_of_the_teacher(sparse: bool):
    known, (X, _) = preparation(sparse=sparse), rows(90, 1)
    both = with_unlabelled(known, sp.csr_array(X) if sparse else X)
    assert len(both.labels) == both.examples.n == 120
    np.testing.assert_array_equal(both.labels[:30], known.labels)
    np.testing.assert_array_equal(both.labels[30:], both.scores[30:].argmax(axis=1))
    np.testing.assert_array_equal(both.scores[:30], known.scores)
    np.testing.assert_array_equal(
        both.scores[30:], known.teacher.scores(both.examples.take(np.arange(30, 120)), Run())
    )
    problem = both.problem(1)
    assert problem.positive.sum() == (both.labels == 1).sum()
    # The teacher's answer agrees with itself: the rows that it named are of the easier half.
    assert problem.difficulty(0.2)[30:].max() <= 0.6 + 1e-12
    assert train_student(both, 1).packed.label == "1"


def test_what_the_teacher_knows_reaches_students_of_other_rows():
    """Its student of few rows has the answers of a teacher of few rows; truth would say otherwise."""
    known, X = preparation(), rows(600, 1)[0]
    student = GSVM(C=600.0).fit(with_unlabelled(known, X).problem(0), Run())
    fresh, truth = rows(3000, 2)
    examples = Examples.of_features(known.feature_map.transform(fresh))
    accepted = student.scores(examples) >= 0.0
    taught = known.teacher.scores(examples, Run()).argmax(axis=1) == 0
    assert np.mean(accepted == taught) > 0.93
    assert np.mean(accepted == taught) > np.mean(accepted == (truth == 0))


@pytest.mark.parametrize("rule", ["f1", "fpr"])
def test_rows_without_labels_are_not_held_out(rule: str):
    known = preparation(threshold=rule, folds=3, calibration="sigmoid", guard="repair", budget=0.2)
    both = with_unlabelled(known, rows(60, 1)[0])
    np.testing.assert_array_equal(both.folds().labels, known.labels)
    alone, trained = train_student(known, 1).packed, train_student(both, 1).packed
    assert alone.calibration is not None
    assert trained.calibration is not None
    np.testing.assert_array_equal(
        trained.calibration.probabilities([-1.0, 1.0]), alone.calibration.probabilities([-1.0, 1.0])
    )
    if rule == "f1":
        assert trained.threshold == alone.threshold
    assert not np.allclose(trained.scores(np.eye(4)), alone.scores(np.eye(4)))


@pytest.mark.parametrize("sparse", [False, True])
def test_missing_labels_in_a_data_set_are_such_rows(sparse: bool):
    X, codes = rows(60, 0)
    labels = [None if k % 2 else str(code) for k, code in enumerate(codes)]
    privileged, scores = X[:, :1] + 1.0, np.eye(3)[codes]
    table = sp.csr_array(X) if sparse else X
    extras = RawExtras(privileged=privileged, teacher_scores=scores)
    data = LabelledData.from_arrays(table, labels, extras=extras, unlabelled=True)
    config = TrainingConfig(
        features=FeatureSpec("linear", scaling="none"), teacher=OutsideScores(), threshold="f1", folds=3
    )
    made = prepare(data, config)
    order = np.concatenate([np.arange(0, 60, 2), np.arange(1, 60, 2)])
    np.testing.assert_array_equal(made.labels, codes[order])
    np.testing.assert_array_equal(made.examples.privileged, privileged[order])
    np.testing.assert_array_equal(made.labelled.labels, codes[::2])

    again = Preparation.from_bytes(made.to_bytes(), data, config)
    np.testing.assert_array_equal(again.scores, made.scores)
    np.testing.assert_array_equal(again.labels, made.labels)
    assert train_student(again, 1).packed.to_bytes() == train_student(made, 1).packed.to_bytes()
    model = train(data, config)
    assert model.students["1"].to_bytes() == train_student(made, 1).packed.to_bytes()
    with pytest.raises(InvalidProblem, match="other data"):
        Preparation.from_bytes(made.to_bytes(), data.labelled(), config)


def test_an_automatic_run_takes_missing_labels():
    X, codes = rows(240, 0)
    labels = [None if k % 4 else str(code) for k, code in enumerate(codes)]
    config = TrainingConfig(
        automatic=True,
        students=(Polytope(),),
        calibration="sigmoid",
        threshold="expected_f1",
        folds=3,
        guard="repair",
    )
    model = train(LabelledData.from_arrays(X, labels, unlabelled=True), config)
    fresh, truth = rows(300, 7)
    for label, student in model.students.items():
        assert np.mean(student.decide(fresh) == (truth == int(label))) > 0.75


def test_further_rows_without_the_extras_of_the_others_are_refused():
    X, codes = rows(30, 0)
    extras = RawExtras(privileged=X)
    known = prepare(
        LabelledData.from_arrays(X, codes, extras=extras), TrainingConfig(features=FeatureSpec("linear"))
    )
    with pytest.raises(InvalidProblem, match="same columns in privileged"):
        with_unlabelled(known, rows(9, 1)[0])


@pytest.mark.parametrize(
    ("X", "code"),
    [
        (np.ones((2, 3)), "wrong_columns"),
        (np.full((2, 4), np.nan), "not_finite"),
        (sp.csr_array(np.ones((2, 4))), "other_format"),
    ],
)
def test_rows_that_do_not_fit_are_refused(X: object, code: str):
    with pytest.raises(InvalidProblem) as caught:
        with_unlabelled(preparation(), X)
    assert code in {fault.code for fault in caught.value.faults}
