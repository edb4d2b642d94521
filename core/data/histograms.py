"""Histograms of the columns of a data set, for people who look at it before training."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from core.data.scaling import MIN_SPREAD
from core.data.validation import row_blocks
from core.types import Matrix

BINS: Final = 20


def column_histograms(X: Matrix, low: NDArray[np.float64], high: NDArray[np.float64]) -> NDArray[np.int64]:
    """Values of each column by `BINS` bins of equal width between its smallest and largest, (d, BINS).

    X: (n, d), finite. low, high: (d,), the range of each column; absent sparse entries count as 0. A constant
    column is all in its first bin. Rows are read in blocks, so there is no temporary of the size of X.
    """
    n, d = X.shape
    spread = high - low
    scale = BINS / np.where(spread < MIN_SPREAD, np.inf, spread)
    counts = np.zeros((d, BINS), dtype=np.int64)
    if isinstance(X, np.ndarray):
        for rows in row_blocks(n, d):
            counts += _counted((X[rows] - low) * scale, np.arange(d), d)
        return counts
    counts += _counted((X.data - low[X.indices]) * scale[X.indices], X.indices, d)
    absent = n - np.bincount(X.indices, minlength=d)
    counts[np.arange(d), _bins(-low * scale)] += absent
    return counts


def _counted(places: NDArray[np.float64], columns: NDArray[np.integer], d: int) -> NDArray[np.int64]:
    """How many of the places, in units of a bin, are in each bin of each of d columns."""
    flat = columns.astype(np.int64) * BINS + _bins(places)
    return np.bincount(flat.ravel(), minlength=d * BINS).reshape(d, BINS)


def _bins(places: NDArray[np.float64]) -> NDArray[np.int64]:
    """The bin of each place; the largest value of a column belongs to the last bin."""
    return np.clip(places, 0, BINS - 1).astype(np.int64)
