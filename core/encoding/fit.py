"""Fits encoders to training rows. Labels are never used, so the folds of a cross-validation may share one.

``core.packed.encoder`` describes the columns of each kind. Encoding a category by the mean of its labels
would break promised rates of false positives, and is no better than encoding its values.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
import scipy.sparse as sp

from core.data.cell_values import microseconds_of
from core.data.schema import ColumnSchema, Kind, cells_as
from core.data.table import NumberCells, PictureCells, Table, TextCells, VectorCells
from core.encoding.gaps import fit_gap_fill
from core.encoding.rules import USUAL_RULES, ColumnRules, most_terms
from core.errors import Fault, InvalidProblem
from core.packed.embedded_column import EmbeddedColumn
from core.packed.encoded_columns import (
    CYCLES,
    MAX_VALUES,
    CategoryColumn,
    ColumnEncoder,
    DateColumn,
    Floats,
    NumberColumn,
    TextColumn,
    VectorColumn,
)
from core.packed.encoder import EncodedRows, Encoder
from core.packed.term_table import MAX_TERMS, TermTable, idf_of
from core.packed.terms import Family, TextBatch, batches
from core.types import Matrix

LEAST_ROWS_OF_VALUE: Final = 5
LEAST_GAPS: Final = 10
SMALL: Final = 200
LEAST_ROWS_OF_SMALL: Final = 2
"""With at most this many rows in total, this many rows with a value are enough for a column."""

_LEAST_DEVIATION: Final = 0.01
_DAY: Final = 86_400_000_000


def fit_encoder(
    table: Table,
    schema: Sequence[ColumnSchema],
    rules: Mapping[str, ColumnRules] | None = None,
    ignored: Collection[str] = (),
    *,
    takes_others: bool = False,
    answers_gaps: bool = True,
    n_classes: int = 0,
) -> Encoder:
    """Fit the encoder of the rows of a table.

    schema: of the table's columns. rules: for some columns by name. ignored: further columns that rows may
    have, such as that of the labels. takes_others: whether rows may have any other columns. answers_gaps:
    whether rows may have gaps in columns without gaps in the table; a single column has no others to fill
    gaps from. n_classes: limits the number of terms (``most_terms``). Raises InvalidProblem if no column is
    left, or if cells are not of the given kind.
    """
    chosen = dict(rules or {})
    columns: list[ColumnEncoder] = []
    unused = []
    for column in schema:
        if column.kind is Kind.IGNORE:
            unused.append(column.name)
            continue
        fitted = _fit(table, column, chosen.get(column.name, USUAL_RULES))
        # A column whose texts share no term has no information.
        if fitted.width or any(map(len, fitted.tables)):
            columns.append(fitted)
        else:
            unused.append(column.name)
    if not columns:
        message = (
            "No column of the table says anything: each is constant, without values, or identifies rows."
        )
        raise InvalidProblem(Fault("X", "no_columns", message))
    kept = _most_frequent_of_all(_within_limit(columns), most_terms(n_classes))
    if answers_gaps and len(kept) > 1:
        kept = [_filling(column, chosen.get(column.name, USUAL_RULES)) for column in kept]
    names = {column.name for column in kept}
    others = [name for name in [*unused, *ignored] if name not in names]
    unfinished = np.zeros(sum(one.width for one in kept))
    encoder = Encoder(tuple(kept), tuple(dict.fromkeys(others)), unfinished, takes_others)
    dense = encoder.encode(table).dense
    means = dense.mean(axis=0)
    return replace(encoder, means=means, gaps=fit_gap_fill(encoder, dense, means))


def _filling(column: ColumnEncoder, rules: ColumnRules) -> ColumnEncoder:
    """The column; if it has not learnt from gaps, it fills gaps of queries unless rules refuse these."""
    learned = not column.required if isinstance(column, TextColumn) else column.marks_gaps
    if learned or rules.missing is False:
        return column
    filling: Any = column
    return replace(filling, required=False, fills=True)  # type: ignore[no-any-return]


def matrix_of(rows: EncodedRows, encoder: Encoder) -> Matrix:
    """Encoded rows as dense numbers (n, d), or as CSR if there are terms.

    In CSR the numbers of every row are stored, even those that are 0, because they may be shifted.
    """
    if rows.entries is None:
        return rows.dense
    layout = encoder.layout
    stored = rows.dense != 0.0
    stored[:, list(layout.numbers)] = True
    at_rows, at_columns = np.nonzero(stored)
    place = (
        np.concatenate([at_rows, rows.entries.rows]),
        np.concatenate([at_columns, rows.entries.columns + layout.dense]),
    )
    values = np.concatenate([rows.dense[stored], rows.entries.values])
    order = np.lexsort((place[1], place[0]))
    starts = np.zeros(len(rows.dense) + 1, dtype=np.int32)
    np.cumsum(np.bincount(place[0], minlength=len(rows.dense)), out=starts[1:])
    triple = (values[order], place[1][order].astype(np.int32), starts)
    matrix = sp.csr_array(triple, shape=(len(rows.dense), layout.columns))
    matrix.has_canonical_format = True
    return matrix


def _fit(table: Table, column: ColumnSchema, rules: ColumnRules) -> ColumnEncoder:
    cells = cells_as(column.name, table.column(column.name), column.spec)
    gaps = int(cells.is_gap.sum())
    required = gaps == 0 if rules.missing is None else not rules.missing
    marks_gaps = gaps >= LEAST_GAPS
    if isinstance(cells, VectorCells):
        known = cells.values[~cells.is_gap]
        return VectorColumn(column.name, required, np.median(known, axis=0), marks_gaps)
    if isinstance(cells, PictureCells):
        return _embedded(column, cells, required, marks_gaps)
    if isinstance(cells, NumberCells):
        return _number(column, cells, required, marks_gaps)
    if column.kind is Kind.DATE:
        return _date(column, cells, required, marks_gaps)
    if column.kind is Kind.TEXT:
        return TextColumn(column.name, required, fit_terms(cells, rules.families_of(cells.texts)))
    return _category(column, cells, required, marks_gaps, rules)


def _embedded(column: ColumnSchema, cells: PictureCells, required: bool, marks_gaps: bool) -> EmbeddedColumn:
    """The column of pictures that one encoder has made vectors of. Raises InvalidProblem without these."""
    if len(cells.vectors) != 1:
        message = f"The pictures of column {column.name!r:.80} have no vectors of one encoder."
        raise InvalidProblem(Fault("X", "not_encoded", message))
    [(encoder, vectors)] = cells.vectors.items()
    centre, scale = scaling_of_block(vectors[cells.codes[~cells.is_gap]].astype(np.float64))
    known = cells.encoders.get(encoder, (encoder, "pixels.1"))
    return EmbeddedColumn(column.name, required, encoder, *known, centre, scale, marks_gaps)


def scaling_of_block(vectors: Floats) -> tuple[Floats, Floats]:
    """Centre and scale, each (w,), by which vectors (n, w) enter as one group.

    Each number is divided by its deviation, and all by √w, so that the group has the variance of one other
    column. A deviation below a hundredth of the usual one counts as that: a number that hardly varies in
    training would outweigh all others where it does later.
    """
    centre: Floats = vectors.mean(axis=0)
    deviations = vectors.std(axis=0)
    least = _LEAST_DEVIATION * float(np.sqrt(np.mean(deviations**2)))
    floored = np.maximum(deviations, least if least > 0.0 else 1.0)
    scale: Floats = 1.0 / (floored * np.sqrt(vectors.shape[1]))
    return centre, scale


def _number(column: ColumnSchema, cells: NumberCells, required: bool, marks_gaps: bool) -> NumberColumn:
    known = cells.values[~cells.is_gap]
    is_truth = column.kind is Kind.BOOLEAN
    low, high = (0.0, 1.0) if is_truth or not len(known) else (float(known.min()), float(known.max()))
    fallback = float(np.median(known)) if len(known) else 0.0
    return NumberColumn(
        column.name, required, fallback, marks_gaps, low, high, is_truth, column.pattern, column.nulls
    )


def _category(
    column: ColumnSchema, cells: TextCells, required: bool, marks_gaps: bool, rules: ColumnRules
) -> CategoryColumn:
    counts, n = cells.counts, len(cells)
    least = LEAST_ROWS_OF_VALUE if n >= SMALL else LEAST_ROWS_OF_SMALL
    keys = list(cells.texts)
    by_count = sorted((-int(count), key) for key, count in zip(keys, counts, strict=True) if count > 0)
    values = tuple(sorted(key for count, key in by_count[:MAX_VALUES] if -count >= least))
    rare = tuple(sorted({key for _, key in by_count}.difference(values)))
    tables = fit_terms(cells, rules.families_of(cells.texts)) if len(by_count) > MAX_VALUES else ()
    return CategoryColumn(
        column.name, required, values, rare, bool(rare), marks_gaps, rules.refuses_unseen, tables
    )


def _date(column: ColumnSchema, cells: TextCells, required: bool, marks_gaps: bool) -> DateColumn:
    of_text = [microseconds_of(text, column.pattern) or 0 for text in cells.texts]
    moments = np.array(of_text, dtype=np.int64)[cells.codes[cells.codes >= 0]]
    if not len(moments):
        moments = np.zeros(1, dtype=np.int64)
    low, high = int(moments.min()), int(moments.max())
    days = moments // _DAY
    varying = {
        "hour": len(np.unique(moments % _DAY)) > 1,
        "weekday": len(np.unique(days % 7)) > 1,
        "yearday": high - low > 30 * _DAY,
    }
    middle = int(np.sort(moments)[len(moments) // 2])
    cycles = tuple(cycle for cycle in CYCLES if varying[cycle])
    first = low // _DAY * _DAY
    return DateColumn(
        column.name, required, first, middle, cycles, marks_gaps, column.pattern, low, high, column.nulls
    )


def fit_terms(cells: TextCells, families: Sequence[Family]) -> tuple[TermTable, ...]:
    """The most frequent terms of each family. A text that occurs several times counts as often.

    Terms in a single row are included: new texts have many words that were seen once, and these tell
    something about the class. If no two rows share a term of a family, the family gets no terms.
    """
    weight = cells.counts
    rows = int(weight.sum())
    found: dict[Family, list[tuple[np.ndarray, np.ndarray]]] = {family: [] for family in families}
    start = 0
    for texts in batches(cells.texts):
        batch = TextBatch(texts)
        for family in families:
            counted = batch.count(family)
            found[family].append((counted.terms, weight[counted.rows + start]))
        start += batch.n
    return tuple(_term_table(family, parts, rows) for family, parts in found.items())


def _term_table(family: Family, parts: Sequence[tuple[np.ndarray, np.ndarray]], rows: int) -> TermTable:
    terms = np.concatenate([part[0] for part in parts]) if parts else np.empty(0, dtype=np.uint64)
    weights = np.concatenate([part[1] for part in parts]) if parts else np.empty(0, dtype=np.int64)
    known, inverse = np.unique(terms, return_inverse=True)
    occurrences = np.bincount(inverse, weights, minlength=len(known)).astype(np.int64)
    limit = MAX_TERMS if (occurrences > 1).any() else 0
    known, occurrences = _most_frequent(known, occurrences, limit)
    return TermTable(family, known, idf_of(rows, occurrences.tolist()), int(idf_of(rows, [0])[0]))


def _most_frequent(terms: np.ndarray, occurrences: np.ndarray, limit: int) -> tuple[np.ndarray, np.ndarray]:
    if len(terms) <= limit:
        return terms, occurrences
    first = np.sort(np.lexsort((terms, -occurrences))[:limit])
    return terms[first], occurrences[first]


def _within_limit(columns: Sequence[ColumnEncoder]) -> list[ColumnEncoder]:
    """The columns with at most `MAX_TERMS` terms in total: the most frequent ones of each family."""
    sizes = [len(table) for column in columns for table in column.tables]
    if sum(sizes) <= MAX_TERMS:
        return list(columns)
    # All tables get the largest common limit that keeps the total.
    return _with_limits(columns, [_equal_limit(sizes)] * len(sizes))


def _most_frequent_of_all(columns: Sequence[ColumnEncoder], most: int) -> list[ColumnEncoder]:
    """The columns with at most ``most`` terms in total: the most frequent ones of all families."""
    tables = [table for column in columns for table in column.tables]
    if sum(map(len, tables)) <= most:
        return list(columns)
    # The rarer a term, the larger its idf.
    idf = np.concatenate([table.idf for table in tables])
    table_of = np.repeat(np.arange(len(tables)), [*map(len, tables)])
    kept = np.bincount(table_of[np.argsort(idf, kind="stable")[:most]], minlength=len(tables))
    return _with_limits(columns, kept.tolist())


def _with_limits(columns: Sequence[ColumnEncoder], limits: Sequence[int]) -> list[ColumnEncoder]:
    """The columns with the most frequent terms of each table. limits: one for each table."""
    of_table = iter(limits)
    limited: list[ColumnEncoder] = []
    for column in columns:
        if not isinstance(column, TextColumn | CategoryColumn):
            limited.append(column)
            continue
        tables = tuple(_limited(one, next(of_table)) for one in column.tables)
        limited.append(replace(column, term_tables=tables))
    return limited


def _equal_limit(sizes: Sequence[int]) -> int:
    left, limit = MAX_TERMS, 0
    ascending = sorted(sizes)
    for place, size in enumerate(ascending):
        limit = left // (len(ascending) - place)
        if size >= limit:
            return limit
        left -= size
    return limit


def _limited(table: TermTable, limit: int) -> TermTable:
    # The rarer a term, the larger its idf.
    terms, idf = _most_frequent(table.terms, -table.idf, limit)
    return TermTable(table.family, terms, -idf, table.unknown_idf)
