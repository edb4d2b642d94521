from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

from core.run import Run
from core.solvers.products import matvec, matvec_rows, rmatvec


def matrix() -> np.ndarray:
    rng = np.random.default_rng(0)
    return rng.normal(size=(50, 6)) * (rng.random((50, 6)) < 0.6)


@pytest.mark.parametrize("as_matrix", [np.asarray, sp.csr_array])
@pytest.mark.parametrize("share", [0.0, 0.2, 1.0])
@pytest.mark.parametrize("columns", [(), (3,)])
def test_rows_without_weight_are_left_out_of_a_sum_without_changing_it(as_matrix, share, columns):
    rng = np.random.default_rng(1)
    coefficients = rng.normal(size=(50, *columns))
    coefficients[rng.permutation(50)[int(share * 50) :]] = 0.0
    found = rmatvec(as_matrix(matrix()), coefficients, Run())
    np.testing.assert_allclose(found, coefficients.T @ matrix(), atol=1e-13)


@pytest.mark.parametrize("as_matrix", [np.asarray, sp.csr_array])
def test_chosen_rows_are_projected_like_all(as_matrix):
    weights, index = np.arange(6.0), np.array([4, 0, 49, 4])
    features = as_matrix(matrix())
    everything = matvec(features, weights, Run())
    np.testing.assert_allclose(matvec_rows(features, weights, index, Run()), everything[index], rtol=1e-12)
