"""Rows dealt to the folds of a cross-validation."""

from __future__ import annotations

import numpy as np

from core.data.validation import not_whole, refuse
from core.types import IntArray


def fold_assignment(labels: IntArray, n_folds: int, seed: int = 0) -> IntArray:
    """The fold of each row, (n,), in [0, n_folds): shuffled, stratified, sizes equal to within one row.

    The rows of a class go to the folds in turn, so their numbers in the folds differ by at most one, and a
    class with fewer rows than folds has them in as many folds. Raises InvalidProblem for folds out of [2, n].
    """
    refuse(not_whole("folds", n_folds, 2, len(labels)), not_whole("seed", seed, 0, 2**32 - 1))
    shuffled = np.random.default_rng(seed).permutation(len(labels))
    dealt = shuffled[np.argsort(labels[shuffled], kind="stable")]
    fold_of = np.empty(len(labels), dtype=np.int64)
    fold_of[dealt] = np.arange(len(labels)) % n_folds
    return fold_of


def scored_folds(fold_of: IntArray, number: int | None) -> IntArray:
    """The first ``number`` of the folds, with −1 for rows of others, (n,); None: all of them."""
    return fold_of if number is None else np.where(fold_of < number, fold_of, -1)
