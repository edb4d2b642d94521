"""Chooses the rows that are held out for measuring a model, if the user names no test part."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from core.data.repeated_rows import Digests
from core.data.row_marks import RowMarks, pseudonyms
from core.errors import Fault, InvalidProblem
from core.types import BoolArray, IntArray

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


@dataclass(frozen=True, slots=True)
class Split:
    """How a job holds rows out. fraction: the share that was given; None for a fifth as `held_out_rows` takes
    it. seed: of the job.
    """

    fraction: float | None = None
    seed: int = 0

    def rows(self, y: NDArray[np.int32], digests: Digests, marks: RowMarks) -> IntArray:
        """Ascending numbers of the rows to measure on, a stratified part of the labelled rows.

        y: (n,) codes, −1 without a label. digests: (n,), equal for equal rows. Rows about one subject stay in
        one part where no fraction was given. Raises InvalidProblem where the fraction cannot be held out.
        """
        if self.fraction is None:
            taken = held_out_rows(y, _groups(digests, marks), self.seed)
            if marks.subjects is None or len(taken):
                return taken
            return held_out_rows(y, digests, self.seed)
        from sklearn.model_selection import StratifiedShuffleSplit  # a second that most jobs do not need

        splitter = StratifiedShuffleSplit(n_splits=1, test_size=self.fraction, random_state=self.seed)
        known = np.flatnonzero(y >= 0)
        try:
            _, held_out = next(splitter.split(np.zeros(len(known)), y[known]))
        except ValueError as error:
            message = (
                f"{len(known)} rows cannot be split at {self.fraction} so that both parts have all classes."
            )
            raise InvalidProblem(Fault("evaluation.test_fraction", "cannot_split", message)) from error
        rows: IntArray = np.sort(known[held_out])
        return rows

    def further_rows(
        self, y: NDArray[np.int32], digests: Digests, marks: RowMarks, is_test: BoolArray, first: int
    ) -> IntArray:
        """Ascending numbers of the rows from ``first`` on that join the test rows among those before.

        Each class gives as many as its test rows lack of the share. A row that equals an earlier one, or is
        about the same subject, goes to the part of that. is_test: (n,) of the rows before ``first``.
        """
        labelled = np.flatnonzero(y >= 0)
        if len(labelled) < LEAST_ROWS:
            return labelled[:0]
        share = SHARE if self.fraction is None else self.fraction
        groups = np.unique(_groups(digests, marks), return_inverse=True)[1]
        in_test = np.bincount(groups[:first], weights=is_test[:first], minlength=groups.max() + 1) > 0
        in_training = np.bincount(groups[:first], weights=~is_test[:first], minlength=len(in_test)) > 0
        new = labelled[labelled >= first]
        joins = in_test[groups[new]]
        free = new[~joins & ~in_training[groups[new]]]
        taken = new[joins]
        counts = np.bincount(y[labelled])
        present = np.bincount(y[np.concatenate([labelled[labelled < first], taken])], minlength=len(counts))
        tested = y[np.concatenate([labelled[is_test[labelled] & (labelled < first)], taken])]
        has = np.bincount(tested, minlength=len(counts))
        room = np.rint(share * counts).astype(np.intp) - has
        room = np.clip(room, 0, np.maximum(counts - has - LEAST_TRAINING_ROWS, 0))
        if not len(free):
            return np.sort(taken)
        random = np.random.default_rng([self.seed, int(present.sum())])
        turns = random.permutation(groups.max() + 1)[groups[free]]
        # Groups are numbered from 0 among the rows that are dealt.
        numbered = np.unique(groups[free], return_inverse=True)[1]
        return np.sort(np.concatenate([taken, free[_taken(y[free], turns, numbered, room)]]))


def _groups(digests: Digests, marks: RowMarks) -> Digests:
    """A number for each row, equal for rows that must stay in one part."""
    if marks.subjects is None:
        return digests
    numbers: Digests = np.unique(pseudonyms(marks.subjects), return_inverse=True)[1].astype(np.uint64)
    return np.where(marks.subjects.any(axis=1), numbers, digests)


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
