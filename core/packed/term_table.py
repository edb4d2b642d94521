"""The known terms of a column of texts, and the weights that they have in a text.

A term t that occurs c_t times in a text has the weight tf(c_t) idf_t with tf(c) = log(1 + c) and
idf_t = 1 + log((1 + n) / (1 + n_t)), if n_t of n training rows contain it; n_t = 0 for an unknown term. Each
text is divided by the norm over all its terms. With a norm over the known terms alone, training rows would
look smaller than new ones, whose rare terms are unknown.

Weights are whole multiples of 2^−16, so that sums of squares are exact in any order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from math import log, log1p
from typing import Any, Final, NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from core.errors import Fault, InvalidProblem
from core.packed.terms import FAMILIES, Family, TextBatch, batches

MAX_TERMS: Final = 65_536
"""Largest number of terms of all columns of an encoder together."""

UNIT_BITS: Final = 16
_UNIT: Final = 1 << UNIT_BITS
_LARGEST_IDF: Final = 64 * _UNIT
LARGEST_COUNT: Final = 255
_NONE: Final = np.empty(0, dtype=np.int64)


class Entries(NamedTuple):
    """Terms of rows: row, column among the terms, and value of each entry, (m,)."""

    rows: NDArray[np.int64]
    columns: NDArray[np.int64]
    values: NDArray[np.float64]

    @classmethod
    def joined(cls, parts: Sequence[Entries]) -> Entries:
        """All entries of some parts, one after the other."""
        if not parts:
            return cls(_NONE, _NONE, np.empty(0))
        return parts[0] if len(parts) == 1 else cls(*map(np.concatenate, zip(*parts, strict=True)))

    def shifted(self, rows: int, columns: int) -> Entries:
        """The same entries in later rows and columns."""
        return Entries(self.rows + rows, self.columns + columns, self.values)


@final
@dataclass(frozen=True, eq=False)
class TermTable:
    """The known terms of one family. terms: their numbers, (t,) uint64, ascending. idf: (t,) int64, in
    multiples of 2^−16. unknown_idf: idf of all other terms.

    Raises InvalidProblem if they do not fit together.
    """

    family: Family
    terms: NDArray[np.uint64]
    idf: NDArray[np.int64]
    unknown_idf: int

    def __post_init__(self) -> None:
        if self.family not in FAMILIES:
            raise _fault("unknown_family", f"there is no family of terms {self.family!r:.40}")
        if self.terms.ndim != 1 or self.terms.shape != self.idf.shape or len(self.terms) > MAX_TERMS:
            raise _fault("wrong_shape", "terms and their weights do not fit together")
        if (self.terms[1:] <= self.terms[:-1]).any():
            raise _fault("not_ascending", "the numbers of the terms do not ascend")
        weights = [self.unknown_idf, *([int(self.idf.min()), int(self.idf.max())] if len(self.idf) else [])]
        if not 1 <= min(weights) <= max(weights) <= _LARGEST_IDF:
            raise _fault("out_of_range", "a weight of a term is out of range")

    def __len__(self) -> int:
        return len(self.terms)

    def entries(self, batch: TextBatch, families: int) -> Entries:
        """The known terms of some texts; each text has the norm 1/√families over all its terms."""
        counted = batch.count(self.family)
        places = np.minimum(np.searchsorted(self.terms, counted.terms), max(len(self.terms) - 1, 0))
        if len(self.terms):
            is_known = self.terms[places] == counted.terms
            idf = np.where(is_known, self.idf[places], self.unknown_idf)
        else:
            is_known, idf = np.zeros(len(places), dtype=bool), np.full(len(places), self.unknown_idf)
        weights = (frequencies()[np.minimum(counted.counts, LARGEST_COUNT)] * idf) >> UNIT_BITS
        rows = counted.rows[is_known]
        norms: Any
        if batch.n == 1:
            norms = np.sqrt(np.float64(weights.dot(weights)) * families)
        else:
            squares = np.zeros(batch.n, dtype=np.int64)
            np.add.at(squares, counted.rows, weights * weights)
            norms = np.sqrt(squares.astype(np.float64) * families)[rows]
        return Entries(rows, places[is_known], weights[is_known] / norms)


def term_entries(tables: Sequence[TermTable], texts: Sequence[str]) -> Entries:
    """The known terms of texts in several families, whose columns follow each other."""
    parts, start = [], 0
    for some in batches(texts):
        batch, column = TextBatch(some), 0
        for table in tables:
            parts.append(table.entries(batch, len(tables)).shifted(start, column))
            column += len(table)
        start += batch.n
    return Entries.joined(parts)


def idf_of(rows: int, occurrences: Sequence[int]) -> NDArray[np.int64]:
    """The weights of terms that occur in these numbers of ``rows`` rows, in multiples of 2^−16."""
    weights = [round(_UNIT * (1.0 + log((1 + rows) / (1 + count)))) for count in occurrences]
    return np.array(weights, dtype=np.int64)


@cache
def frequencies() -> NDArray[np.int64]:
    """tf(c) of each count c, in multiples of 2^−16."""
    return np.array([round(_UNIT * log1p(count)) for count in range(LARGEST_COUNT + 1)], dtype=np.int64)


def _fault(code: str, message: str) -> InvalidProblem:
    return InvalidProblem(Fault("terms", code, message))
