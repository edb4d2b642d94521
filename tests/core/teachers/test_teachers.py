"""The teacher against LIBLINEAR's Crammer-Singer SVM, and the early-stopping traversal against its text."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.svm import LinearSVC

from core.model_selection.folds import task_of_features
from core.run import Run
from core.solvers import crammer_singer
from core.teachers.linear import LinearTeacher, classes_evaluated
from core.teachers.ssvm import SSVM


def problem(n: int = 150, m: int = 6, K: int = 4, seed: int = 0):
    rng = np.random.default_rng(seed)
    labels = rng.integers(K, size=n)
    features = rng.normal(size=(K, m))[labels] + rng.normal(size=(n, m))
    features[:, -1] = 1.0
    return features, labels


def fit_ssvm(features, labels, n_classes, *, start=None, run=Run(), **fields):
    return SSVM(**fields).fit(task_of_features(features, labels, n_classes), run, start)


def crammer_singer_objective(W, features, labels, C: float) -> float:
    scores = features @ W.T
    rows = np.arange(len(labels))
    own = scores[rows, labels].copy()
    scores += 1.0
    scores[rows, labels] -= 1.0
    return 0.5 * float((W**2).sum()) + C / len(labels) * float((scores.max(axis=1) - own).sum())


@pytest.mark.parametrize("C", [1.0, 100.0, 5000.0])
def test_the_teacher_reaches_the_objective_of_liblinear(C: float):
    features, labels = problem()
    reference = LinearSVC(
        multi_class="crammer_singer",
        C=C / len(labels),
        fit_intercept=False,
        tol=1e-8,
        max_iter=200_000,
        random_state=0,
    ).fit(features, labels)
    teacher = fit_ssvm(features, labels, 4, C=C, tolerance=1e-6, max_epochs=100_000)
    expected = crammer_singer_objective(reference.coef_, features, labels, C)
    objective = crammer_singer_objective(teacher.weights, features, labels, C)
    # No weights lie below the minimum, and LIBLINEAR stops above it (at C = 5000 by 1e-4).
    assert objective <= expected * (1 + 1e-4)
    assert teacher.summary is not None
    assert teacher.summary.objective == pytest.approx(objective, rel=1e-9)
    assert 0.0 <= teacher.summary.relative_gap <= 1e-6
    assert teacher.summary.status == "converged"


def test_sparse_rows_give_the_same_teacher_as_dense_ones():
    features, labels = problem()
    features[np.abs(features) < 0.8] = 0.0
    dense = fit_ssvm(features, labels, 4, C=50.0, tolerance=1e-8)
    sparse = fit_ssvm(sp.csr_array(features), labels, 4, C=50.0, tolerance=1e-8)
    np.testing.assert_allclose(sparse.weights, dense.weights, atol=1e-3)
    np.testing.assert_allclose(
        sparse.feature_scores(sp.csr_array(features)), sparse.feature_scores(features), atol=1e-12
    )


def test_scores_are_linear_in_the_features_with_the_gates_weights():
    features, labels = problem()
    teacher = fit_ssvm(features, labels, 4, C=50.0)
    scores = teacher.feature_scores(features)
    np.testing.assert_allclose(scores, features @ teacher.weights.T, atol=1e-12)
    np.testing.assert_array_equal(teacher.class_weights[2], teacher.weights[2])


@pytest.mark.parametrize("C", [40.0, 400.0])
def test_a_warm_start_from_another_c_reaches_the_same_objective_in_fewer_epochs(
    C: float, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(crammer_singer, "_MOST_NEWTON_WEIGHTS", 0)  # epochs and Newton steps do not compare
    epochs = np.zeros(2)  # cold and warm; of one problem, chance decides between a round more or less
    for seed in range(5):
        features, labels = problem(n=400, seed=seed)
        neighbour = fit_ssvm(features, labels, 4, C=200.0, tolerance=1e-8)
        cold, warm = (
            fit_ssvm(features, labels, 4, C=C, tolerance=1e-4, start=start).summary
            for start in (None, neighbour)
        )
        assert cold is not None
        assert warm is not None
        assert warm.objective == pytest.approx(cold.objective, rel=2e-4)
        epochs += cold.iterations, warm.iterations
    assert epochs[1] < epochs[0]


def test_a_teacher_without_dual_variables_is_no_warm_start_but_no_error():
    features, labels = problem()
    cold = fit_ssvm(features, labels, 4, C=50.0)
    again = fit_ssvm(features, labels, 4, C=50.0, start=LinearTeacher(cold.weights))
    np.testing.assert_array_equal(again.weights, cold.weights)


def traversal(row, target: int) -> int:
    """Remark 2, class by class."""
    evaluated = 1
    for k, score in enumerate(row):
        if k == target:
            continue
        evaluated += 1
        if score > row[target] or (score == row[target] and k < target):
            return evaluated
    return evaluated


@pytest.mark.parametrize("K", [2, 5])
def test_the_traversal_stops_at_the_first_class_that_wins(K: int):
    scores = np.random.default_rng(K).integers(-2, 3, size=(200, K)).astype(float)
    for target in range(K):
        expected = [traversal(row, target) for row in scores]
        np.testing.assert_array_equal(classes_evaluated(scores, target), expected)


def test_an_accepted_example_costs_every_class():
    scores = np.random.default_rng(0).normal(size=(300, 6))
    accepted = scores.argmax(axis=1) == 3
    assert (classes_evaluated(scores, 3)[accepted] == 6).all()
    assert classes_evaluated(scores, 3)[~accepted].mean() < 6
