"""A class from a few examples: left-out scores equal refitting, the package is an ordinary one, others
stay.
"""

from __future__ import annotations

import json

import numpy as np
import pytest
import scipy.sparse as sp
from scipy.linalg import solve
from sklearn.linear_model import Ridge
from sklearn.metrics import roc_auc_score

from core.data.column_layout import ColumnLayout
from core.data.dataset import LabelledData
from core.errors import InvalidPackage, InvalidProblem
from core.monitoring.addition import FEW, REPEATED, AdditionBase, add_class, conflicts
from core.packed import PackedStudent
from core.students.gated import GSVM
from core.training.config import TrainingConfig
from core.training.pipeline import train
from tests.core.conftest import blobs
from tests.refusals import at_fault


@pytest.fixture(scope="module")
def rows() -> np.ndarray:
    return blobs(400)[0]


@pytest.fixture(scope="module")
def examples() -> np.ndarray:
    return np.random.default_rng(7).normal(size=(12, 5)) * 0.5 + np.array([4.0, -4.0, 0.0, 4.0, 0.0])


@pytest.fixture(scope="module")
def base(rows) -> AdditionBase:
    return AdditionBase.fit(rows)


def test_left_out_scores_are_those_of_a_fit_without_the_row(base, rows, examples):
    added = add_class(base, rows, "new", examples)
    phi = base.feature_map.transform(np.vstack([rows, examples]))
    target, n, q = np.where(added.truth, 1.0, -1.0), len(rows), len(examples)
    weight = np.where(added.truth, n / q, 1.0)
    penalty = added.ridge * np.trace((phi * weight[:, None]).T @ phi) / phi.shape[1]

    def fitted(kept: np.ndarray) -> np.ndarray:
        weighted = phi[kept] * weight[kept, None]
        return solve(
            weighted.T @ phi[kept] + penalty * np.eye(phi.shape[1]), weighted.T @ target[kept], assume_a="pos"
        )

    for i in (0, 17, 399, 400, 405, 411):
        assert added.left_out[i] == pytest.approx(phi[i] @ fitted(np.arange(n + q) != i), abs=1e-8)
    np.testing.assert_allclose(added.student.scores(rows), phi[:n] @ fitted(np.arange(n + q) >= 0), atol=1e-8)
    theirs = Ridge(alpha=penalty, fit_intercept=False, solver="cholesky").fit(phi, target, weight)
    np.testing.assert_allclose(added.student.scores(examples), theirs.predict(phi[n:]), atol=1e-7)


def test_beside_known_classes_it_is_the_margin_over_rivals_that_is_left_out(base, rows, examples):
    codes = np.arange(len(rows)) % 4 - 1
    added = add_class(base, rows, "new", examples, classes=codes)
    phi = base.feature_map.transform(np.vstack([rows, examples]))
    n, q, known = len(rows), len(examples), 3
    label = np.concatenate([codes, np.full(q, known)])
    sizes = np.bincount(label[label >= 0])
    weight = np.where(label >= 0, 1.0 / sizes[label], 0.0)
    target = np.where(label[:, None] == np.arange(known + 1), 1.0, -1.0 / known)
    penalty = added.ridge * np.trace((phi * weight[:, None]).T @ phi) / phi.shape[1]

    def margins(kept: np.ndarray, asked: np.ndarray) -> np.ndarray:
        weighted = phi[kept] * weight[kept, None]
        system = weighted.T @ phi[kept] + penalty * np.eye(phi.shape[1])
        scores = phi[asked] @ solve(system, weighted.T @ target[kept], assume_a="pos")
        return scores[:, known] - scores[:, :known].max(axis=1)

    every = np.arange(n + q)
    for i in (0, 1, 17, 399, 400, 411):
        assert added.left_out[i] == pytest.approx(margins(every != i, every == i)[0], abs=1e-8)
    np.testing.assert_allclose(added.student.scores(rows), margins(every >= 0, every < n), atol=1e-8)
    assert len(added.student.form.coef) == known
    assert PackedStudent.from_bytes(added.student.to_bytes()).digest == added.student.digest
    alone = add_class(base, rows, "new", examples, classes=np.zeros(n, dtype=np.int32))
    np.testing.assert_array_equal(alone.left_out, add_class(base, rows, "new", examples).left_out)


def test_no_other_penalty_has_a_smaller_error_of_left_out_scores(base, rows, examples, monkeypatch):
    best = add_class(base, rows, "new", examples)

    def error(one) -> float:
        squares = (one.left_out - np.where(one.truth, 1.0, -1.0)) ** 2
        return squares[one.truth].mean() + squares[~one.truth].mean()

    others = []
    for ridge in 10.0 ** np.arange(-6, 2):
        monkeypatch.setattr("core.monitoring.addition._RIDGES", np.array([ridge]))
        others.append(error(add_class(base, rows, "new", examples)))
    assert error(best) == pytest.approx(min(others), rel=1e-9)
    assert max(others) > 1.1 * min(others)


