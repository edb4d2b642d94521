"""mcODM: the block by brute force, inner problems by Clarabel, monotone bounds, and fixed points."""

from __future__ import annotations

from collections.abc import Iterator

import cvxpy as cp
import numpy as np
import pytest
import scipy.optimize
import scipy.sparse as sp

from core.errors import Cancelled, InvalidProblem
from core.run import Run
from core.solvers.margins.multiclass_odm import MulticlassMarginProblem, solve_multiclass_odm
from core.solvers.margins.multiclass_sweeps import solve_margin_block
from core.solvers.solution import Status

WORST = 1e-6
"""The largest relative difference of an objective to that of the oracle."""


def blocks(number: int = 60) -> Iterator[tuple[float, float, float, float, float, np.ndarray]]:
    """A, D, E, B_y, F and B of the other classes, from 1 to 8 of them."""
    for seed in range(number):
        rng = np.random.default_rng(seed)
        norm = 10.0 ** rng.uniform(-1, 1)
        own, excess = norm + 10.0 ** rng.uniform(-2, 1, 2)
        yield norm, own, excess, rng.normal(), 2.0 * rng.normal(), rng.normal(size=rng.integers(1, 9))


def block_value(a: np.ndarray, b: float, block) -> float:
    norm, own_curvature, excess_curvature, own, excess, rivals = block
    a_y = -a.sum()
    return float(
        0.5 * norm * (a @ a)
        + rivals @ a
        + 0.5 * own_curvature * a_y**2
        - norm * a_y * b
        + own * a_y
        + 0.5 * excess_curvature * b**2
        + excess * b
    )


def by_brute_force(block) -> float:
    """The least value over all sets of variables that are at their bounds, by one linear system each."""
    norm, own_curvature, excess_curvature, own, excess, rivals = block
    count, best = len(rivals), 0.0
    hessian = np.full((count + 1, count + 1), own_curvature)
    hessian[np.arange(count), np.arange(count)] += norm
    hessian[:count, count] = hessian[count, :count] = norm
    hessian[count, count] = excess_curvature
    linear = np.append(rivals - own, excess)
    for chosen in range(1, 2 ** (count + 1)):
        free = np.flatnonzero([chosen >> bit & 1 for bit in range(count + 1)])
        point = np.zeros(count + 1)
        point[free] = np.linalg.solve(hessian[np.ix_(free, free)], -linear[free])
        if (point[:count] <= 1e-12).all() and point[count] >= -1e-12:
            best = min(best, block_value(point[:count], point[count], block))
    return best


def test_the_block_is_the_best_of_all_active_sets():
    worst = 0.0
    for block in blocks():
        norm, own_curvature, excess_curvature, own, excess, rivals = block
        nu, b = solve_margin_block(
            norm, own_curvature, excess_curvature, own, excess, rivals.copy(), len(rivals)
        )
        a = np.minimum(0.0, (nu - rivals) / norm)
        expected = by_brute_force(block)
        worst = max(worst, (block_value(a, b, block) - expected) / max(abs(expected), 1e-3))
        assert b >= 0.0
    assert worst <= WORST


def test_the_block_is_that_of_a_quadratic_programme_of_scipy():
    for block in blocks(10):
        rivals = block[-1]
        count = len(rivals)
        found = scipy.optimize.minimize(
            lambda x: block_value(x[:-1], x[-1], block),  # noqa: B023
            np.zeros(count + 1),
            bounds=[(None, 0.0)] * count + [(0.0, None)],
            method="L-BFGS-B",
            options={"ftol": 1e-15, "gtol": 1e-10},
        )
        assert found.fun == pytest.approx(by_brute_force(block), rel=1e-6, abs=1e-8)


def problems(number: int = 40) -> Iterator[MulticlassMarginProblem]:
    for seed in range(number):
        rng = np.random.default_rng(seed)
        n, m, K = int(rng.integers(10, 60)), int(rng.integers(2, 8)), int(rng.integers(2, 6))
        labels = rng.integers(0, K, n)
        features = rng.normal(size=(n, m)) + rng.normal(size=(K, m))[labels]
        C, band = 10.0 ** rng.uniform(0, 3), rng.uniform(0.0, 0.8)
        yield MulticlassMarginProblem(features, labels, K, C, band, 10.0 ** rng.uniform(-1, 0))


