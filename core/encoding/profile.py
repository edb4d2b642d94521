"""The profile of the training rows, with which inputs of queries are compared."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from core.data.cell_values import microseconds_of
from core.data.schema import cells_as
from core.data.table import Cells, NumberCells, Table, TextCells
from core.packed.encoded_columns import CategoryColumn, ColumnEncoder, DateColumn, TextColumn
from core.packed.encoder import Encoder
from core.packed.input_profile import (
    BINS,
    GAP_BIN,
    MOST_COLUMNS,
    OTHERS,
    TEXT_BINS,
    ColumnProfile,
    InputProfile,
    count_words,
    share_bin,
)

MOST_ROWS: Final = 50_000
MOST_TEXTS: Final = 2000
"""Largest numbers of rows to use, in general and for a column of texts; they are evenly spaced."""


def fit_profile(table: Table, encoder: Encoder) -> InputProfile:
    """The profile of the table to whose rows the encoder was fitted."""
    some = table.take(_spread(table.n, MOST_ROWS)) if table.n > MOST_ROWS else table
    columns = []
    for column in encoder.columns[:MOST_COLUMNS]:
        columns.append(_of(column, cells_as(column.name, some.column(column.name), column.spec)))
    return InputProfile(tuple(columns))


def _of(column: ColumnEncoder, cells: Cells) -> ColumnProfile:
    edges: list[Any] = []
    top: list[int] = []
    if isinstance(column, TextColumn) and len(cells) > MOST_TEXTS:
        cells = cells.take(_spread(len(cells), MOST_TEXTS))
    gaps = int(cells.is_gap.sum())
    if isinstance(column, TextColumn):
        assert isinstance(cells, TextCells)  # noqa: S101 - `cells_as` has converted them
        bins, edges = _text_bins(column, cells)
    elif isinstance(column, CategoryColumn):
        assert isinstance(cells, TextCells)  # noqa: S101 - as above
        bins, top = _category_bins(column, cells)
    elif isinstance(cells, NumberCells):
        known = cells.values[~cells.is_gap]
        edges = [0.5] if cells.is_truth else _edges(known, GAP_BIN)
        bins = np.searchsorted(edges, known, side="right")
    elif isinstance(column, DateColumn):
        assert isinstance(cells, TextCells)  # noqa: S101 - as above
        of_text = [microseconds_of(text, column.pattern) or 0 for text in cells.texts]
        moments = np.array(of_text, dtype=np.int64)[cells.codes[cells.codes >= 0]]
        edges = _edges(moments, GAP_BIN)
        bins = np.searchsorted(edges, moments, side="right")
    else:
        bins = np.zeros(len(cells) - gaps, dtype=np.int64)
    counts = np.bincount(bins, minlength=BINS)
    counts[GAP_BIN] = gaps
    return ColumnProfile(tuple(counts.tolist()), tuple(edges), tuple(top))


def _category_bins(column: CategoryColumn, cells: TextCells) -> tuple[NDArray[np.int64], list[int]]:
    """The bin of each cell that is not a gap, and the places of the values that have their own bins."""
    count_of = dict(zip(cells.texts, cells.counts.tolist(), strict=True))
    by_count = sorted(range(len(column.values)), key=lambda place: -count_of.get(column.values[place], 0))
    top = by_count[:OTHERS]
    bin_of = {column.values[place]: number for number, place in enumerate(top)}
    of_text = np.array([bin_of.get(text, OTHERS) for text in cells.texts], dtype=np.int64)
    return of_text[cells.codes[cells.codes >= 0]], top


def _text_bins(column: TextColumn, cells: TextCells) -> tuple[NDArray[np.int64], list[Any]]:
    """Both bins of each cell that is not a gap, and the edges for numbers of words."""
    codes = cells.codes[cells.codes >= 0]
    own, places = np.unique(codes, return_inverse=True)
    counted = [count_words(column, cells.texts[code], of_training=True) for code in own.tolist()]
    words = np.array([one[0] for one in counted], dtype=np.int64)[places]
    shares = np.array([share_bin(*one) for one in counted], dtype=np.int64)[places]
    edges = _edges(words, TEXT_BINS)
    return np.concatenate([shares, TEXT_BINS + np.searchsorted(edges, words, side="right")]), edges


def _edges(values: NDArray[Any], bins: int) -> list[Any]:
    """The starts of all bins but the first, for at most ``bins`` bins with similar numbers of values."""
    if not len(values):
        return []
    ordered = np.sort(values)
    found = np.unique(ordered[[len(ordered) * part // bins for part in range(1, bins)]])
    edges: list[Any] = found[found > ordered[0]].tolist()
    return edges


def _spread(n: int, most: int) -> NDArray[np.int64]:
    """``most`` of n positions, evenly spaced."""
    return np.arange(most, dtype=np.int64) * n // most
