"""Sparse rows of a query, without SciPy: checked triples of a CSR table."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from core.data.validation import as_dense, row_blocks, value_faults
from core.errors import Fault, InvalidProblem


@dataclass(frozen=True, slots=True)
class SparseRows:
    """n rows of d columns: ``values[k]`` is in row ``row_of[k]`` and column ``indices[k]``."""

    indices: NDArray[np.int64]
    values: NDArray[np.float64]
    row_of: NDArray[np.int64]
    n: int
    d: int

    def dot(self, coef: NDArray[np.float64]) -> NDArray[np.float64]:
        """Products (n,) of the rows with ``coef`` (d,), from the stored entries."""
        products = coef[self.indices] * self.values
        return np.bincount(self.row_of, products, self.n).astype(np.float64, copy=False)


class StoredBasis(NamedTuple):
    """Basis values of one row; the later ones are mostly 0.

    dense: the first values, (k,). columns, values: stored values of the others, with columns that start from
    0, (m,).
    """

    dense: NDArray[np.float64]
    columns: NDArray[np.int64]
    values: NDArray[np.float64]

    def dot(self, coef: NDArray[np.float64]) -> Any:
        """The product with one function (p,), a number, or with several (q, p), (q,)."""
        k = len(self.dense)
        behind = coef[..., k:].take(self.columns, axis=-1)
        return coef[..., :k].dot(self.dense) + behind.dot(self.values)


def sparse_rows(indices: ArrayLike, values: ArrayLike, indptr: ArrayLike | None, d: int) -> SparseRows:
    """Checked rows. Raises InvalidProblem naming ``indices``, ``values`` or ``indptr``."""
    columns = _whole(indices, "indices")
    numbers = as_dense(values, "values", ndim=1).astype(np.float64, copy=False)
    if len(columns) != len(numbers):
        raise _fault("values", "wrong_length", f"{len(columns)} indices but {len(numbers)} values.")
    starts = np.array([0, len(columns)]) if indptr is None else _whole(indptr, "indptr")
    lengths = np.diff(starts)
    if len(starts) < 1 or starts[0] != 0 or starts[-1] != len(columns) or (lengths < 0).any():
        raise _fault("indptr", "bad_sparse", f"indptr must rise from 0 to the {len(columns)} stored entries.")
    outside = (columns < 0) | (columns >= d)
    if outside.any():
        message = f"Column index {int(columns[outside][0])} is outside 0 to {d - 1}."
        raise _fault("indices", "wrong_columns", message)
    faults = value_faults(numbers[np.newaxis], "values") if len(numbers) else ()
    if faults:
        raise InvalidProblem(*faults)
    return SparseRows(columns, numbers, np.repeat(np.arange(len(lengths)), lengths), len(lengths), d)


def densified_blocks(rows: SparseRows) -> Iterator[NDArray[np.float64]]:
    """The rows as dense tables with d columns, in blocks, in order."""
    for block in row_blocks(rows.n, rows.d):
        dense = np.zeros((block.stop - block.start, rows.d))
        first, last = np.searchsorted(rows.row_of, (block.start, block.stop))
        place = (rows.row_of[first:last] - block.start, rows.indices[first:last])
        np.add.at(dense, place, rows.values[first:last])
        yield dense


def _whole(values: ArrayLike, field: str) -> NDArray[np.int64]:
    array: NDArray[Any] = np.asarray(values)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise _fault(field, "not_whole", f"{field} must be a list of whole numbers.")
    return array.astype(np.int64, copy=False)


def _fault(field: str, code: str, message: str) -> InvalidProblem:
    return InvalidProblem(Fault(field, code, message))
