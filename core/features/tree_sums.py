"""The sums of trees on all rows, computed once for a teacher and all students that are cut from it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from core.data.validation import row_blocks
from core.errors import Fault, InvalidProblem
from core.run import Run
from core.solvers.jit import is_sparse
from core.types import FloatArray, Matrix

if TYPE_CHECKING:
    from core.features.examples import Examples
    from core.packed import TreesBasis

_BLOCK_ENTRIES: Final = 1 << 18


def sums_of_trees(trees: TreesBasis, examples: Examples, run: Run = Run()) -> FloatArray:
    """The sums of the raw rows, (n, q). Raises InvalidProblem for sparse rows, Cancelled between blocks."""

    def of_all_rows() -> FloatArray:
        X = dense_rows(examples.all_X)
        sums = np.empty((len(X), trees.sums))
        for rows in row_blocks(len(X), len(trees.roots), _BLOCK_ENTRIES):
            run.check_cancel()
            sums[rows] = trees.block(X[rows].astype(np.float64, copy=False))
        return sums

    sums = examples.shared.get(f"sums of trees {trees.digest}", of_all_rows)
    return sums if examples.index is None else sums[examples.index]


def dense_rows(X: Matrix) -> FloatArray:
    """``X`` if it is dense. Raises InvalidProblem."""
    if is_sparse(X):
        raise InvalidProblem(Fault("X", "sparse", "trees need dense rows"))
    rows: FloatArray = X
    return rows
