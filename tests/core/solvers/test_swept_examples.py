from __future__ import annotations

import numpy as np
import scipy.sparse as sp

from core.solvers.jit import as_rows, row_norms2
from core.solvers.swept_examples import SweptExamples

N, M, K = 40, 7, 4


def examples(features):
    rng = np.random.default_rng(1)
    rows = as_rows(features)
    return SweptExamples(
        rows=rows,
        labels=rng.integers(0, K, N),
        norms=row_norms2(rows, N),
        dual=np.zeros((N, K)),
        classes=np.tile(np.arange(K, dtype=np.int32), (N, 1)),
        counts=np.full(N, K, dtype=np.int32),
        bound=0.3,
    )


def test_sweeping_a_copy_changes_its_dual_as_sweeping_all_does_and_leaves_the_original():
    features = np.random.default_rng(0).normal(size=(N, M))
    everything, original = examples(features), examples(features)
    numbers = np.array([3, 9, 4, 31])
    part = original.copy_of(numbers, original.memory())
    W, W_of_copy = np.zeros((2, K, M), np.float32)
    work = everything.sweep(numbers, W, np.inf)[0]
    assert part.sweep(np.arange(4), W_of_copy, np.inf)[0] == work
    np.testing.assert_allclose(part.dual, everything.dual[numbers], rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(W_of_copy, W, rtol=1e-4, atol=1e-6)
    assert np.abs(part.dual).max() > 0.0
    assert not original.dual.any()
    assert part.numbers is numbers


def test_a_copy_is_worth_it_for_a_small_share_of_dense_float64_rows_swept_in_float32():
    dense = np.random.default_rng(0).normal(size=(N, M))
    single, double = np.dtype(np.float32), np.dtype(np.float64)
    few, many, none = np.arange(10), np.arange(11), np.arange(0)
    assert examples(dense).worth_copying(few, single)
    assert not examples(dense).worth_copying(many, single)
    assert not examples(dense).worth_copying(none, single)
    assert not examples(dense).worth_copying(few, double)
    assert not examples(dense.astype(np.float32)).worth_copying(few, single)
    assert not examples(sp.csr_array(dense)).worth_copying(few, single)
    assert not examples(dense).copy_of(few, examples(dense).memory()).worth_copying(few, single)
