"""The fit of a forest: scikit-learn grows the trees, one by one, on bootstrap samples that are known.

Tree t draws its sample and its choices from the seed (s, t), whatever is the number of threads. Its share in
the scores of the rows outside of its sample is added in the order of the trees.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from joblib import Parallel, delayed

from core.features.tree_sums import dense_rows
from core.run import Run
from core.solvers.solution import Summary
from core.teachers.base import Task
from core.teachers.binning import Bins
from core.teachers.grown_trees import GrownTree, assembled
from core.teachers.tree_teacher import TreeTeacher, error_rate
from core.types import FloatArray, IntArray

if TYPE_CHECKING:
    from core.teachers.forest import Forest


def fit_forest(spec: Forest, task: Task, run: Run) -> TreeTeacher:
    """Bin the columns, grow the trees, and score the rows out of bag. Raises InvalidProblem, Cancelled."""
    started = time.perf_counter()
    bins = Bins.of(dense_rows(task.examples.X), spec.bins)
    codes = bins.codes(task.examples.X)
    present, labels = np.unique(task.labels, return_inverse=True)
    votes, voters = np.zeros((len(codes), len(present))), np.zeros(len(codes))
    grown = []
    for tree, outside, shares in _trees(spec, bins, codes, labels, run):
        votes[outside] += shares
        voters[outside] += 1.0
        grown.append(tree.spread(present, task.n_classes))
        run.report("trees", len(grown), spec.trees)
    left_out = np.zeros((len(codes), task.n_classes))
    with np.errstate(invalid="ignore"):
        left_out[:, present] = votes / voters[:, np.newaxis]
    left_out[voters == 0.0] = np.nan
    summary = Summary(
        objective=error_rate(left_out, task.labels),
        gap=None,
        relative_gap=None,
        iterations=spec.trees,
        seconds=time.perf_counter() - started,
        status=None,
    )
    trees = assembled(grown, bins, sums=task.n_classes, divisor=float(spec.trees))
    return TreeTeacher(trees, left_out, summary)


def grown_tree(nodes: Any, bins: Bins) -> GrownTree:
    """A tree from ``tree_`` of a classifier that was fitted to the codes of ``bins``."""
    children = np.column_stack([nodes.children_left, nodes.children_right])
    test = bins.first[nodes.feature] + np.floor(nodes.threshold).astype(np.int64)
    return GrownTree.of_nodes(children, test, nodes.weighted_n_node_samples, nodes.value[:, 0, :])


def _trees(
    spec: Forest, bins: Bins, codes: FloatArray, labels: IntArray, run: Run
) -> Iterator[tuple[GrownTree, IntArray, FloatArray]]:
    """Of every tree, in order: the tree, the rows outside of its sample, and its shares of their classes."""
    from sklearn.tree import DecisionTreeClassifier, ExtraTreeClassifier

    kind = DecisionTreeClassifier if spec.splits == "best" else ExtraTreeClassifier
    n = len(codes)

    def grow(number: int) -> tuple[GrownTree, IntArray, FloatArray]:
        run.check_cancel()
        rng = np.random.default_rng((run.seed, number))
        weight = np.bincount(rng.integers(n, size=n), minlength=n).astype(np.float64)
        fitted = kind(
            max_features="sqrt" if spec.max_features is None else spec.max_features,
            min_samples_leaf=spec.min_leaf,
            max_depth=spec.max_depth,
            random_state=int(rng.integers(2**31)),
        ).fit(codes, labels, sample_weight=weight, check_input=False)
        outside = np.flatnonzero(weight == 0.0)
        return grown_tree(fitted.tree_, bins), outside, fitted.tree_.predict(codes[outside])

    pool = Parallel(n_jobs=run.threads, prefer="threads", return_as="generator")
    yield from pool(delayed(grow)(number) for number in range(spec.trees))
