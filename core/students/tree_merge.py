"""Compiled traversals of the nodes of trees, in which children come after their parents (``TreesBasis``)."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from core.solvers.jit import compiled
from core.types import BoolArray, IntArray

Int32s: TypeAlias = NDArray[np.int32]


@compiled
def merge_equal_leaves(
    children: Int32s, row: IntArray, adds: BoolArray, merged: Int32s, stands_for: Int32s, leaves: IntArray
) -> None:
    """Replace references to nodes with two equal leaves by that leaf, and count the leaves below each node.

    Inputs: children, (M, 2). row: the new number of each row of the values, (V,). adds: whether leaves with a
    new row are counted. Outputs: merged: the new children, (M, 2). stands_for: what a reference to each node
    becomes, (M,). leaves: (M,).
    """
    for node in range(children.shape[0] - 1, -1, -1):
        leaves[node] = 0
        for side in range(2):
            below = children[node, side]
            reference = stands_for[below] if below >= 0 else ~row[~below]
            merged[node, side] = reference
            leaves[node] += leaves[reference] if reference >= 0 else adds[~reference]
        is_leaf = merged[node, 0] < 0 and merged[node, 0] == merged[node, 1]
        stands_for[node] = merged[node, 0] if is_leaf else node


@compiled
def number_below(
    children: Int32s, test: Int32s, roots: Int32s, number: Int32s, tests: BoolArray, rows: BoolArray
) -> int:
    """Number the nodes that are roots or below roots, in their order; returns how many there are.

    Inputs: children, (M, 2). test: (M,). roots: (T,). Outputs: number: (M,), all −1 before. tests: marks the
    tests of these nodes, (E,); rows: marks the rows of the values that they refer to, (V,); both all False
    before.
    """
    for tree in range(roots.shape[0]):
        if roots[tree] >= 0:
            number[roots[tree]] = 0
        else:
            rows[~roots[tree]] = True
    count = 0
    for node in range(children.shape[0]):
        if number[node] < 0:
            continue
        number[node] = count
        count += 1
        tests[test[node]] = True
        for side in range(2):
            below = children[node, side]
            if below >= 0:
                number[below] = 0
            else:
                rows[~below] = True
    return count


@compiled
def renumber(references: Int32s, number: Int32s, row: Int32s, renumbered: Int32s) -> None:
    """Write references (n,) with the new numbers of the nodes, (M,), and of the rows of the values, (V,)."""
    for place in range(references.shape[0]):
        reference = references[place]
        renumbered[place] = number[reference] if reference >= 0 else ~row[~reference]
