"""Chooses the rows that are held out for measuring a model, if the user names no test part."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from core.data.repeated_rows import Digests
from core.types import IntArray

SHARE: Final = 0.2
"""Share of the rows of each class that are held out."""
LEAST_ROWS: Final = 100
"""With fewer labelled rows, no rows are held out."""
LEAST_TRAINING_ROWS: Final = 2
"""Rows that each class keeps for training."""
_LEAST_TAKEN: Final = 0.9


def held_out_rows(y: NDArray[np.int32], digests: Digests, seed: int) -> IntArray:
    """Ascending numbers of the held-out rows, the same for the same seed; empty if there are few rows.

    Each class gives a fifth of its rows, but keeps at least two. Equal rows stay in one part, unless that
    would cost a tenth of the test part: if rows have only a few different values, new rows will repeat them,
    too.

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
    """Ascending numbers of the taken rows, (m,): rows of whole groups that fit into ``room`` of each class.

    turns: (n,) order of the groups, smallest first. groups: (n,) in [0, n). room: (K,).
    """
    order = np.lexsort((turns, codes))
    ordered = codes[order]
    fits = np.empty(len(codes), dtype=np.bool_)
    fits[order] = np.arange(len(codes)) - np.searchsorted(ordered, ordered) < room[ordered]
    is_cut = np.bincount(groups, weights=~fits) > 0
    taken: IntArray = np.flatnonzero(~is_cut[groups])
    return taken
