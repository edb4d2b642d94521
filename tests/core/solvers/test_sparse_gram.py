"""Products of sparse rows with each other, against NumPy's of dense ones."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

from core.errors import Cancelled
from core.run import Run
from core.solvers import sparse_gram
from core.solvers.products import rmatvec, rmatvec_rows
from core.solvers.sparse_gram import example_gram


def rows(n: int = 40, m: int = 25, dtype: type = np.float64) -> np.ndarray:
    rng = np.random.default_rng(0)
    dense = rng.normal(size=(n, m)) * (rng.random((n, m)) < 0.2)
    dense[3] = 0.0
    return dense.astype(dtype)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("block", [1, 7, 256])
def test_the_lower_triangle_has_the_products_of_the_chosen_rows(dtype, block, monkeypatch):
    monkeypatch.setattr(sparse_gram, "_BLOCK_ROWS", block)
    dense = rows(dtype=dtype)
    index = np.array([5, 3, 39, 0, 17, 5])
    scale = np.linspace(0.5, 2.0, len(index))
    found = example_gram(sp.csr_array(dense), index, scale, Run())
    chosen = dense[index].astype(np.float64) * scale[:, None]
    np.testing.assert_allclose(found, np.tril(chosen @ chosen.T), rtol=1e-6, atol=1e-12)


def test_entries_of_the_same_place_add_up():
    doubled = sp.csr_array(
        (np.array([1.0, 2.0, 4.0]), np.array([1, 1, 0]), np.array([0, 2, 3])), shape=(2, 3)
    )
    found = example_gram(doubled, np.array([0, 1]), np.ones(2), Run())
    np.testing.assert_array_equal(found, [[9.0, 0.0], [0.0, 16.0]])


def test_no_rows_have_no_products():
    assert example_gram(sp.csr_array(rows()), np.empty(0, dtype=np.int64), np.empty(0), Run()).shape == (0, 0)


def test_it_can_be_cancelled():
    run = Run(should_cancel=lambda: True)
    with pytest.raises(Cancelled):
        example_gram(sp.csr_array(rows()), np.arange(4), np.ones(4), run)


def test_sums_of_rows_are_those_of_a_matrix_product():
    dense = rows()
    coefficients = np.where(np.arange(40) % 3, 0.0, 1.5)
    expected = dense.T @ coefficients
    np.testing.assert_allclose(rmatvec(sp.csr_array(dense), coefficients, Run()), expected, rtol=1e-12)
    index = np.array([2, 2, 9])
    found = rmatvec_rows(sp.csr_array(dense), np.array([1.0, 2.0, -1.0]), index, Run())
    np.testing.assert_allclose(found, 3.0 * dense[2] - dense[9], rtol=1e-12)
    for matrix in (dense, sp.csr_array(dense)):
        np.testing.assert_allclose(rmatvec_rows(matrix, np.ones(3), index, Run()), 2.0 * dense[2] + dense[9])
