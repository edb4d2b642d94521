"""Single trees by scikit-learn's builder, without its estimators' checks, which are slow for small trees."""

from __future__ import annotations

from typing import Any, Final, Literal

import numpy as np
from sklearn.tree._criterion import Gini
from sklearn.tree._splitter import BestSplitter, RandomSplitter
from sklearn.tree._tree import DepthFirstTreeBuilder, Tree

from core.types import FloatArray

_SPLITTERS: Final[dict[str, Any]] = {"best": BestSplitter, "random": RandomSplitter}


def grow_tree(
    codes: Any,
    labels: FloatArray,
    weight: FloatArray,
    *,
    classes: int,
    splits: Literal["best", "random"],
    columns: int,
    min_leaf: int,
    max_depth: int,
    seed: int,
) -> Any:
    """The ``tree_`` of ``DecisionTreeClassifier`` or ``ExtraTreeClassifier`` with these arguments.

    codes: (n, d), float32, C-ordered. labels: class codes, (n, 1), float64. weight: weights of rows, (n,),
    float64. columns: number tried at each node. min_leaf: fewest rows in a leaf.
    """
    n_classes = np.array([classes], dtype=np.intp)
    splitter = _SPLITTERS[splits](
        Gini(1, n_classes), columns, min_leaf, 0.0, np.random.RandomState(seed), None
    )
    tree = Tree(codes.shape[1], n_classes, 1)
    builder = DepthFirstTreeBuilder(splitter, max(2, 2 * min_leaf), min_leaf, 0.0, max_depth, 0.0)
    builder.build(tree, codes, labels, weight, None)
    return tree
