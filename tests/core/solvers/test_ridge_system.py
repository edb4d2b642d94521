from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

from core.run import Run
from core.solvers import ridge_system
from core.solvers.ridge_system import solve_ridge_system


def problem(n, m):
    rng = np.random.default_rng(n * m)
    return rng.normal(size=(n, m)), rng.uniform(0, 3, n), rng.normal(size=m)


@pytest.mark.parametrize("as_matrix", [np.asarray, sp.csr_array])
@pytest.mark.parametrize("shape", [(40, 7), (40, 8), (3, 2), (3, 1), (7, 40), (10, 10), (1, 3)])
@pytest.mark.parametrize("direct", [True, False])
def test_every_form_solves_the_same_system(shape, as_matrix, direct, monkeypatch):
    if not direct:
        monkeypatch.setattr(ridge_system, "_DIRECT_LIMIT", 0)
    features, weights, rhs = problem(*shape)
    expected = np.linalg.solve(np.eye(shape[1]) + (features.T * weights) @ features, rhs)
    found = solve_ridge_system(as_matrix(features), weights, rhs, Run(), rtol=1e-12)
    np.testing.assert_allclose(found, expected, rtol=1e-8, atol=1e-10)


def test_without_rows_the_system_is_the_identity():
    rhs = np.array([1.0, 2.0])
    np.testing.assert_array_equal(solve_ridge_system(np.empty((0, 2)), np.empty(0), rhs, Run()), rhs)


def test_huge_weights_do_not_break_the_factorisation():
    features, _, rhs = problem(30, 5)
    features[:, 1] = features[:, 0]
    solution = solve_ridge_system(features, np.full(30, 1e17), rhs, Run())
    assert np.isfinite(solution).all()


def test_a_system_that_is_not_positive_is_an_error_and_no_answer():
    with pytest.raises(np.linalg.LinAlgError, match="not positive"):
        ridge_system._solve_packed(np.full(3, -1.0), np.ones(2))


@pytest.mark.parametrize("as_matrix", [np.asarray, sp.csr_array])
@pytest.mark.parametrize("m", [4, 40])
def test_chosen_rows_count_as_if_they_were_all(m, as_matrix):
    features, weights, rhs = problem(30, m)
    index = np.array([3, 1, 20, 7, 11])
    found = solve_ridge_system(as_matrix(features), weights[:5], rhs, Run(), index=index)
    expected = solve_ridge_system(features[index], weights[:5], rhs, Run())
    np.testing.assert_allclose(found, expected, rtol=1e-10)
