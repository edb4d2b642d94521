"""Copies a forest for some of its classes, without everything that does not change their scores.

For one class most of a tree is irrelevant: if all leaves of a subtree have the same values for the kept
classes, the subtree becomes one leaf. The scores of these classes stay the same, bit for bit: each is still
the sum of the same values in the same order. Trees that add 0 in every leaf are left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from core.packed.leaf_index import bytes_of_index
from core.packed.tree_references import at_references, distinct_rows
from core.packed.trees import TreesBasis
from core.types import BoolArray, FloatArray, IntArray


def class_copy(trees: TreesBasis, classes: IntArray) -> TreesBasis:
    """The sums of ``classes`` (q,) of ``trees``, in the order of ``classes``."""
    return Cut.of(trees, classes).copy()


@dataclass(frozen=True, slots=True, eq=False)
class Cut:
    """The parts of ``trees`` that a copy for q classes keeps; its size is known before the copy is made.

    children: with equal leaves merged, (M, 2). roots, output: of the T kept trees. values: the distinct
    values of the classes, (V, q) or (V, 1). number: number of each node in the copy, (M,); −1 for nodes that
    are cut off. nodes: how many are kept. tests, rows: which tests (E,) and which rows of the values (V,) are
    used. leaves: number of leaves with a value other than 0, for each tree, (T,).
    """

    trees: TreesBasis
    sums: int
    children: NDArray[np.int32]
    roots: NDArray[np.int32]
    output: NDArray[np.int32]
    values: NDArray[np.float64]
    number: NDArray[np.int32]
    nodes: int
    tests: BoolArray
    rows: BoolArray
    leaves: NDArray[np.int64]

    @classmethod
    def of(cls, trees: TreesBasis, classes: IntArray) -> Self:
        """The parts that a copy for ``classes`` (q,) keeps."""
        from core.students.tree_merge import merge_equal_leaves, number_below

        of_classes, output, kept = _of_classes(trees, classes)
        values, row = distinct_rows(of_classes)
        adds: BoolArray = np.asarray(values.any(axis=1))
        children, stands_for = np.empty_like(trees.children), np.empty_like(trees.test)
        leaves = np.empty(len(trees.test), dtype=np.int64)
        merge_equal_leaves(trees.children, row, adds, children, stands_for, leaves)
        roots = at_references(trees.roots, (~row).astype(np.int32), stands_for)
        below = at_references(roots, adds.astype(np.int64), leaves)
        kept &= (roots >= 0) | (below > 0)
        kept[0] |= not kept.any()
        roots = roots[kept]
        number = np.full(len(children), -1, dtype=np.int32)
        tests, rows = np.zeros(len(trees.feature), dtype=np.bool_), np.zeros(len(values), dtype=np.bool_)
        nodes = number_below(children, trees.test, roots, number, tests, rows)
        return cls(
            trees=trees,
            sums=len(classes),
            children=children,
            roots=roots,
            output=np.maximum(output[kept], 0).astype(np.int32),
            values=values,
            number=number,
            nodes=nodes,
            tests=tests,
            rows=rows,
            leaves=below[kept],
        )

    @property
    def index_bytes(self) -> int:
        """``leaf_index.bytes_of_bits`` of the copy."""
        return bytes_of_index(self.trees.feature[self.tests], self.leaves)

    def copy(self) -> TreesBasis:
        """The trees without what is cut off."""
        from core.students.tree_merge import renumber

        trees, inside = self.trees, np.flatnonzero(self.number >= 0)
        test, row = _numbers(self.tests), _numbers(self.rows)
        roots, children = np.empty_like(self.roots), np.empty((self.nodes, 2), dtype=np.int32)
        renumber(self.roots, self.number, row, roots)
        renumber(self.children[inside].ravel(), self.number, row, children.ravel())
        return TreesBasis(
            columns=trees.columns,
            sums=self.sums,
            feature=trees.feature[self.tests],
            threshold=trees.threshold[self.tests],
            roots=roots,
            test=test[trees.test[inside]],
            children=children,
            share=trees.share[inside],
            values=self.values[self.rows],
            output=self.output,
            divisor=trees.divisor,
        )


def _of_classes(trees: TreesBasis, classes: IntArray) -> tuple[FloatArray, IntArray, BoolArray]:
    """Values (V, …) of the classes, the class sum that each tree adds to, and which trees do, both (T,)."""
    if trees.values.shape[1] == trees.sums:
        return trees.values[:, classes], trees.output, np.ones(len(trees.roots), dtype=np.bool_)
    place = np.full(trees.sums, -1)
    place[classes] = np.arange(len(classes))
    output: Any = place[trees.output]
    return trees.values, output, output >= 0


def _numbers(used: BoolArray) -> NDArray[np.int32]:
    """For each used item, its number among the used items."""
    return np.cumsum(used, dtype=np.int32) - np.int32(1)
