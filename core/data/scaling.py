"""Standardisation of raw columns: x' = (x − shift)·scale."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from core.data.column_layout import ColumnLayout
from core.data.scaling_kind import Scaling
from core.data.validation import row_blocks
from core.types import FloatArray, Matrix

MIN_SPREAD = 1e-100
"""A column that varies by less than this is taken for constant, so that no scale overflows."""
_SUMMED = 1024


@dataclass(frozen=True, eq=False)
class Standardisation:
    """x' = (x − shift)·scale, column by column. shift, scale: (d,) float64."""

    shift: NDArray[np.float64]
    scale: NDArray[np.float64]

    @property
    def n_columns(self) -> int:
        """d."""
        return len(self.shift)

    def apply(self, X: Matrix) -> Matrix:
        """Standardised copy of ``X`` (n, d), float64; CSR stays CSR if ``keeps_sparse``, otherwise dense."""
        if isinstance(X, np.ndarray):
            scaled = X - self.shift
        elif self.keeps_sparse(X):
            values = X.data * self.scale[X.indices]
            if self.shift.any():
                values -= (self.shift * self.scale)[X.indices]
            return sp.csr_array((values, X.indices, X.indptr), shape=X.shape)
        else:
            scaled = X.toarray() - self.shift
        scaled *= self.scale
        return scaled

    def keeps_sparse(self, X: Matrix) -> bool:
        """Whether CSR rows stay CSR: columns that are shifted are stored in every row, and others are not."""
        if isinstance(X, np.ndarray):
            return False
        shifted = np.flatnonzero(self.shift)
        if not len(shifted) or len(shifted) == X.shape[1]:
            return not len(shifted)
        return bool((np.bincount(X.indices, minlength=X.shape[1])[shifted] == X.shape[0]).all())


def fit_standardisation(X: Matrix, method: Scaling, layout: ColumnLayout | None = None) -> Standardisation:
    """The standardisation that ``method`` requires for ``X`` (n, d), finite values.

    layout: if given, columns other than its numbers stay as they are; numbers are stored in every row, and
    are standardised as dense columns are.

    Columns that do not vary, see `is_varying`, keep scale 1 (dense: and become 0 or nearly so), so nothing is
    divided by zero or by what rounding left.
    """
    if method is Scaling.NONE:
        d = X.shape[1]
        return Standardisation(np.zeros(d), np.ones(d))
    if layout is not None:
        return _of_numbers(X, method, layout)
    if method is Scaling.IDF:
        n, occurrences = X.shape[0], _occurrences(X)
        idf = 1.0 + np.log((1 + n) / (1 + occurrences))
        return Standardisation(np.zeros(X.shape[1]), np.where(occurrences == 0, 1.0, idf))
    low, high = column_range(X)
    if sp.issparse(X):
        shift = np.zeros_like(low)
        spread = np.maximum(-low, high) if method is Scaling.MINMAX else np.sqrt(column_moments(X)[1])
    elif method is Scaling.MINMAX:
        shift = low + 0.5 * (high - low)
        spread = 0.5 * (high - low)
    else:
        shift, variance = column_moments(X)
        spread = np.sqrt(variance)
    constant = ~is_varying(X, low, high) | (spread < MIN_SPREAD)
    if not sp.issparse(X):
        # The mean of equal values is off by rounding; the value itself is not.
        shift = np.where(low == high, low, shift)
    return Standardisation(shift, 1.0 / np.where(constant, 1.0, spread))


def _of_numbers(X: Matrix, method: Scaling, layout: ColumnLayout) -> Standardisation:
    """Standardisation of the numbers alone. Terms have an idf already, so that this asks for nothing."""
    shift, scale = np.zeros(X.shape[1]), np.ones(X.shape[1])
    numbers = np.array(layout.numbers, dtype=np.intp)
    if len(numbers) and method is not Scaling.IDF:
        part = X[:, numbers]
        of_numbers = fit_standardisation(part if isinstance(part, np.ndarray) else part.toarray(), method)
        shift[numbers], scale[numbers] = of_numbers.shift, of_numbers.scale
    return Standardisation(shift, scale)


def is_varying(X: Matrix, low: NDArray[np.float64], high: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Whether each column of ``X`` (n, d) varies by more than rounding, (d,). low, high: its range.

    Let m be the largest absolute value of a column, u its type's relative rounding error and ε that of
    float64. Two of its values that should be equal may differ:

    - by 4um: each was rounded when it was stored and in the operation before that, so it is off by 2um;
    - by kεm: where each is a sum of k numbers of one sign, the bound for recursive summation. k = 1024 covers
      rows that were normalised over as many columns.

    The mean that is subtracted from the values is a sum of n numbers and has an error up to nεm: where the
    range is less, the standardised column is made of rounding errors alone. A column varies if its range
    exceeds the largest of the three: then a difference of values is at least in part one of the data.
    """
    largest = np.maximum(np.abs(low), np.abs(high))
    summed = max(X.shape[0], _SUMMED) * float(np.finfo(np.float64).eps)
    stored = 4.0 * float(np.finfo(X.dtype).eps)
    varying: NDArray[np.bool_] = high - low > max(summed, stored) * largest
    return varying


def _occurrences(X: Matrix) -> NDArray[np.int64]:
    """Rows in which each column is not 0, (d,)."""
    if isinstance(X, np.ndarray):
        counts: NDArray[np.int64] = np.count_nonzero(X, axis=0).astype(np.int64)
        return counts
    stored: NDArray[np.int64] = np.bincount(X.indices[X.data != 0], minlength=X.shape[1])
    return stored


def column_range(X: Matrix) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Smallest and largest value of each column, (d,) and (d,); absent sparse entries count as 0."""
    if isinstance(X, np.ndarray):
        low, high = X.min(axis=0), X.max(axis=0)
    else:
        low, high = X.min(axis=0).toarray(), X.max(axis=0).toarray()
    return np.ravel(low).astype(np.float64), np.ravel(high).astype(np.float64)


def column_moments(X: Matrix) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Mean and variance (divided by n) of each column, (d,) and (d,), in two passes for accuracy."""
    n, d = X.shape
    if isinstance(X, np.ndarray):
        mean = _blockwise_sum(X, np.zeros(d), 1) / n
        return mean, _blockwise_sum(X, mean, 2) / n
    values = X.data.astype(np.float64)
    mean = np.bincount(X.indices, values, d) / n
    stored = np.bincount(X.indices, minlength=d)
    squares = np.bincount(X.indices, (values - mean[X.indices]) ** 2, d)
    return mean, (squares + (n - stored) * mean**2) / n


def _blockwise_sum(X: FloatArray, centre: NDArray[np.float64], power: int) -> NDArray[np.float64]:
    """Σ_i (x_i − centre)^power, (d,), without a temporary of the size of X."""
    total = np.zeros(X.shape[1])
    for rows in row_blocks(*X.shape):
        total += ((X[rows] - centre) ** power).sum(axis=0)
    return total
