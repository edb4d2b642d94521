from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

from core.errors import InvalidProblem
from core.run import Run
from core.solvers import ridge_system
from core.solvers.dual_cd import solve_dual_cd
from core.solvers.gated_hinge import GatedHingeProblem
from core.solvers.proximal_newton import proximal_step
from core.solvers.solution import Status


def test_a_warm_start_saves_most_of_the_work(make_gated):
    near, far = make_gated(300, 20, 1000.0, 60), make_gated(300, 20, 1100.0, 60)
    cold = solve_dual_cd(far)
    warm = solve_dual_cd(far, initial_dual=solve_dual_cd(near).dual)
    assert warm.objective == pytest.approx(cold.objective, rel=2e-6)
    assert warm.iterations < cold.iterations
    assert solve_dual_cd(far, initial_dual=cold.dual).iterations < cold.iterations / 2


def test_a_warm_start_outside_the_box_is_clipped_into_it(make_gated):
    problem = make_gated()
    start = np.where(np.arange(60) % 2, 1e9, -1e9)
    assert solve_dual_cd(problem, initial_dual=start).status is Status.CONVERGED
    assert start[0] == -1e9


@pytest.mark.parametrize("start", [np.zeros(3), np.full(60, np.nan)])
def test_a_warm_start_that_does_not_fit_is_refused(start, make_gated):
    with pytest.raises(InvalidProblem, match="initial_dual"):
        solve_dual_cd(make_gated(), initial_dual=start)


def test_the_same_seed_gives_the_same_bits_and_another_seed_the_same_optimum(make_gated):
    problem = make_gated(150, 10, 500.0, 40)
    one, same, other = (solve_dual_cd(problem, run=Run(seed)) for seed in (1, 1, 2))
    np.testing.assert_array_equal(one.value, same.value)
    assert other.objective == pytest.approx(one.objective, rel=2e-6)
    assert other.trace != one.trace


def test_no_epochs_are_refused(make_gated):
    with pytest.raises(InvalidProblem, match="at least one iteration"):
        solve_dual_cd(make_gated(), max_epochs=0)


def test_large_systems_are_solved_without_forming_them(make_gated, monkeypatch):
    monkeypatch.setattr(ridge_system, "_DIRECT_LIMIT", 4)
    problem = make_gated(200, 20, 1e4, 50)
    solution = solve_dual_cd(problem)
    assert solution.status is Status.CONVERGED


@pytest.mark.parametrize("width", [1e-4, 1.0, 100.0])
def test_a_proximal_step_never_lowers_the_dual(width, make_gated):
    problem = make_gated(100, 10, 1e4, 30)
    rng = np.random.default_rng(0)
    for _ in range(10):
        alpha = rng.uniform(0, problem.bounds) * (rng.random(100) < 0.3)
        before, theta = problem.dual_objective(alpha)
        step = proximal_step(problem, alpha, theta, width=width, accuracy=1e-9, run=Run())
        after, step_theta = problem.dual_objective(step.alpha)
        assert after >= before - 1e-12 * abs(before)
        assert ((step.alpha >= 0) & (step.alpha <= problem.bounds)).all()
        np.testing.assert_allclose(step.theta, step_theta, atol=1e-8 * np.abs(step_theta).max())


def test_a_proximal_step_solves_its_own_problem(make_gated):
    """Its dual optimality condition: α = clip(α⁰ + U u(θ(α)) / σ, 0, U)."""
    problem = make_gated(100, 10, 1e3, 30)
    start = np.full(100, 0.5) * problem.bounds
    step = proximal_step(problem, start, problem.theta_of(start), width=0.5, accuracy=1e-18, run=Run())
    slacks = problem.slacks(step.theta)
    expected = np.clip(start + problem.bounds * slacks / 0.5, 0, problem.bounds)
    np.testing.assert_allclose(step.alpha, expected, atol=1e-6 * problem.bounds.max())


def test_sparse_text_like_data_converges():
    rng = np.random.default_rng(0)
    features = sp.csr_array(sp.random_array((500, 3000), density=0.01, rng=rng, format="csr"))
    signs = np.where(rng.random(500) < 0.1, 1.0, -1.0)
    solution = solve_dual_cd(GatedHingeProblem.svm(features, signs, C=1e5))
    assert solution.status is Status.CONVERGED


def test_a_proximal_step_ends_when_its_direction_is_below_rounding():
    signs = np.array([1.0, -1.0])
    satisfied = GatedHingeProblem.gated(np.eye(2), signs, 5 * signs, C=1.0, margin=1.0)
    never = -1.0
    step = proximal_step(satisfied, np.zeros(2), np.zeros(2), width=1.0, accuracy=never, run=Run())
    assert step.newton_steps == 0
    np.testing.assert_array_equal(step.alpha, 0.0)


@pytest.mark.parametrize("width", [1e-3, 1.0])
def test_a_proximal_step_moves_the_chosen_rows_only_and_never_lowers_the_dual(width, make_gated):
    problem = make_gated(100, 10, 1e3, 30)
    start = 0.5 * problem.bounds
    chosen = np.arange(0, 100, 3)
    theta = problem.theta_of(start)
    step = proximal_step(problem, start, theta, width=width, accuracy=1e-12, run=Run(), active=chosen)
    others = np.setdiff1d(np.arange(100), chosen)
    np.testing.assert_array_equal(step.alpha[others], start[others])
    assert (step.alpha[chosen] != start[chosen]).any()
    value, exact = problem.dual_objective(step.alpha)
    np.testing.assert_allclose(step.theta, exact, rtol=1e-9, atol=1e-9)
    assert value > problem.dual_objective_at(start, theta)
