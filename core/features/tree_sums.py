"""The sums of trees on all rows, computed once for a teacher and all students that are copied from it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np

from core.data.validation import row_blocks
from core.features.tree_columns import values_at
from core.run import Run
from core.solvers.jit import is_sparse
from core.types import FloatArray

if TYPE_CHECKING:
    from core.features.examples import Examples
    from core.packed import TreesBasis

_BLOCK_ENTRIES: Final = 1 << 18


def sums_of_trees(trees: TreesBasis, examples: Examples, run: Run = Run()) -> FloatArray:
    """The sums of the raw rows, (n, q). Raises Cancelled between blocks of rows."""

    def of_all_rows() -> FloatArray:
        X = examples.all_X
        sums = np.empty((X.shape[0], trees.sums))
        # Only the columns that trees test are made dense if rows have texts.
        tested, feature = np.unique(trees.feature, return_inverse=True)
        small = trees
        if is_sparse(X):
            small = replace(trees, columns=max(1, len(tested)), feature=feature.astype(np.int32))
        for rows in row_blocks(X.shape[0], len(trees.roots), _BLOCK_ENTRIES):
            run.check_cancel()
            block = values_at(X[rows], tested) if is_sparse(X) else X[rows]
            sums[rows] = small.block(block.astype(np.float64, copy=False))
        return sums

    sums = examples.shared.get(f"sums of trees {trees.digest}", of_all_rows)
    return sums if examples.index is None else sums[examples.index]
