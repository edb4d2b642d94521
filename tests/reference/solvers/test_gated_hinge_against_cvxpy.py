from __future__ import annotations

import cvxpy as cp
import numpy as np
import pytest
from sklearn.svm import LinearSVC

from core.solvers.dual_cd import solve_dual_cd
from core.solvers.gated_hinge import GatedHingeProblem
from core.solvers.mm_irls import solve_mm_irls


def random_problem(seed: int) -> GatedHingeProblem:
    """C from 1e-3 to 1e5 and imbalance to 1:200 over the seeds; every third problem has m > n."""
    rng = np.random.default_rng(seed)
    n, m = (40, 70) if seed % 3 == 2 else (201, 12)
    positives = 1 if seed % 2 else n // 3
    signs = np.where(np.arange(n) < positives, 1.0, -1.0)
    features = rng.normal(size=(n, m))
    features[:, -1] = 1.0
    gate = signs * rng.normal(0.7, 1.5, n)
    difficulty = rng.uniform(0.3, 1.0, n)
    C = 10.0 ** (-3 + 8 * seed / 11)
    return GatedHingeProblem.gated(features, signs, gate, C=C, margin=1.0, difficulty=difficulty)


def clarabel_objective(problem: GatedHingeProblem) -> float:
    theta = cp.Variable(problem.shape[1])
    slacks = problem.targets + cp.multiply(problem.signs, problem.features @ theta)
    objective = 0.5 * cp.sum_squares(theta) + problem.bounds @ cp.pos(slacks)
    model = cp.Problem(cp.Minimize(objective))
    model.solve(solver=cp.CLARABEL, tol_gap_abs=1e-11, tol_gap_rel=1e-11, tol_feas=1e-11, max_iter=500)
    assert model.status == cp.OPTIMAL
    return problem.primal_objective(theta.value)


@pytest.mark.parametrize("seed", range(12))
def test_dual_coordinate_descent_reaches_the_optimum_of_clarabel(seed):
    problem = random_problem(seed)
    ours = solve_dual_cd(problem, tolerance=1e-7)
    assert ours.objective == pytest.approx(clarabel_objective(problem), rel=1e-6)


@pytest.mark.parametrize("seed", [0, 3, 4, 5, 6])
def test_majorise_minimise_reaches_the_optimum_of_clarabel(seed):
    problem = random_problem(seed)
    ours = solve_mm_irls(problem, tolerance=1e-6)
    assert ours.objective == pytest.approx(clarabel_objective(problem), rel=2e-6)


@pytest.mark.parametrize("C", [0.1, 10.0, 1000.0])
@pytest.mark.parametrize("solve", [solve_dual_cd, solve_mm_irls])
def test_the_plain_svm_is_the_one_of_scikit_learn(solve, C):
    rng = np.random.default_rng(4)
    features = np.hstack([rng.normal(size=(150, 5)), np.ones((150, 1))])
    signs = np.where(features[:, 0] + rng.normal(size=150) > 0.5, 1.0, -1.0)
    problem = GatedHingeProblem.svm(features, signs, C=C)
    reference = LinearSVC(loss="hinge", C=C / 150, fit_intercept=False, tol=1e-10, max_iter=10_000_000)
    weights = reference.fit(features, signs).coef_.ravel()
    ours = solve(problem, tolerance=1e-8)
    assert ours.objective == pytest.approx(problem.primal_objective(-weights), rel=1e-6)
    np.testing.assert_allclose(-ours.value, weights, atol=2e-3)
