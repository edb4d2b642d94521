"""Newton's method for ODM against L-BFGS on the primal and Clarabel on the dual."""

from __future__ import annotations

import clarabel
import numpy as np
import pytest
import scipy.sparse as sp
from scipy.optimize import minimize

from core.run import Run
from core.solvers.margins.margin_distribution import MarginDistributionProblem, solve_margin_distribution
from tests.lanes import first_short


def random_problem(seed: int) -> MarginDistributionProblem:
    """C from 1e-3 to 1e5, with and without gate, θ to 0.9, μ to 1; every third problem has m > n."""
    rng = np.random.default_rng(seed)
    n, m = (30, 50) if seed % 3 == 2 else (90, 8)
    features = rng.normal(size=(n, m))
    features[:, -1] = 1.0
    signs = np.where(np.arange(n) < (2 if seed % 2 else n // 3), 1.0, -1.0)
    gate = signs * rng.normal(0.7, 1.5, n) * (seed % 4 > 0)
    C, band, excess = 10.0 ** rng.uniform(-3, 5), rng.uniform(0, 0.9), rng.uniform(0.05, 1.0)
    return MarginDistributionProblem(features, signs, gate, C=C, band=band, excess=excess)


def primal(w: np.ndarray, problem: MarginDistributionProblem) -> tuple[float, np.ndarray]:
    """The objective as the paper writes it, and its gradient."""
    n, signs = len(problem.signs), problem.signs
    margins = signs * (problem.features @ w + problem.gate)
    weight = problem.C / (n * (1.0 - problem.band) ** 2)
    below = np.maximum(1.0 - problem.band - margins, 0.0)
    above = np.maximum(margins - 1.0 - problem.band, 0.0)
    value = 0.5 * w @ w + 0.5 * weight * (below @ below + problem.excess * (above @ above))
    return value, w + weight * problem.features.T @ (signs * (problem.excess * above - below))


def clarabel_dual(problem: MarginDistributionProblem) -> float:
    """The largest D: min ½‖Σ(α−β)zφ‖² + ‖α‖²/2U + ‖β‖²/2Uμ − l·α + h·β over α, β ≥ 0."""
    n = len(problem.signs)
    rows = problem.signs[:, None] * problem.features
    Q = rows @ rows.T
    curvature = np.r_[np.ones(n), np.ones(n) / problem.excess] / problem.weight
    P = np.block([[Q, -Q], [-Q, Q]]) + np.diag(curvature)
    gate = problem.signs * problem.gate
    q = np.r_[-(1.0 - problem.band - gate), 1.0 + problem.band - gate]
    settings = clarabel.DefaultSettings()
    settings.verbose = False
    settings.tol_gap_abs = settings.tol_gap_rel = settings.tol_feas = 1e-11
    solution = clarabel.DefaultSolver(
        sp.csc_matrix(np.triu(P)),
        q,
        sp.csc_matrix(-np.eye(2 * n)),
        np.zeros(2 * n),
        [clarabel.NonnegativeConeT(2 * n)],
        settings,
    ).solve()
    return -solution.obj_val


@pytest.mark.parametrize("seed", first_short(range(60), 12))
def test_the_objective_is_that_of_l_bfgs_on_the_primal(seed):
    problem = random_problem(seed)
    ours = solve_margin_distribution(problem, tolerance=1e-9)
    start = np.zeros(problem.features.shape[1])
    options = {"maxiter": 20_000, "maxfun": 100_000, "ftol": 1e-15, "gtol": 1e-10}
    theirs = minimize(primal, start, (problem,), method="L-BFGS-B", jac=True, options=options)
    assert primal(ours.value, problem)[0] == pytest.approx(ours.objective, rel=1e-12)
    assert ours.objective == pytest.approx(theirs.fun, rel=1e-6)


@pytest.mark.parametrize("seed", first_short(range(40), 8))
def test_the_objective_is_that_of_clarabel_on_the_dual(seed):
    problem = random_problem(seed)
    ours = solve_margin_distribution(problem, tolerance=1e-9)
    assert ours.objective == pytest.approx(clarabel_dual(problem), rel=1e-6)


@pytest.mark.parametrize("seed", first_short(range(20), 4))
def test_the_objective_never_rises_and_the_gap_bounds_the_error(seed):
    problem = random_problem(seed)
    exact = solve_margin_distribution(problem, tolerance=1e-9)
    loose = solve_margin_distribution(problem, tolerance=0.5, run=Run())
    trace = np.array(exact.trace)
    assert (np.diff(trace) <= 1e-12 * trace[:-1]).all()
    assert loose.dual_objective <= exact.objective * (1.0 + 1e-9)
    assert exact.objective <= loose.objective * (1.0 + 1e-9)
