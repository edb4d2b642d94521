"""The interior point method for SVM+ against Clarabel on the primal quadratic programme."""

from __future__ import annotations

import clarabel
import numpy as np
import pytest
import scipy.sparse as sp

from core.solvers.margins.privileged_hinge import PrivilegedHingeProblem, solve_privileged_hinge


def random_problem(seed: int) -> PrivilegedHingeProblem:
    """C from 1e-3 to 1e5, κ from 1e-3 to 100; every third problem has m > n, every third 40 privileged."""
    rng = np.random.default_rng(seed)
    n, m, p = ((90, 8, 40), (90, 8, 4), (30, 50, 5))[seed % 3]
    features = rng.normal(size=(n, m))
    features[:, -1] = 1.0
    signs = np.where(features[:, 0] + 0.5 * rng.normal(size=n) > (0.4 if seed % 2 else 1.2), 1.0, -1.0)
    signs[:2] = 1.0, -1.0
    privileged = rng.normal(size=(n, p))
    privileged[:, 0] = features[:, 0] + 0.2 * rng.normal(size=n)
    privileged[:, -1] = 1.0
    C, correction = 10.0 ** rng.uniform(-3, 5), 10.0 ** rng.uniform(-3, 2)
    return PrivilegedHingeProblem(features, signs, privileged, C, correction)


def clarabel_objective(problem: PrivilegedHingeProblem) -> float:
    """The programme as it is written: variables w and u, 2 n constraints."""
    (n, m), p = problem.features.shape, problem.privileged.shape[1]
    squares = np.r_[np.ones(m), np.full(p - 1, problem.C * problem.correction), 0.0]
    costs = np.r_[np.zeros(m), problem.C * problem.privileged.mean(axis=0)]
    margins = np.hstack([problem.signs[:, None] * problem.features, problem.privileged])
    slacks = np.hstack([np.zeros((n, m)), problem.privileged])
    settings = clarabel.DefaultSettings()
    settings.verbose = False
    settings.tol_gap_abs = settings.tol_gap_rel = settings.tol_feas = 1e-11
    solution = clarabel.DefaultSolver(
        sp.diags_array(squares).tocsc(),
        costs,
        sp.csc_matrix(-np.vstack([margins, slacks])),
        np.repeat([-1.0, 0.0], n),
        [clarabel.NonnegativeConeT(2 * n)],
        settings,
    ).solve()
    assert str(solution.status) == "Solved"
    return solution.obj_val


@pytest.mark.parametrize("seed", range(48))
def test_the_objective_is_that_of_clarabel(seed):
    problem = random_problem(seed)
    ours = solve_privileged_hinge(problem, tolerance=1e-8)
    theirs = clarabel_objective(problem)
    assert ours.objective == pytest.approx(theirs, rel=1e-6)
    assert ours.dual_objective <= theirs * (1.0 + 1e-9)
    assert (problem.products(ours.value) >= np.repeat([1.0, 0.0], len(problem.signs)) - 1e-9).all()
