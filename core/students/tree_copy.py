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
    children, roots, merged = _merged(trees, row)
    adds: BoolArray = np.asarray(values.any(axis=1))
    kept &= ~((roots < 0) & ~adds[np.where(roots < 0, ~roots, 0)])
    kept[0] |= not kept.any()
    inside = ~merged & _below(children, roots[kept])
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


def _merged(trees: TreesBasis, row: IntArray) -> tuple[IntArray, IntArray, BoolArray]:
    """Children, roots, and which nodes are gone, once nodes with two equal leaves have become that leaf.

    row: of the distinct values, for each row of the trees', (V,).
    """
    children, roots = trees.children.astype(np.int64), trees.roots.astype(np.int64)
    for references in (children, roots):
        leaf = references < 0
        references[leaf] = ~row[~references[leaf]]
    merged = np.zeros(len(children), dtype=np.bool_)
    for level in reversed(list(trees.levels())):
        below = children[level]
        inner = below >= 0
        gone = inner & merged[np.where(inner, below, 0)]
        below[gone] = children[below[gone], 0]
        children[level] = below
        merged[level] = (below[:, 0] < 0) & (below[:, 0] == below[:, 1])
    gone = roots >= 0
    gone[gone] = merged[roots[gone]]
    roots[gone] = children[roots[gone], 0]
    return children, roots, merged


def _below(children: IntArray, roots: IntArray) -> BoolArray:
    """Which nodes are below the roots, or roots themselves, (M,)."""
    found = np.zeros(len(children), dtype=np.bool_)
    level = roots[roots >= 0]
    while len(level):
        found[level] = True
        level = children[level].ravel()
        level = level[level >= 0]
    return found


def _renumbered(references: NDArray[np.integer], number: IntArray) -> IntArray:
    """References to inner nodes by their new numbers; those to leaves as they are."""
    inner = references >= 0
    changed = references.astype(np.int64)
    changed[inner] = number[references[inner]]
    return changed
