"""Makes data from the columns that a reader found: a table of numbers if all features are numbers without
gaps, and a table of raw cells otherwise.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.domain.errors import InputFault, TooLarge
from app.domain.near_names import known_names
from app.ingest.cells import Column
from app.ingest.columns import Columns
from app.ingest.options import GIVEN, Decision, ReadingOptions
from app.ingest.raw import (
    MAX_FAULTS,
    MOST_LEFT_OUT,
    DatasetLimits,
    FeatureRows,
    Known,
    LinesOf,
    RawData,
    RawPart,
    RawTable,
    in_lines,
    input_faults,
    invalid_file,
    invalid_rows,
)
from core.data.cell_values import NULLS, number_of
from core.data.column_kinds import identifies_rows, infer_column
from core.data.extras import NO_RAW_EXTRAS, RawExtras
from core.data.schema import Kind, KindSpec, cells_as
from core.data.table import Cells, NumberCells, Table, TextCells
from core.errors import InvalidProblem
from core.packed.encoded_columns import MAX_COLUMNS


def data_of_columns(
    columns: Columns,
    cells: Mapping[int, Column],
    labels: Sequence[Any],
    options: ReadingOptions,
    limits: DatasetLimits,
    *,
    decisions: tuple[Decision, ...] = (),
    variant: tuple[str, ...] = (),
    warnings: tuple[tuple[str, str], ...] = (),
    lines_of: LinesOf | None = None,
    kinds: Mapping[str, KindSpec] | None = None,
    decimal: str | None = None,
) -> RawData:
    """The content of a file whose columns were read one by one, by their positions.

    decisions, variant, warnings, lines_of: see `RawData`, without those of ``columns``. kinds: given by the
    file. decimal: its decimal sign, if it has one. Raises InvalidRequest, TooLarge.
    """
    said = _said_kinds(columns, options, kinds or {})
    limits.check_bytes(sum(column.nbytes for column in cells.values()))
    tokens = options.null_values or ()
    used = sorted(token for token in tokens if any(token in cells[k].nulls for k in cells))
    if tokens:
        labels = [None if isinstance(one, str) and one.strip() in tokens else one for one in labels]
    extras = _extras(columns, cells, lines_of)
    if _are_numbers(columns, cells, said):
        X: Any = np.stack([_numbers(cells[k].cells) for k in columns.features], axis=1)
        changed: list[str] = []
    else:
        X = _table(columns, cells, said, decimal)
        changed = [f"columns={json.dumps(one)}" for one in _changes(X, options)]
    return RawData(
        RawPart(X, labels, extras),
        feature_names=columns.feature_names,
        label_column=columns.label_name,
        decisions=(*columns.decisions, *decisions, *_said_decisions(options)),
        variant=(*columns.variant, *variant, *(f"null_values={token}" for token in used), *changed),
        warnings=(*warnings, *columns.warnings),
        lines_of=lines_of,
    )


def record_rows(
    columns: Columns,
    cells: Mapping[int, Column],
    known: Known,
    decisions: Sequence[Decision],
    lines: Sequence[int] | None,
    lines_of: LinesOf | None = None,
) -> FeatureRows:
    """Records without labels, with cells of the kinds of the model's columns.

    Rows with cells of another kind are left out, see `FeatureRows.without`. Raises InvalidRequest if a
    column is of another kind, or if no row is left.
    """
    names = tuple(columns.name(k) for k in columns.features)
    found: list[Cells] = []
    faults: list[InputFault] = []
    for name, k in zip(names, columns.features, strict=True):
        of_column, wrong = _of_kind(name, cells[k].cells, (known.kinds or {})[name], lines_of)
        found.append(of_column)
        faults += wrong
    rows = columns.rows(Table(names, tuple(found)), tuple(decisions), lines)
    return rows.without(in_lines(faults, lines_of)) if faults else rows


def _of_kind(
    name: str, cells: Cells, spec: KindSpec, lines_of: LinesOf | None
) -> tuple[Cells, list[InputFault]]:
    """The cells of a column, with those of another kind as gaps, and the faults of these by their rows.

    Raises InvalidRequest for faults of the whole column, and for very many.
    """
    faults: list[InputFault] = []
    while True:
        try:
            return cells_as(name, cells, spec), faults
        except InvalidProblem as error:
            wrong = input_faults(error)
            faults += wrong
            rows = [fault.row for fault in wrong if fault.row is not None]
            if len(rows) < len(wrong) or len(faults) > MOST_LEFT_OUT or not isinstance(cells, TextCells):
                raise invalid_rows(in_lines(faults[:MAX_FAULTS], lines_of)) from error
            codes = cells.codes.copy()
            codes[rows] = -1
            cells = replace(cells, codes=codes)


def check_width(columns: Columns) -> None:
    """Raise TooLarge for more columns than a table of raw cells may have."""
    count = len(columns.features)
    if count > MAX_COLUMNS:
        text = f"The file has {count} columns, not all of them numbers; the limit is {MAX_COLUMNS}."
        raise TooLarge(text, code="too_many_columns")


def _said_kinds(
    columns: Columns, options: ReadingOptions, kinds: Mapping[str, KindSpec]
) -> dict[str, KindSpec]:
    """The kinds that file and sender give for the features. Raises InvalidRequest for other columns."""
    features = {columns.name(k) for k in columns.features}
    left_out = {columns.name(k) for k in columns.unread}
    for name, kind in options.kinds.items():
        if name in features or (name in left_out and kind.kind is Kind.IGNORE):
            continue
        what = "is the label" if name == columns.label_name else "is no column of features"
        known = known_names(name, [columns.name(k) for k in columns.features], "columns of features")
        text = f"columns: {name!r:.80} {what} of the table; {known}"
        fault = InputFault("columns", "unknown_column", text)
        raise invalid_file(text, code="unknown_column", faults=[fault])
    return {name: kind for name, kind in {**kinds, **options.kinds}.items() if name in features}


def _are_numbers(columns: Columns, cells: Mapping[int, Column], said: Mapping[str, KindSpec]) -> bool:
    """Whether all features are numbers without gaps, or true and false, and no other kind was given.

    A column that identifies the rows is not a number, because a table can leave it out.
    """
    if not all(kind.kind is Kind.NUMBER for kind in said.values()):
        return False
    features = {columns.name(k): cells[k].cells for k in columns.features}
    return all(
        isinstance(one, NumberCells)
        and not one.is_gap.any()
        and (columns.names is None or name in said or not identifies_rows(name, one))
        for name, one in features.items()
    )


def _table(
    columns: Columns, cells: Mapping[int, Column], said: Mapping[str, KindSpec], decimal: str | None
) -> RawTable:
    check_width(columns)
    names = [columns.name(k) for k in columns.features]
    read = [cells[k] for k in columns.features]
    others = (columns.label, *columns.index, *columns.privileged, *columns.scores)
    return RawTable(
        Table(tuple(names), tuple(column.cells for column in read)),
        nulls={name: column.nulls for name, column in zip(names, read, strict=True) if column.nulls},
        cut={name: column.cut for name, column in zip(names, read, strict=True) if column.cut},
        kinds=said,
        known=tuple(columns.name(k) for k in others if k is not None),
        views=tuple((view, tuple(names[start:stop])) for view, start, stop in columns.views),
        usage=(decimal,) if decimal == "," else (),
    )


def _changes(table: RawTable, options: ReadingOptions) -> Iterator[tuple[str, str]]:
    """The kinds that were given and would not have been found."""
    for name, kind in sorted(options.kinds.items()):
        if name in table.table.names:
            try:
                guessed = infer_column(name, table.table.column(name), usage=table.usage).spec
            except InvalidProblem:
                guessed = None
            if str(guessed) != str(kind):
                yield name, str(kind)


def _said_decisions(options: ReadingOptions) -> Iterator[Decision]:
    if options.columns:
        shown = ", ".join(f"{name}:{kind}" for name, kind in options.columns.items())
        yield Decision("columns", shown[:400], GIVEN)
    if options.null_values:
        yield Decision("null_values", ", ".join(map(repr, options.null_values))[:400], GIVEN)
    else:
        tokens = ", ".join(map(repr, sorted(NULLS)))
        yield Decision(
            "null_values", tokens, "cells of features that say so are missing; of labels, empty ones"
        )


def _extras(columns: Columns, cells: Mapping[int, Column], lines_of: LinesOf | None) -> RawExtras:
    """Privileged columns and scores, which are numbers without gaps. Raises InvalidRequest."""
    tables: dict[str, NDArray[np.float64]] = {}
    faults: list[InputFault] = []
    for field, positions in columns.tables.items():
        if field == "X":
            continue
        for place, k in enumerate(positions):
            faults += _number_faults(columns.name(k), cells[k].cells, field, place)
        if not faults:
            tables[field] = np.stack([_numbers(cells[k].cells) for k in positions], axis=1)
    if faults:
        raise invalid_rows(in_lines(faults[:MAX_FAULTS], lines_of))
    extras = columns.extras(tables)
    if extras.privileged is None and extras.teacher_scores is None and not extras.views:
        return NO_RAW_EXTRAS
    return extras


def _number_faults(name: str, cells: Cells, field: str, place: int) -> list[InputFault]:
    """The faults of a column that must hold numbers only."""
    if isinstance(cells, NumberCells):
        code, bad = "missing_value", cells.is_gap
        text = "Row {row} (counted from 0) has no value in column {name!r:.80}."
    elif isinstance(cells, TextCells):
        wrong = [place for place, text in enumerate(cells.texts) if number_of(text) is None]
        if len(wrong) == len(cells.texts):
            text = f"Column {name!r:.80} holds texts, not numbers."
            return [InputFault(field, "not_numeric", text, column=place)]
        code, bad = "not_a_number", np.isin(cells.codes, wrong)
        text = "Row {row} (counted from 0), column {name!r:.80}: the cell is not a number of usable size."
    else:
        return [InputFault(field, "not_numeric", f"Column {name!r:.80} holds lists.", column=place)]
    return [
        InputFault(field, code, text.format(row=int(row), name=name), row=int(row), column=place)
        for row in np.flatnonzero(bad)[:MAX_FAULTS]
    ]


def _numbers(cells: Cells) -> NDArray[np.float64]:
    values: NDArray[np.float64] = cells.values if isinstance(cells, NumberCells) else np.empty(0)
    return values