def test_a_few_examples_make_a_student_that_tells_the_class(base, rows, examples):
    added = add_class(base, rows, "new", examples, budget=0.02)
    rng = np.random.default_rng(8)
    more = rng.normal(size=(200, 5)) * 0.5 + np.array([4.0, -4.0, 0.0, 4.0, 0.0])
    others = blobs(1000, seed=3)[0]
    says = [added.student.scores(some) >= added.student.threshold for some in (more, others)]
    assert says[0].mean() > 0.9
    assert says[1].mean() < 0.04
    scores = np.concatenate([added.student.scores(more), added.student.scores(others)])
    assert roc_auc_score(np.arange(1200) < 200, scores) > 0.99
    assert added.promise.negatives == 400
    assert added.promise.warning is None
    assert added.warnings == (FEW,)
    told = json.loads(json.dumps(added.as_dict()))
    assert told["of"] == 12
    assert told["accepted"] == (added.left_out[400:] >= added.student.threshold).sum()
    assert told["recall"]["low"] < 0.8


def test_the_student_is_packed_as_any_other(base, rows, examples):
    student = add_class(base, rows, "new", examples).student
    again = PackedStudent.from_bytes(student.to_bytes(), digest=student.digest)
    assert again.label == "new"
    assert (again.scores(rows) == student.scores(rows)).all()
    p = student.calibration.probabilities(student.scores(np.vstack([rows, examples])))
    assert p[:400].mean() < 0.1 < 0.5 < p[400:].mean()
    stored = AdditionBase.from_bytes(base.to_bytes())
    assert stored.to_bytes() == base.to_bytes()
    assert add_class(stored, rows, "new", examples).student.digest == student.digest


def test_other_students_stay_and_those_that_do_not_know_the_class_are_named(rows):
    X, labels = blobs(300)
    model = train(LabelledData.from_arrays(X, labels), TrainingConfig(students=(GSVM(),)))
    digests = {label: student.digest for label, student in model.students.items()}
    close = X[labels == "class 2"][:10] + 0.01
    added = add_class(AdditionBase.fit(X), X, "new", close)
    assert {label: student.digest for label, student in model.students.items()} == digests
    named = conflicts(model.students, close)
    assert named["class 2"] > 5
    assert all(count > 1 for count in named.values())
    assert conflicts({"new": added.student}, X[labels != "class 2"][:50]) == {}


def test_a_confidence_makes_the_threshold_higher(base, rows, examples):
    spread = examples + np.random.default_rng(9).normal(size=examples.shape) * 2.5
    plain, sure = (add_class(base, rows, "new", spread, budget=0.05, confidence=c) for c in (None, 0.95))
    assert sure.promise.accepted <= plain.promise.accepted
    assert sure.promise.bound <= 0.05
    assert sure.student.threshold >= plain.student.threshold


@pytest.mark.parametrize("terms", [False, True])
def test_sparse_rows_and_terms_of_texts_are_added_too(terms: bool):
    rng = np.random.default_rng(10)
    X = sp.random_array((200, 40), density=0.1, rng=rng, format="csr")
    layout = None
    if terms:
        X = sp.csr_array(sp.hstack([sp.csr_array(10.0 + rng.normal(size=(200, 2))), X]))
        layout = ColumnLayout(42, 2, (0, 1))
    new = X[:8].copy()
    new.data += 3.0
    added = add_class(AdditionBase.fit(X, layout), X, "new", new)
    scores = added.student.scores_sparse(X.indices, X.data, X.indptr)
    assert scores[8:].mean() < added.student.scores(new.toarray()).mean()
    accepted = int((added.student.scores(new.toarray()) >= added.student.threshold).sum())
    assert accepted > 1
    assert conflicts({"new": added.student}, new) == {"new": accepted}
    assert added.left_out[200:].mean() > added.left_out[:200].mean()


def test_equal_examples_are_warned_of(base, rows, examples):
    twice = np.vstack([examples, examples])
    assert add_class(base, rows, "new", twice).warnings == (REPEATED,)


def test_what_cannot_be_added_is_refused(base, rows, examples):
    for some, code in ((examples[:4], "out_of_bounds"), (examples[:, :4], "wrong_columns")):
        with at_fault(InvalidProblem, code):
            add_class(base, rows, "new", some)
    with at_fault(InvalidProblem, "other_data", field="X"):
        add_class(base, rows[1:], "new", examples)
    with at_fault(InvalidProblem, "not_finite"):
        add_class(base, rows, "new", np.full((6, 5), np.nan))
    for broken in (b"", base.to_bytes()[:-8], base.feature_map.to_bytes()):
        with pytest.raises(InvalidPackage):
            AdditionBase.from_bytes(broken)
