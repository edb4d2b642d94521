"""A copy of a forest for some of its classes: everything that makes no difference to their scores is cut off.

For one class most of a tree is irrelevant: where all leaves of a subtree have the same values for the classes
that are kept, the subtree is one leaf. The scores of these classes stay the same, bit for bit: each is still
the sum of the same values in the same order. Trees that add 0 in every leaf are left out.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from core.packed.tree_references import distinct_rows
from core.packed.trees import TreesBasis
from core.types import BoolArray, IntArray


def class_copy(trees: TreesBasis, classes: IntArray) -> TreesBasis:
    """The sums of ``classes`` (q,) of ``trees``, in this order."""
    from core.students.tree_merge import mark_below, merge_equal_leaves

    values, place = trees.values, np.full(trees.sums, -1)
    place[classes] = np.arange(len(classes))
    kept = np.ones(len(trees.roots), dtype=np.bool_)
    output = trees.output
    if values.shape[1] == trees.sums:
        values = values[:, classes]
    else:
        output = place[output]
        kept = output >= 0
    values, row = distinct_rows(values)
    children, roots = _with_values(trees.children, row), _with_values(trees.roots, row)
    merged, inside = np.zeros((2, len(children)), dtype=np.bool_)
    merge_equal_leaves(children, roots, merged)
    adds: BoolArray = np.asarray(values.any(axis=1))
    kept &= ~((roots < 0) & ~adds[np.where(roots < 0, ~roots, 0)])
    kept[0] |= not kept.any()
    mark_below(children, roots[kept], inside)
    number = np.cumsum(inside) - 1
    return TreesBasis.tidy(
        columns=trees.columns,
        sums=len(classes),
        feature=trees.feature,
        threshold=trees.threshold,
        roots=_renumbered(roots[kept], number),
        test=trees.test[inside],
        children=_renumbered(children[inside], number),
        share=trees.share[inside],
        values=values,
        output=np.maximum(output[kept], 0),
        divisor=trees.divisor,
    )


def _with_values(references: NDArray[np.integer], row: IntArray) -> IntArray:
    """References to leaves by the rows of other values, of each row of the trees' (V,)."""
    leaf = references < 0
    changed = references.astype(np.int64)
    changed[leaf] = ~row[~references[leaf]]
    return changed


def _renumbered(references: NDArray[np.integer], number: IntArray) -> IntArray:
    """References to inner nodes by their new numbers; those to leaves as they are."""
    inner = references >= 0
    changed = references.astype(np.int64)
    changed[inner] = number[references[inner]]
    return changed
