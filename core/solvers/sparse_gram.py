"""Inner products of sparse rows with each other, by lists of the rows of each column."""

from __future__ import annotations

from typing import Final

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from core.run import Run
from core.solvers.jit import Rows, as_rows, compiled
from core.types import FloatArray, IntArray

_BLOCK_ROWS: Final = 256
"""Number of rows between two cancel checks."""


def example_gram(features: sp.csr_array, index: IntArray, scale: FloatArray, run: Run) -> FloatArray:
    """diag(s) Φ Φᵀ diag(s) of the rows φ_i, i in ``index`` (n,), s = ``scale`` (n,): lower triangle, (n, n).

    It costs about ½ Σ_c n_c² products, if column c has n_c rows. Raises Cancelled.
    """
    rows = as_rows(features)
    starts = _list_starts(rows, index, features.shape[1])
    lists = (starts, starts[:-1].copy(), np.empty(starts[-1], dtype=np.int32), np.empty(starts[-1]))
    gram = np.zeros((len(index), len(index)))
    for first in range(0, len(index), _BLOCK_ROWS):
        run.check_cancel()
        _fill(rows, index, scale, first, min(first + _BLOCK_ROWS, len(index)), *lists, gram)
    return gram


@compiled
def _list_starts(rows: Rows, index: IntArray, m: int) -> NDArray[np.int64]:
    """The start of each column's list, (m + 1,)."""
    _, indices, indptr = rows
    starts = np.zeros(m + 1, dtype=np.int64)
    for r in range(len(index)):
        for p in range(indptr[index[r]], indptr[index[r] + 1]):
            starts[indices[p] + 1] += 1
    for column in range(m):
        starts[column + 1] += starts[column]
    return starts


@compiled
def _fill(
    rows: Rows,
    index: IntArray,
    scale: FloatArray,
    first: int,
    stop: int,
    starts: NDArray[np.int64],
    ends: NDArray[np.int64],
    owners: NDArray[np.int32],
    values: FloatArray,
    gram: FloatArray,
) -> None:
    """Rows ``first`` to ``stop`` of the lower triangle; a row enters the lists before its products."""
    data, indices, indptr = rows
    for r in range(first, stop):
        line = gram[r]
        for p in range(indptr[index[r]], indptr[index[r] + 1]):
            column, value = indices[p], data[p] * scale[r]
            owners[ends[column]] = r
            values[ends[column]] = value
            ends[column] += 1
            for at in range(starts[column], ends[column]):
                line[owners[at]] += value * values[at]
