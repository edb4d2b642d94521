"""The distribution of each column over the training rows, in at most 20 bins and one for gaps.

    number, date    bins with similar numbers of rows
    boolean         false and true
    category        the 19 most frequent values, and all others
    text            bins 0 to 9: share of its words that training had; bins 10 to 19: number of words
    vector          one bin

Values of queries are counted in the same bins, so both can be compared without storing any value.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import pairwise
from math import log
from typing import Any, Final, TypeAlias, final

import numpy as np

from core.data.validation import MAX_MAGNITUDE
from core.errors import InvalidPackage
from core.packed.codec import Buffer
from core.packed.encoded_columns import (
    CategoryColumn,
    ColumnEncoder,
    DateColumn,
    NumberColumn,
    TextColumn,
)
from core.packed.encoder import Encoder
from core.packed.record_rows import is_missing
from core.packed.term_table import UNIT_BITS
from core.packed.terms import TextBatch

MOST_COLUMNS: Final = 64
"""Only the first columns of the encoder are counted, up to this number."""
GAP_BIN: Final = 20
BINS: Final = 21
TEXT_BINS: Final = 10
"""Number of bins for each of the two counts of a text."""
OTHERS: Final = 19
"""Bin for values of a category without a bin of their own."""
_TWO_AND_A_HALF: Final = round((1 << UNIT_BITS) * log(2.5))

Bins: TypeAlias = Sequence[int]
"""The bin of a value; for a text its two bins."""


@final
@dataclass(frozen=True, slots=True)
class ColumnProfile:
    """counts: training rows in each bin, (BINS,). edges: starts of all bins but the first, for numbers, dates
    and numbers of words. top: positions of a category's most frequent values among its ``values``.
    """

    counts: tuple[int, ...]
    edges: tuple[float, ...] = ()
    top: tuple[int, ...] = ()


@final
@dataclass(frozen=True, slots=True)
class InputProfile:
    """columns: the first `MOST_COLUMNS` columns of an encoder."""

    columns: tuple[ColumnProfile, ...]

    def to_bytes(self) -> bytes:
        """The profile as JSON; the same profile always gives the same bytes."""
        document = {"format": _FORMAT, "columns": [asdict(column) for column in self.columns]}
        return json.dumps(document, separators=(",", ":")).encode()

    @classmethod
    def from_bytes(cls, data: Buffer, encoder: Encoder) -> InputProfile:
        """The profile that ``to_bytes`` stored. Raises InvalidPackage if it does not fit the encoder."""
        try:
            document = json.loads(bytes(data))
            known = document["format"] == _FORMAT
            columns = tuple(
                ColumnProfile(tuple(one["counts"]), tuple(one["edges"]), tuple(one["top"]))
                for one in document["columns"]
            )
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise InvalidPackage(f"The profile of inputs cannot be read: {error}.") from error
        encoders = encoder.columns[:MOST_COLUMNS]
        if not known or len(columns) != len(encoders) or not all(map(_is_usable, columns, encoders)):
            raise InvalidPackage("The profile of inputs does not fit the encoder.")
        return cls(columns)


_FORMAT: Final = "stms.profile.1"


def bins_of(column: ColumnEncoder, profile: ColumnProfile) -> Callable[[Any], Bins]:
    """A function that finds the bins of a value of a usable record."""
    edges, ones = profile.edges, [(number,) for number in range(BINS)]
    gap = ones[GAP_BIN]
    if isinstance(column, TextColumn):
        return lambda text: gap if is_missing(column, text) else _text_bins(column, edges, text)
    if isinstance(column, CategoryColumn):
        places: dict[Any, Bins] = {column.values[place]: ones[k] for k, place in enumerate(profile.top)}
        places[None] = gap
        return lambda value: places.get(value) or _other_bin(column, places, value)
    if isinstance(column, DateColumn):
        find = partial(bisect_right, edges)
        return lambda text: gap if is_missing(column, text) else ones[find(column.checked(text))]
    if isinstance(column, NumberColumn):
        if column.takes_texts:
            place = partial(bisect_right, edges)
            return lambda value: gap if is_missing(column, value) else ones[place(column.checked(value))]
        return lambda number: gap if number is None else ones[bisect_right(edges, number)]
    return lambda value: gap if value is None else ones[0]


def _other_bin(column: CategoryColumn, places: Mapping[str | None, Bins], value: Any) -> Bins:
    """The bins of a value that is not written as its key, or has no bin of its own."""
    return places.get(None if is_missing(column, value) else column.checked(value), (OTHERS,))


def _text_bins(column: TextColumn, edges: Sequence[float], text: str) -> Bins:
    words, known = count_words(column, text)
    return share_bin(words, known), TEXT_BINS + bisect_right(edges, words)


def share_bin(words: int, known: int) -> int:
    """The bin of a text, for the share of its words that are known."""
    return min(TEXT_BINS * known // max(words, 1), TEXT_BINS - 1)


def count_words(column: TextColumn, text: str, *, of_training: bool = False) -> tuple[int, int]:
    """Number of different terms of the column's first family in a text, and how many of them are known.

    of_training: whether the text is a training row. Such a row knows its own terms, so a term counts as known
    only if a further row has it; otherwise training rows would look more familiar than similar new rows.
    """
    table = column.tables[0]
    terms = TextBatch([text]).count(table.family).terms
    if not len(table):
        return len(terms), 0
    places = np.minimum(np.searchsorted(table.terms, terms), len(table) - 1)
    is_known = table.terms[places] == terms
    if of_training:
        # n rows, n_t of them with the term: idf_t = log((1 + n) / (1 + n_t)) + 1, and n_t is 2 or more.
        is_known &= table.idf[places] < table.unknown_idf - _TWO_AND_A_HALF
    return len(terms), int(is_known.sum())


def stability_index(column: ColumnEncoder, training: Sequence[int], found: Sequence[int]) -> float | None:
    """Σ (p − q) ln(p / q) over the bins; q and p are the shares of both counts in each bin, at least 1e-4.

    This is the population stability index. For a text it is the larger index of its two counts. None without
    rows.
    rows.
    """
    both = [(training[part], found[part]) for part in parts_of(column)]
    known = [_distance(old, new) for old, new in both if sum(old) and sum(new)]
    return max(known, default=None)


def parts_of(column: ColumnEncoder) -> list[slice]:
    """The bins of each count of a column; the last slice includes the gaps."""
    if isinstance(column, TextColumn):
        return [slice(0, TEXT_BINS), slice(TEXT_BINS, BINS)]
    return [slice(0, BINS)]


def _distance(training: Sequence[int], found: Sequence[int]) -> float:
    total = 0.0
    for old, new in zip(training, found, strict=True):
        q, p = max(old / sum(training), _LEAST), max(new / sum(found), _LEAST)
        total += (p - q) * log(p / q)
    return total


_LEAST: Final = 1e-4
_MOST_ROWS: Final = 2**53


def _is_usable(profile: ColumnProfile, column: ColumnEncoder) -> bool:
    counts, edges, top = profile.counts, profile.edges, profile.top
    if not all(type(number) is int and 0 <= number <= _MOST_ROWS for number in (*counts, *top)):
        return False
    if not all(type(edge) in (int, float) and abs(edge) <= MAX_MAGNITUDE for edge in edges):
        return False
    most_edges = TEXT_BINS - 1 if isinstance(column, TextColumn) else 0
    if isinstance(column, NumberColumn | DateColumn):
        most_edges = GAP_BIN - 1
    values = len(column.values) if isinstance(column, CategoryColumn) else 0
    return (
        len(counts) == BINS
        and len(edges) <= most_edges
        and all(low < high for low, high in pairwise(edges))
        and len(top) <= OTHERS
        and all(place < values for place in top)
        and (not isinstance(column, TextColumn) or bool(column.tables))
    )
