"""Samples of rows for comparing candidates: each class has its share, and at least a given number of rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from core.types import IntArray

COMPARED_ROWS: Final = 800
"""Number of rows on which maps are compared."""
RAREST: Final = 10
"""Least number of rows of each class, if it has as many; it is smaller with more than 40 classes."""
MOST_CLASSES: Final = 400
"""With more classes than this, ``COMPARED_ROWS / RAREST`` of them represent all."""
_ROWS_OF_A_CLASS: Final = 60


def some_rows(labels: IntArray, limit: int, seed: int) -> IntArray:
    """About ``limit`` rows at most, rising: each class has its share, and at least 60 rows if it has them."""
    n = len(labels)
    if n <= limit:
        return np.arange(n)
    shuffled = np.random.default_rng(seed).permutation(n)
    kept = []
    for code in np.unique(labels):
        rows = shuffled[labels[shuffled] == code]
        kept.append(rows[: max(_ROWS_OF_A_CLASS, len(rows) * limit // n)])
    return np.sort(np.concatenate(kept))


def comparison_rows(
    labels: IntArray, n_classes: int, seed: int | Sequence[int], limit: int | None = None
) -> IntArray:
    """About 800 rows, or ``limit``, rising: each class has its share, and at least ten rows if it has them.

    With 40 to 400 classes the least number is smaller; with more, 80 random classes have ten rows each.
    """
    n, limit = len(labels), COMPARED_ROWS if limit is None else limit
    if n <= limit:
        return np.arange(n)
    rng = np.random.default_rng(seed)
    shuffled = rng.permutation(n)
    if n_classes <= MOST_CLASSES:
        least = min(RAREST, max(2, limit // (2 * n_classes)))
        quotas = np.maximum(least, np.bincount(labels, minlength=n_classes) * limit // n)
    else:
        quotas = np.zeros(n_classes, dtype=int)
        quotas[rng.choice(n_classes, limit // RAREST, replace=False)] = RAREST
    by_class = shuffled[np.argsort(labels[shuffled], kind="stable")]
    codes = labels[by_class]
    place = np.arange(n) - np.searchsorted(codes, codes)
    return np.sort(by_class[place < quotas[codes]])
