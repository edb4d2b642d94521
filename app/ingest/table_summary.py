"""The description of a table of raw cells before training: its columns, its classes and warnings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec
import numpy as np

from app.domain.entities import Json
from app.domain.names import without_unusable
from app.ingest.label_warnings import count_warnings, label_warnings
from app.ingest.leak_warnings import leak_warnings, repetitions, row_warnings
from app.ingest.raw import RawData, RawTable
from core.data.description import described_classes, described_extras
from core.data.examples import cell_examples
from core.data.reading_hints import reading_hint
from core.data.schema import ColumnSchema, Kind, cells_as
from core.data.table import Cells, NumberCells, PictureCells, TextCells, VectorCells
from core.encoding.labelled_table import LabelledTable

MOST_VALUES: Final = 20
"""Number of most frequent values of a category that are listed."""
_VALUE_CHARACTERS: Final = 100
_ALL_CHARACTERS: Final = 100_000
"""Limit of the characters of all listed values together; further columns list none."""
_LISTED: Final = 10
_WARNED: Final = {
    "no_values": "have no value in any row",
    "constant": "have the same value in every row",
    "identifier": "identify the rows",
    "counts_rows": "count the rows",
}
"""Reasons for leaving out columns, for the warning."""


def summarise_table(raw: RawData, table: RawTable, train: LabelledTable) -> Json:
    """The summary of a data set of raw cells, as `app.ingest.validate.summarise` makes that of numbers.

    ``schema`` has an entry for each column: name, kind, code and reason of the kind, gaps, nulls (the tokens
    that were read as missing, with their counts), distinct, hint and up to three ``examples``; for numbers
    also min and max, for categories the most frequent ``values`` with their counts, for vectors the width.
    ``features``, which lists columns of numbers, is empty.
    """
    repeated = repetitions(train)
    warnings = [
        *raw.warnings,
        *leak_warnings(train),
        *label_warnings(raw, train),
        *_column_warnings(table, train),
        *row_warnings(raw, repeated, train),
        *count_warnings(train),
    ]
    return {
        "rows": train.n,
        "columns": train.d,
        "sparse": False,
        "stored_values": train.n * train.d,
        **described_classes(train.classes, train.class_counts, train.unlabelled),
        "features": [],
        "schema": list(_columns(table, train)),
        **repeated,
        "more_features_than_rows": train.d > train.n,
        **described_extras(train.extras, train.y),
        **_views(train),
        "label_column": raw.label_column,
        "reading": [msgspec.to_builtins(decision) for decision in raw.decisions],
        "test": None,
        "warnings": [{"code": code, "message": message} for code, message in warnings],
    }


def _views(train: LabelledTable) -> Json:
    """The views by the places of their columns."""
    place = {name: number for number, name in enumerate(train.table.names)}
    views = [
        {"name": view, "start": place[names[0]], "stop": place[names[-1]] + 1} for view, names in train.views
    ]
    return {"views": views} if views else {}


def _columns(table: RawTable, train: LabelledTable) -> Iterator[Json]:
    left = _ALL_CHARACTERS
    for column, cells in zip(train.schema, train.table.cells, strict=True):
        described: Json = {
            "name": column.name,
            "kind": column.kind.value,
            "code": column.code,
            "reason": column.reason,
            "gaps": column.gaps,
            "nulls": _clean({**table.nulls.get(column.name, {}), **_counts(column, cells)}),
            "distinct": column.distinct,
            "hint": column.hint,
        }
        if column.pattern is not None:
            described["pattern"] = column.pattern
        if left > 0:
            examples = [without_unusable(text) for text in cell_examples(cells, column.nulls)]
            more = {"examples": examples, **_values(column, cells)}
            left -= sum(map(len, examples)) + sum(len(one["value"]) for one in more.get("values", ()))
            described |= more
        yield described


def _values(column: ColumnSchema, cells: Cells) -> Json:
    """Range of numbers, most frequent values of categories, width of vectors."""
    if column.kind is Kind.NUMBER:
        cells = cells_as(column.name, cells, column.spec)
    if isinstance(cells, VectorCells):
        return {"width": cells.values.shape[1]}
    if isinstance(cells, PictureCells):
        lengths = np.diff(cells.pictures.offsets)
        return {"pictures": len(lengths), "bytes": int(lengths.sum())}
    if isinstance(cells, NumberCells):
        known = cells.values[~cells.is_gap]
        if column.kind is Kind.CATEGORY:
            values, counts = np.unique(known, return_counts=True)
            return {"values": _frequent([f"{value:g}" for value in values], counts)}
        if len(known) and not cells.is_truth:
            return {"min": float(known.min()), "max": float(known.max())}
        return {}
    return _text_values(column, cells)


def _counts(column: ColumnSchema, cells: Cells) -> dict[str, int]:
    """Number of cells with each of the texts that mean a gap in this column."""
    if not column.nulls or not isinstance(cells, TextCells):
        return {}
    # Cells of rows that were left out, or that are in the test part, are not counted.
    count_of = {text: int(count) for text, count in zip(cells.texts, cells.counts, strict=True) if count}
    return {text: count_of[text] for text in column.nulls if text in count_of}


def _text_values(column: ColumnSchema, cells: TextCells) -> Json:
    if column.kind is not Kind.CATEGORY:
        return {}
    counts = cells.counts
    # Among equally frequent values, those that occur first come first.
    order = np.argsort(-counts, kind="stable")[:MOST_VALUES]
    return {"values": _frequent([cells.texts[int(place)] for place in order], counts[order])}


def _frequent(values: list[str], counts: np.ndarray) -> list[Json]:
    order = np.argsort(-counts, kind="stable")[:MOST_VALUES]
    return [
        {"value": without_unusable(values[int(k)][:_VALUE_CHARACTERS]), "rows": int(counts[k])} for k in order
    ]


def _clean(nulls: Mapping[str, int]) -> dict[str, int]:
    """Tokens with their counts, most frequent first."""
    ordered = sorted(nulls.items(), key=lambda item: (-item[1], item[0]))[:MOST_VALUES]
    return {without_unusable(token[:_VALUE_CHARACTERS]): count for token, count in ordered}


def _column_warnings(table: RawTable, train: LabelledTable) -> Iterator[tuple[str, str]]:
    for column, cells in zip(train.schema, train.table.cells, strict=True):
        counts = _counts(column, cells)
        if counts:
            yield "read_as_gaps", _gaps_warning(column, counts, cells)
    for code, what in _WARNED.items():
        names = [column.name for column in train.schema if column.code == code]
        if names:
            kept = (
                ""
                if code in ("no_values", "constant")
                else f" To use them, say their kind: {reading_hint('columns', 'NAME:KIND')}."
            )
            yield f"{code}_columns", f"These columns {what} and are not used: {_shown(names)}.{kept}"
    cut = sum(table.cut.values())
    if cut:
        yield (
            "texts_cut",
            f"{cut} texts are longer than 64 KiB and were cut, in columns {_shown([*table.cut])}.",
        )


def _gaps_warning(column: ColumnSchema, counts: dict[str, int], cells: Cells) -> str:
    more = ", …" if len(counts) > _LISTED else ""
    shown = ", ".join(f"{text!r:.40}" for text in [*counts][:_LISTED]) + more
    assert isinstance(cells, TextCells)  # noqa: S101 - only texts have counts
    places = [place for place, text in enumerate(cells.texts) if text in counts]
    row = int(np.flatnonzero(np.isin(cells.codes, places))[0])
    return (
        f"{sum(counts.values())} cells of column {column.name!r:.80} are no {column.kind}s and are read as"
        f" missing: {shown}, first in row {row} (counted from 0). If they mean something, say"
        f" {reading_hint('columns', f'{column.name:.60}:category')}."
    )


def _shown(names: list[str]) -> str:
    shown: list[Any] = [f"{name!r:.80}" for name in names[:_LISTED]]
    return ", ".join(shown) + (", …" if len(names) > _LISTED else "")