def by_clarabel(problem: MulticlassMarginProblem, rivals: np.ndarray) -> float:
    """The least P_M, as the slides have it: with slack variables and linear constraints."""
    n, K = len(problem.labels), problem.n_classes
    W, short, beyond = cp.Variable((K, problem.features.shape[1])), cp.Variable(n), cp.Variable(n)
    scores = problem.features @ W.T
    own = cp.sum(cp.multiply(scores, np.eye(K)[problem.labels]), axis=1)
    constraints = [own - rivals <= 1.0 + problem.band + beyond]
    for rival in range(K):
        rows = np.flatnonzero(problem.labels != rival)
        constraints.append(own[rows] - scores[rows, rival] >= 1.0 - problem.band - short[rows])
    losses = cp.sum_squares(short) + problem.excess * cp.sum_squares(beyond)
    model = cp.Problem(cp.Minimize(0.5 / problem.weight * cp.sum_squares(W) + 0.5 * losses), constraints)
    model.solve(solver=cp.CLARABEL, tol_gap_rel=1e-9, tol_gap_abs=1e-9, tol_feas=1e-9)
    return float(problem.weight * model.value)


@pytest.mark.long
def test_inner_problems_have_the_objective_of_clarabel_and_bounds_that_never_fall():
    worst = 0.0
    for problem in problems():
        found = solve_multiclass_odm(problem, tolerance=1e-8, max_epochs=50_000)
        expected = by_clarabel(problem, found.rivals)
        worst = max(worst, abs(found.objective - expected) / expected)
        assert found.objective == pytest.approx(problem.objective(found.value, found.rivals), rel=1e-12)
        assert found.dual_objective <= expected * (1.0 + 1e-9)
        for bounds in found.rounds:
            # While the sweeps are in float32, α is rounded as they see it.
            assert np.min(np.diff(bounds), initial=0.0) >= -1e-6 * abs(bounds[-1])
    assert worst <= WORST


def test_most_problems_end_at_a_fixed_point():
    """Where the loss weighs much, M may go on drifting: the status says so."""
    settled = 0
    for problem in problems():
        found = solve_multiclass_odm(problem, tolerance=1e-3, max_epochs=50_000)
        if found.status is Status.CONVERGED:
            settled += 1
            assert problem.objective(found.value) == pytest.approx(found.objective, rel=2e-3)
            assert found.change <= 1e-3
            again = solve_multiclass_odm(problem, tolerance=1e-3, initial_dual=found.dual)
            assert again.status is Status.CONVERGED
            assert again.iterations <= found.iterations
        else:
            assert found.status is Status.MAX_ITERATIONS
    assert settled >= 34


def test_dense_and_sparse_rows_give_the_same():
    problem = next(problems())
    sparse = MulticlassMarginProblem(
        sp.csr_array(problem.features),
        problem.labels,
        problem.n_classes,
        problem.C,
        problem.band,
        problem.excess,
    )
    one = solve_multiclass_odm(problem, tolerance=1e-7, max_epochs=50_000)
    two = solve_multiclass_odm(sparse, tolerance=1e-7, max_epochs=50_000)
    assert two.objective == pytest.approx(one.objective, rel=1e-5)


def test_empty_rows_lose_the_same_for_every_solution():
    problem = next(problems())
    features = problem.features.copy()
    features[3] = 0.0
    changed = MulticlassMarginProblem(
        features, problem.labels, problem.n_classes, problem.C, problem.band, problem.excess
    )
    found = solve_multiclass_odm(changed, tolerance=1e-7, max_epochs=50_000)
    assert found.status is Status.CONVERGED
    assert found.objective == pytest.approx(by_clarabel(changed, found.rivals), rel=1e-6)


def test_limits_cancellation_and_progress():
    problem = next(problems())
    seen = []
    found = solve_multiclass_odm(problem, tolerance=1e-12, max_epochs=5, run=Run(progress=seen.append))
    assert found.status is Status.MAX_ITERATIONS
    assert seen[-1].stage == "mcodm"
    assert seen[-1].done >= 5
    with pytest.raises(Cancelled):
        solve_multiclass_odm(problem, run=Run(should_cancel=lambda: True))


@pytest.mark.parametrize(
    "wrong",
    [
        {"tolerance": 0.0},
        {"max_epochs": 0},
        {"max_outer": 0},
        {"initial_dual": np.zeros((3, 3))},
    ],
)
def test_unusable_arguments_of_the_solver_are_refused(wrong):
    with pytest.raises(InvalidProblem):
        solve_multiclass_odm(next(problems()), **wrong)


@pytest.mark.parametrize(
    "wrong", [{"band": 1.0}, {"band": -0.1}, {"excess": 0.0}, {"C": 0.0}, {"n_classes": 1}]
)
def test_an_unusable_problem_is_refused(wrong):
    problem = next(problems())
    fields = {
        name: getattr(problem, name) for name in ("features", "labels", "n_classes", "C", "band", "excess")
    }
    with pytest.raises(InvalidProblem):
        MulticlassMarginProblem(**{**fields, **wrong})
