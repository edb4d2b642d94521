from __future__ import annotations

import cvxpy as cp
import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.datasets import load_iris
from sklearn.preprocessing import scale
from sklearn.svm import LinearSVC

from core.solvers.crammer_singer import CrammerSingerProblem, solve_crammer_singer


def liblinear_objective(problem: CrammerSingerProblem) -> float:
    model = LinearSVC(
        multi_class="crammer_singer", C=problem.bound, fit_intercept=False, tol=1e-9, max_iter=1_000_000
    )
    W = model.fit(problem.features, problem.labels).coef_
    return problem.primal_objective(W)


@pytest.mark.parametrize("bound", [1e-3, 0.05, 1.0])
@pytest.mark.parametrize("sparse", [False, True])
def test_the_objective_is_that_of_liblinear(bound, sparse):
    X, y = load_iris(return_X_y=True)
    features = np.hstack([scale(X), np.ones((len(X), 1))])
    problem = CrammerSingerProblem(sp.csr_array(features) if sparse else features, y, 3, bound)
    ours = solve_crammer_singer(problem, tolerance=1e-6, max_epochs=20_000)
    assert ours.objective == pytest.approx(liblinear_objective(problem), rel=1e-4)


def test_the_objective_is_that_of_clarabel():
    rng = np.random.default_rng(0)
    features, labels, bound = rng.normal(size=(40, 6)), rng.integers(0, 4, 40), 0.3
    W = cp.Variable((4, 6))
    scores = features @ W.T
    own = cp.sum(cp.multiply(scores, np.eye(4)[labels]), axis=1)
    losses = cp.max(scores + 1.0 - np.eye(4)[labels], axis=1) - own
    model = cp.Problem(cp.Minimize(0.5 * cp.sum_squares(W) + bound * cp.sum(losses)))
    model.solve(solver=cp.CLARABEL, tol_gap_rel=1e-10)
    problem = CrammerSingerProblem(features, labels, 4, bound)
    ours = solve_crammer_singer(problem, tolerance=1e-7, max_epochs=20_000)
    assert ours.objective == pytest.approx(model.value, rel=1e-6)
    np.testing.assert_allclose(ours.value, W.value, atol=3e-3)


def test_two_classes_are_a_binary_svm_with_half_the_weight():
    """K = 2: w_0 = −w_1 = w, min ‖w‖² + b Σ [1 − 2 z w·φ]_+, a binary SVM in 2w with C = 2b."""
    rng = np.random.default_rng(1)
    features = rng.normal(size=(80, 4))
    labels = (features[:, 0] + 0.5 * rng.normal(size=80) > 0).astype(int)
    ours = solve_crammer_singer(CrammerSingerProblem(features, labels, 2, 0.5), tolerance=1e-9)
    binary = LinearSVC(loss="hinge", C=1.0, fit_intercept=False, tol=1e-10, max_iter=10_000_000)
    weights = binary.fit(features, labels).coef_.ravel()
    np.testing.assert_allclose(2 * ours.value[1], weights, atol=1e-3)
    np.testing.assert_allclose(ours.value[0], -ours.value[1], atol=1e-12)
