"""Products with the feature matrix by blocks of rows, with float64 sums and a cancel check per block."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from core.run import Run
from core.solvers.jit import Rows, as_rows, compiled, is_sparse, row_axpy, row_dot
from core.types import FloatArray, IntArray, Matrix

_BLOCK_ENTRIES = 500_000


def entries_per_row(features: Matrix) -> float:
    """Mean number of stored entries per row, at least 1: the cost of a product with one row."""
    stored: float = features.nnz if is_sparse(features) else features.size
    return max(1.0, stored / max(1, int(features.shape[0])))


def row_blocks(features: Matrix, entries: int = _BLOCK_ENTRIES) -> Iterator[slice]:
    """Consecutive row slices that hold about ``entries`` stored entries each."""
    n = features.shape[0]
    size = max(1, int(entries / entries_per_row(features)))
    return (slice(start, min(start + size, n)) for start in range(0, n, size))


def rows_of(features: Matrix, block: slice) -> Matrix:
    """The rows of ``block`` in float64; a view if dense float64, ``features`` itself if it is all rows."""
    whole = block.start == 0 and block.stop == features.shape[0]
    rows: Matrix = features if whole else features[block]
    return rows.astype(np.float64, copy=False)


def matvec(features: Matrix, weights: FloatArray, run: Run) -> FloatArray:
    """Φ w for w (m,), shape (n,); Φ Wᵀ for W (K, m), shape (n, K)."""
    result = np.empty((features.shape[0], *weights.shape[:-1]))
    for block in row_blocks(features):
        run.check_cancel()
        result[block] = rows_of(features, block) @ weights.T
    return result


def rmatvec(features: Matrix, coefficients: FloatArray, run: Run) -> FloatArray:
    """Φᵀ a for a (n,), shape (m,); (Φᵀ A)ᵀ for A (n, K), shape (K, m)."""
    if is_sparse(features) and coefficients.ndim == 1:
        index = np.flatnonzero(coefficients)
        return rmatvec_rows(features, coefficients[index], index, run)
    result = np.zeros((*coefficients.shape[1:], features.shape[1]))
    for block in row_blocks(features):
        run.check_cancel()
        result += rmatvec_block(features, coefficients, block)
    return result


def rmatvec_block(features: Matrix, coefficients: FloatArray, block: slice) -> FloatArray:
    """Contribution of the rows of ``block`` to ``rmatvec``.

    Dual variables are mostly zero near a solution, so only rows with non-zero coefficients are read if these
    are less than half.
    """
    some = coefficients[block]
    counting = np.flatnonzero(some if some.ndim == 1 else some.any(axis=1))
    if 2 * len(counting) >= len(some):
        full: FloatArray = some.T @ rows_of(features, block)
        return full
    rows = features[block.start + counting].astype(np.float64, copy=False)
    part: FloatArray = some[counting].T @ rows
    return part


def matvec_rows(features: Matrix, weights: FloatArray, index: IntArray, run: Run) -> FloatArray:
    """φ_i · w for the rows i in ``index`` and w (m,), shape (len(index),), without a copy of the rows."""
    rows = as_rows(features)
    result = np.empty(len(index))
    size = max(1, int(_BLOCK_ENTRIES / entries_per_row(features)))
    for start in range(0, len(index), size):
        run.check_cancel()
        _dots(rows, index[start : start + size], weights, result[start : start + size])
    return result


def rmatvec_rows(features: Matrix, coefficients: FloatArray, index: IntArray, run: Run) -> FloatArray:
    """Σ_p a_p φ_i with i = ``index``_p, for a = ``coefficients`` (p,), shape (m,), without copied rows."""
    rows = as_rows(features)
    result = np.zeros(features.shape[1])
    size = max(1, int(_BLOCK_ENTRIES / entries_per_row(features)))
    for start in range(0, len(index), size):
        run.check_cancel()
        _add(rows, index[start : start + size], coefficients[start : start + size], result)
    return result


@compiled
def _add(rows: Rows, index: IntArray, coefficients: FloatArray, result: FloatArray) -> None:
    for p in range(len(index)):
        row_axpy(rows, index[p], coefficients[p], result)


@compiled
def _dots(rows: Rows, index: IntArray, weights: FloatArray, result: FloatArray) -> None:
    for p in range(len(index)):
        result[p] = row_dot(rows, index[p], weights)
