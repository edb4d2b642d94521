"""References of trees: a number r ≥ 0 is an inner node, −1 − v is a leaf with row v of the values.

In two's complement −1 − v is ~v, and so ~r is the row of a leaf.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def at_references(
    references: NDArray[np.integer], of_leaves: NDArray[Any], of_nodes: NDArray[Any]
) -> NDArray[Any]:
    """The value of each reference. of_leaves: by row of the values (V, …). of_nodes: by inner node (M, …)."""
    found = np.empty(references.shape + of_leaves.shape[1:], dtype=of_leaves.dtype)
    leaf = references < 0
    found[leaf], found[~leaf] = of_leaves[~references[leaf]], of_nodes[references[~leaf]]
    return found


def distinct_rows(values: NDArray[np.floating]) -> tuple[NDArray[np.float64], NDArray[np.intp]]:
    """The distinct rows of ``values`` (V, q), and the number of each row among them, (V,)."""
    # Rows are sorted as strings of bytes, which is several times faster; the sum converts −0 to 0.
    rows = np.ascontiguousarray(values + 0.0, dtype=np.float64)
    strings = rows.view(np.dtype((np.void, rows.itemsize * rows.shape[1]))).ravel()
    _, first, number = np.unique(strings, return_index=True, return_inverse=True)
    return rows[first], number
