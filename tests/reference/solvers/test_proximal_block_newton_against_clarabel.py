from __future__ import annotations

import cvxpy as cp
import numpy as np
import pytest

from core.run import Run
from core.solvers.crammer_singer import CrammerSingerProblem, solve_crammer_singer
from core.solvers.proximal_block_newton import proximal_block_step


def some_problem(bound: float) -> CrammerSingerProblem:
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 4, 80)
    features = rng.normal(size=(80, 5)) + rng.normal(size=(4, 5))[labels]
    return CrammerSingerProblem(features, labels, 4, bound)


@pytest.mark.parametrize("width", [0.1, 1.0])
def test_a_step_solves_the_problem_it_says_it_does(width):
    """max D(α) − (σ / 2b) ‖α − α⁰‖² over the feasible blocks, as the module has it."""
    problem = some_problem(2.0)
    rng = np.random.default_rng(1)
    start = problem.feasible_start(-rng.exponential(1.0, (80, 4)) * (rng.random((80, 4)) < 0.4))
    step = proximal_block_step(
        problem,
        start,
        problem.weights_of(start),
        np.arange(80),
        width=width,
        accuracy=1e-16,
        run=Run(),
    )
    alpha = cp.Variable((80, 4))
    own = np.eye(4)[problem.labels]
    dual = cp.sum(cp.multiply(own, alpha)) - 0.5 * cp.sum_squares(alpha.T @ problem.features)
    model = cp.Problem(
        cp.Maximize(dual - width / (2 * 2.0) * cp.sum_squares(alpha - start)),
        [cp.sum(alpha, axis=1) == 0, alpha <= 2.0 * own],
    )
    model.solve(solver=cp.CLARABEL, tol_gap_rel=1e-12, tol_gap_abs=1e-12, tol_feas=1e-12)
    np.testing.assert_allclose(step.alpha, alpha.value, atol=1e-5)


def test_the_objective_is_that_of_clarabel_where_block_descent_crawls():
    problem = some_problem(1e4)
    W = cp.Variable((4, 5))
    scores = problem.features @ W.T
    own = np.eye(4)[problem.labels]
    losses = cp.max(scores + 1.0 - own, axis=1) - cp.sum(cp.multiply(scores, own), axis=1)
    # Divided by the bound: Clarabel's own scaling does not reach far enough.
    model = cp.Problem(cp.Minimize(0.5 / 1e4 * cp.sum_squares(W) + cp.sum(losses)))
    model.solve(solver=cp.CLARABEL, tol_gap_rel=1e-10)
    ours = solve_crammer_singer(problem, tolerance=1e-8)
    assert ours.objective == pytest.approx(1e4 * model.value, rel=1e-6)
