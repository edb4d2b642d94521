"""Folds for cross-validation: stratified, or by groups of rows that belong together."""

from __future__ import annotations

import numpy as np

from core.model_selection.folds import fold_assignment
from core.types import IntArray


def folds_of(labels: IntArray, groups: IntArray | None, n_folds: int, seed: int) -> IntArray:
    """The fold of each row, (n,): stratified without groups, else ``grouped_folds``.

    Raises InvalidProblem for a number of folds that cannot be made of the rows.
    """
    return fold_assignment(labels, n_folds, seed) if groups is None else grouped_folds(groups, n_folds)


def grouped_folds(groups: IntArray, n_folds: int) -> IntArray:
    """The fold of each row, (n,), all rows of a group in one fold; fewer folds if there are fewer groups.

    The largest group goes first, each to the fold with the fewest rows so far. Where the test part has other
    speakers than the training part, only held-out speakers tell how good a student will be.
    """
    names, group_of, sizes = np.unique(groups, return_inverse=True, return_counts=True)
    filled = np.zeros(min(n_folds, len(names)), dtype=np.int64)
    fold_of_group = np.empty(len(names), dtype=np.int64)
    for group in np.argsort(-sizes, kind="stable"):
        fold = int(np.argmin(filled))
        fold_of_group[group] = fold
        filled[fold] += sizes[group]
    fold_of: IntArray = fold_of_group[group_of]
    return fold_of
