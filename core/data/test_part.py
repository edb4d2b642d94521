"""Rows that are held out to measure what is trained on the others, where nobody names a test part."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from core.data.repeated_rows import Digests
from core.types import IntArray

SHARE: Final = 0.2
"""Share of the rows of each class that are held out."""
LEAST_ROWS: Final = 100
"""Of fewer labelled rows none are held out."""
LEAST_TRAINING_ROWS: Final = 2
"""Rows that each class keeps for training."""
_LEAST_TAKEN: Final = 0.9


def held_out_rows(y: NDArray[np.int32], digests: Digests, seed: int) -> IntArray:
    """Ascending numbers of the rows to measure on, the same for the same seed; none if there are few rows.

    Each class gives a fifth of its rows, as far as it keeps two. Equal rows stay in one part, unless that
    would cost a tenth of the test part: where rows have few different values, new rows repeat them, too.

    y: (n,) codes, −1 without a label. digests: (n,), equal for equal rows.
    """
    labelled = np.flatnonzero(y >= 0)
    if len(labelled) < LEAST_ROWS:
        return labelled[:0]
    codes = y[labelled]
    counts = np.bincount(codes)
    room = np.minimum(np.rint(SHARE * counts).astype(np.intp), np.maximum(counts - LEAST_TRAINING_ROWS, 0))
    random = np.random.default_rng(seed)
    groups = np.unique(digests[labelled], return_inverse=True)[1]
    taken = _taken(codes, random.permutation(groups.max() + 1)[groups], groups, room)
    if len(taken) < _LEAST_TAKEN * room.sum():
        rows = np.arange(len(labelled))
        taken = _taken(codes, random.permutation(rows), rows, room)
    held_out: IntArray = labelled[taken]
    return held_out


def _taken(codes: NDArray[np.int32], turns: IntArray, groups: IntArray, room: IntArray) -> IntArray:
    """Ascending numbers of the rows of groups all of whose rows have room in their class, (m,).

    turns: (n,) of the groups, those with the smallest go first. groups: (n,) in [0, n). room: (K,).
    """
    order = np.lexsort((turns, codes))
    ordered = codes[order]
    fits = np.empty(len(codes), dtype=np.bool_)
    fits[order] = np.arange(len(codes)) - np.searchsorted(ordered, ordered) < room[ordered]
    is_cut = np.bincount(groups, weights=~fits) > 0
    taken: IntArray = np.flatnonzero(~is_cut[groups])
    return taken
