"""Trees as scikit-learn has grown them on binned columns, put together as sums for queries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from core.packed.tree_references import distinct_rows
from core.packed.trees import TreesBasis
from core.teachers.base import TeacherSpec
from core.teachers.binning import Bins
from core.types import FloatArray, IntArray

if TYPE_CHECKING:
    from core.packed.codec import Arrays
    from core.solvers.solution import Summary
    from core.teachers.tree_teacher import TreeTeacher


class TreeSpec(TeacherSpec):
    """What specifications of teachers of trees share: they need dense rows, and give a ``TreeTeacher``."""

    needs: ClassVar[frozenset[Literal["teacher_scores", "dense"]]] = frozenset({"dense"})
    grows_trees: ClassVar[bool] = True

    def restore(
        self, arrays: Arrays, n_classes: int, n_features: int, summary: Summary | None
    ) -> TreeTeacher:
        """The teacher with these trees."""
        from core.teachers.tree_teacher import TreeTeacher

        del n_features
        return TreeTeacher.restore(arrays, n_classes, summary)


@dataclass(frozen=True, slots=True, eq=False)
class GrownTree:
    """One tree: its inner nodes, in an order in which children come after their parents.

    root: a reference: a number ≥ 0 is an inner node, −1 − v a leaf with row v of the values. test: numbers of
    edges of the bins, (M,). children: references, (M, 2). share: of the training weight that goes to the
    first child, (M,). values: (V, q), no two equal.
    """

    root: int
    test: IntArray
    children: IntArray
    share: FloatArray
    values: FloatArray

    @classmethod
    def of_nodes(
        cls,
        children: IntArray,
        test: IntArray,
        weight: FloatArray,
        values: FloatArray,
    ) -> GrownTree:
        """A tree from all its N nodes, the root first, leaves among them.

        children: (N, 2), not positive for leaves. test, weight: (N,). values: (N, q). Tests of leaves and
        values of inner nodes are ignored.
        """
        is_leaf = children[:, 0] <= 0
        distinct, value = distinct_rows(values[is_leaf])
        reference = np.cumsum(~is_leaf) - 1
        reference[is_leaf] = ~value
        inner = children[~is_leaf]
        share = weight[inner[:, 0]] / (weight[inner[:, 0]] + weight[inner[:, 1]])
        return cls(int(reference[0]), test[~is_leaf], reference[inner], share, distinct)

    def spread(self, present: IntArray, sums: int) -> GrownTree:
        """The same tree with 0 for sums that are not ``present``, (q,)."""
        values = np.zeros((len(self.values), sums))
        values[:, present] = self.values
        return replace(self, values=values)


def assembled(
    trees: Sequence[GrownTree],
    bins: Bins,
    *,
    sums: int,
    output: NDArray[Any] | None = None,
    divisor: float = 1.0,
) -> TreesBasis:
    """``trees`` on raw columns. output: the first sum that each adds to, (T,); None: the first of all."""
    nodes = np.cumsum([0, *(len(tree.test) for tree in trees)])
    rows = np.cumsum([0, *(len(tree.values) for tree in trees)])

    def moved(references: Any, tree: int) -> IntArray:
        found: IntArray = np.where(
            np.asarray(references) >= 0, references + nodes[tree], references - rows[tree]
        )
        return found

    return TreesBasis.tidy(
        columns=bins.columns,
        sums=sums,
        feature=bins.feature,
        threshold=bins.edges,
        roots=np.array([moved(tree.root, number) for number, tree in enumerate(trees)]),
        test=np.concatenate([tree.test for tree in trees]),
        children=np.concatenate([moved(tree.children, number) for number, tree in enumerate(trees)]),
        share=np.concatenate([tree.share for tree in trees]),
        values=np.concatenate([tree.values for tree in trees]),
        output=np.zeros(len(trees), dtype=np.int32) if output is None else output,
        divisor=divisor,
    )
