"""Columns as numbers of bins. Trees that are grown on bins have few thresholds, which makes queries fast.

A bin lies between two neighbouring edges. A row's bin is the number of edges below its value. So "bin ≤ k" is
exactly the test "value ≤ edge k", also for values that are not in the training rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from core.packed.maps import Floats
from core.types import FloatArray


@dataclass(frozen=True, slots=True, eq=False)
class Bins:
    """feature: the column of each edge, (E,). edges: rising by column, then by value, (E,). columns: d."""

    feature: NDArray[np.int32]
    edges: Floats
    columns: int

    @classmethod
    def of(cls, X: FloatArray, most: int) -> Bins:
        """At most ``most`` bins for each column of dense rows (n, d); labels are not used."""
        edges = [_edges(column, most - 1) for column in np.asarray(X, dtype=np.float64).T]
        feature = np.repeat(np.arange(len(edges), dtype=np.int32), [len(one) for one in edges])
        return cls(feature, np.concatenate(edges), len(edges))

    @property
    def first(self) -> NDArray[np.int64]:
        """The number of the first edge of each column, (d,)."""
        return np.searchsorted(self.feature, np.arange(self.columns))

    def codes(self, X: Any) -> NDArray[np.float32]:
        """The bin of every value of rows (n, d), in the type that scikit-learn's trees take."""
        codes = np.empty(X.shape, dtype=np.float32)
        bounds = [*self.first.tolist(), len(self.edges)]
        for column, (start, end) in enumerate(pairwise(bounds)):
            codes[:, column] = np.searchsorted(self.edges[start:end], X[:, column])
        return codes


def _edges(column: Floats, most: int) -> Floats:
    """Edges between neighbouring distinct values: all of them, or about ``most``.

    The edges divide a mean of the numbers of rows and of distinct values into equal shares. So a class of a
    few rows with extreme values gets its own bins, which equal shares of the rows alone would not give it.
    """
    values, counts = np.unique(column, return_counts=True)
    after = np.arange(len(values) - 1)
    if len(after) > most:
        share = (np.cumsum(counts) / len(column) + np.arange(1, len(values) + 1) / len(values)) / 2.0
        steps = np.arange(1, most + 1) / (most + 1.0)
        after = np.unique(np.searchsorted(share[:-1], steps).clip(max=len(values) - 2))
    low, high = values[after], values[after + 1]
    middle = low / 2.0 + high / 2.0
    # Between adjacent floating-point numbers the middle may round up to the upper one, which
    # must stay above the edge.
    edges: Floats = np.where(middle < high, middle, low)
    return edges
