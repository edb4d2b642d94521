from __future__ import annotations

import numba
import numpy as np
import pytest
import scipy.sparse as sp

from core.solvers.jit import (
    as_rows,
    compiled,
    is_sparse,
    loaded_axpy,
    loaded_dot,
    row_axpy,
    row_dot,
    row_load,
    row_norm2,
    row_norms2,
    row_prefetch,
)


@compiled
def dot_all(rows, n, w):
    result = np.empty(n)
    for i in range(n):
        result[i] = row_dot(rows, i, w)
    return result


@compiled
def add_all(rows, n, scale, w):
    for i in range(n):
        row_axpy(rows, i, scale, w)


def matrix(dtype=np.float64):
    features = np.random.default_rng(0).normal(size=(5, 4)).astype(dtype)
    features[features < -0.5] = 0.0
    features[2] = 0.0
    return features


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("as_matrix", [np.asarray, sp.csr_array])
def test_kernels_read_dense_and_csr_rows_alike(as_matrix, dtype):
    features, w = matrix(dtype), np.arange(4.0)
    rows = as_rows(as_matrix(features))
    exact = features.astype(np.float64)
    np.testing.assert_allclose(dot_all(rows, 5, w), exact @ w, rtol=1e-14)
    np.testing.assert_allclose(row_norms2(rows, 5), (exact**2).sum(axis=1), rtol=1e-14)
    add_all(rows, 5, 2.0, w)
    np.testing.assert_allclose(w, np.arange(4.0) + 2 * exact.sum(axis=0), rtol=1e-14)


@pytest.mark.parametrize("as_matrix", [np.asarray, sp.csr_array])
def test_row_functions_also_run_as_plain_python(as_matrix):
    features, w = matrix(), np.arange(4.0)
    rows = as_rows(as_matrix(features))
    assert row_dot(rows, 1, w) == pytest.approx(features[1] @ w)
    assert row_norm2(rows, 1) == pytest.approx(features[1] @ features[1])
    row_axpy(rows, 1, -1.0, w)
    np.testing.assert_allclose(w, np.arange(4.0) - features[1])


def test_duplicate_csr_entries_are_summed_and_the_original_is_kept():
    features = sp.csr_array((np.array([1.0, 2.0]), np.array([1, 1]), np.array([0, 2])), shape=(1, 3))
    rows = as_rows(features)
    assert row_norm2(rows, 0) == 9.0
    assert features.nnz == 2


def test_nothing_is_copied_that_can_be_used_as_it_is():
    dense, sparse = matrix(), sp.csr_array(matrix())
    assert as_rows(dense)[0] is dense
    assert as_rows(sparse)[0] is sparse.data
    assert is_sparse(sparse)
    assert not is_sparse(dense)


@pytest.mark.parametrize("as_matrix", [np.asarray, sp.csr_array])
def test_the_row_functions_are_chosen_when_a_kernel_is_compiled_anew(as_matrix):
    @numba.njit
    def normalise_onto(rows, i, w):
        row_axpy(rows, i, row_dot(rows, i, w) / row_norm2(rows, i), w)

    features, w = matrix(), np.arange(4.0)
    expected = w + features[1] * (features[1] @ w) / (features[1] @ features[1])
    normalise_onto(as_rows(as_matrix(features)), 1, w)
    np.testing.assert_allclose(w, expected)


def test_row_norms_are_the_same_without_compilation():
    rows = as_rows(matrix())
    plain = getattr(row_norms2, "py_func", row_norms2)
    np.testing.assert_allclose(plain(rows, 5), row_norms2(rows, 5))


def load_dot_add(rows, i, row, scale, w):
    row_load(rows, i, row)
    product = loaded_dot(rows, i, row, w)
    loaded_axpy(rows, i, row, scale, w)
    return product


@pytest.mark.parametrize("kernel", [load_dot_add, compiled(load_dot_add)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("as_matrix", [np.asarray, sp.csr_array])
def test_a_loaded_row_gives_what_the_row_itself_gives(kernel, dtype, as_matrix):
    features = matrix()
    w = np.arange(4.0).astype(dtype)
    product = kernel(as_rows(as_matrix(features)), 1, np.empty(4, dtype), 2.0, w)
    rtol = 1e-6 if dtype is np.float32 else 1e-14
    assert product == pytest.approx(features[1] @ np.arange(4.0), rel=rtol)
    assert w.dtype == dtype
    np.testing.assert_allclose(w, np.arange(4.0) + 2 * features[1], rtol=rtol)


def prefetch(rows, i):
    row_prefetch(rows, i, 0, 100)
    return i


@pytest.mark.parametrize("as_matrix", [np.asarray, sp.csr_array])
def test_dense_rows_are_prefetched_and_sparse_ones_are_not(as_matrix):
    rows = as_rows(as_matrix(matrix()))
    compiled_prefetch = numba.njit(prefetch)
    assert compiled_prefetch(rows, 4) == prefetch(rows, 4) == 4
    (code,) = compiled_prefetch.inspect_llvm().values()
    assert ("call void @llvm.prefetch" in code) == (as_matrix is np.asarray)
