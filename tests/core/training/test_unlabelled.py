"""Students of rows that only the teacher has named."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

from core.data.dataset import LabelledData
from core.errors import InvalidProblem
from core.features.examples import Examples
from core.features.spec import FeatureSpec
from core.run import Run
from core.students.gated import GSVM
from core.training.config import TrainingConfig
from core.training.preparation import prepare
from core.training.student_training import train_student
from core.training.unlabelled import with_unlabelled


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


def test_rows_without_labels_are_not_held_out():
    with pytest.raises(InvalidProblem, match="cannot be held out"):
        with_unlabelled(preparation(threshold="f1"), rows(9, 1)[0])


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
