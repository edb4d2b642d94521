"""Rows that occur several times: in one data set, with one label or several, or in two parts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from core.data.table import GAP, Cells, PictureCells, TextCells
from core.data.validation import row_blocks
from core.types import FloatArray, IntArray, Matrix

MOST_SHARED: Final = 0.01
"""Largest share of the test rows that may also occur in the training part."""
RowPair: TypeAlias = tuple[int, int]
Digests: TypeAlias = NDArray[np.uint64]


class RepeatedRows(NamedTuple):
    """Rows that occur several times in a data set.

    repeated: rows that equal an earlier row of their class, with the first pair of such rows.
    contradictory: rows that equal a row of another class, with the first of them and its counterpart.
    """

    repeated: int = 0
    first_repeated: RowPair | None = None
    contradictory: int = 0
    first_contradiction: RowPair | None = None

    def described(self) -> dict[str, Any]:
        """These numbers for the summary of a data set, without those that are zero."""
        described: dict[str, Any] = {}
        if self.first_repeated is not None:
            described |= {"repeated_rows": self.repeated, "first_repetition": [*self.first_repeated]}
        if self.first_contradiction is not None:
            described["contradictory_rows"] = self.contradictory
            described["first_contradiction"] = [*self.first_contradiction]
        return described


class SharedRows(NamedTuple):
    """Rows of a test part that also occur in the training part.

    rows: their number, out of ``of`` test rows. first: the first one, and its counterpart in the training
    part.
    """

    rows: int
    of: int
    first: RowPair = (0, 0)

    @property
    def are_many(self) -> bool:
        """Whether so many shared rows make results on the test part too good; one row may be chance."""
        return self.rows > max(1.0, MOST_SHARED * self.of)


def repeated_rows(digests: Digests, y: NDArray[np.int32]) -> RepeatedRows:
    """Which labelled rows occur several times.

    digests: (n,) of all rows. y: (n,) codes, −1 without a label.
    """
    labelled = np.flatnonzero(y >= 0)
    values, labels = digests[labelled], y[labelled]
    ordered = np.sort(values)
    if not (ordered[1:] == ordered[:-1]).any():
        return RepeatedRows()
    # Equal rows become neighbours; among them, rows of one class are together, in their original order.
    order = np.lexsort((labels, values))
    rows, values, labels = labelled[order], values[order], labels[order]
    same_row = values[1:] == values[:-1]
    again = np.concatenate([[False], same_row & (labels[1:] == labels[:-1])])
    starts = np.flatnonzero(np.concatenate([[True], ~same_row]))
    sizes = np.diff(np.append(starts, len(rows)))
    in_mixed = np.repeat(labels[starts] != labels[starts + sizes - 1], sizes)
    first_repeated = first_contradiction = None
    if again.any():
        place = int(np.flatnonzero(again)[rows[again].argmin()])
        first_repeated = int(rows[place - 1]), int(rows[place])
    if in_mixed.any():
        first = int(rows[in_mixed].min())
        others = in_mixed & (values == digests[first]) & (labels != y[first])
        first_contradiction = first, int(rows[others].min())
    return RepeatedRows(int(again.sum()), first_repeated, int(in_mixed.sum()), first_contradiction)


def shared_rows(train: Matrix, test: Matrix) -> SharedRows:
    """Which rows of a test part (m, d) occur in the training part (n, d)."""
    digests, others = matrix_digests(test), matrix_digests(train)
    shared = np.flatnonzero(np.isin(digests, others))
    if not len(shared):
        return SharedRows(0, len(digests))
    first = int(shared[0])
    counterpart = int(np.flatnonzero(others == digests[first])[0])
    return SharedRows(len(shared), len(digests), (first, counterpart))


def matrix_digests(X: Matrix) -> Digests:
    """A number for each row, (n,), equal for equal rows and almost certainly different for others."""
    n, d = X.shape
    weights = _weights(d)
    if not isinstance(X, np.ndarray):
        # Sums of unsigned numbers wrap around, so differences of running sums are exact. Zeros add nothing.
        terms = _mixed(X.data) * weights[X.indices] * (X.data != 0)
        sums = np.zeros(len(terms) + 1, dtype=np.uint64)
        np.cumsum(terms, out=sums[1:])
        wrapped: Digests = sums[X.indptr[1:]] - sums[X.indptr[:-1]]
        return wrapped
    digests = np.empty(n, dtype=np.uint64)
    for rows in row_blocks(n, d):
        digests[rows] = (_mixed(X[rows]) * weights).sum(axis=1, dtype=np.uint64)
    return digests


def table_digests(columns: Sequence[Cells]) -> Digests:
    """The same for the rows of a table, by some of its columns; only rows of one table can be compared."""
    digests = np.zeros(len(columns[0]), dtype=np.uint64)
    for cells, weight in zip(columns, _weights(len(columns)), strict=True):
        if isinstance(cells, TextCells | PictureCells):
            different = len(cells.texts if isinstance(cells, TextCells) else cells.pictures)
            of_texts = _mixed(np.arange(GAP, different)) * weight
            digests += of_texts[cells.codes - GAP]
        elif cells.values.ndim == 1:
            digests += _mixed(cells.values) * weight
        else:
            digests += matrix_digests(cells.values) * weight
    return digests


def _weights(d: int) -> Digests:
    halves = np.random.default_rng(0).integers(2**63, size=(d,), dtype=np.uint64)
    weights: Digests = halves * np.uint64(2) + np.uint64(1)
    return weights


def _mixed(values: FloatArray | IntArray) -> NDArray[np.uint64]:
    """The bits of numbers, well distributed: whole numbers differ in few of them. −0.0 is 0.0."""
    bits = (values.astype(np.float64) + 0.0).view(np.uint64)
    for factor in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
        bits ^= bits >> np.uint64(33)
        bits *= np.uint64(factor)
    bits ^= bits >> np.uint64(33)
    return bits
