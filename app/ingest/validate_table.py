"""Validates a table of raw cells: names, kinds of columns, labels and extras."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Final

import numpy as np

from app.ingest.raw import MAX_FAULTS, RawData, RawTable, in_lines, input_faults, invalid_rows
from core.data.column_kinds import infer_schema
from core.data.dataset import LabelledData, checked_names
from core.data.extras import NO_EXTRAS, Extras
from core.data.labels import encode_with
from core.data.reading_hints import reading_hint
from core.data.schema import ColumnSchema, Kind, cells_as
from core.data.table import Cells, TextCells
from core.encoding.labelled_table import LabelledTable
from core.errors import Fault, InvalidProblem

MAX_VALUE_BYTES: Final = 4096
"""Longest value of a category."""


def validate_table(raw: RawData, table: RawTable, *, unlabelled: bool, min_per_class: int) -> LabelledTable:
    """The rows of a table with their labels. unlabelled: whether labels may be missing.

    Raises InvalidRequest that names column and row of the first faults of names, kinds, labels and extras.
    """
    faults: list[Fault] = []
    schema: tuple[ColumnSchema, ...] = ()
    extras, labelled = NO_EXTRAS, None
    with _gathering(faults):
        checked_names(table.table.names)
    with _gathering(faults):
        schema = _schema(table)
    with _gathering(faults):
        labelled = LabelledData.from_arrays(
            np.zeros((table.table.n, 1), dtype=np.float32),
            raw.train.labels,
            min_per_class=min_per_class,
            unlabelled=unlabelled,
        )
        extras = _extras(raw, table, labelled.classes)
    if faults or labelled is None:
        error = InvalidProblem(*faults[:MAX_FAULTS])
        raise invalid_rows(in_lines(input_faults(error), raw.lines_of)) from error
    return LabelledTable(table.table, schema, labelled.y, labelled.classes, table.known, table.views, extras)


def validate_test_table(raw: RawData, train: LabelledTable) -> LabelledTable:
    """The test rows of a table, whose columns and classes are those of the training rows.

    Raises InvalidProblem for a label that no training row has, and for missing labels.
    """
    if raw.test is None or not isinstance(raw.test.X, RawTable):
        raise RuntimeError("the test part of a table is a table")
    codes, _ = encode_with(raw.test.labels, train.classes)
    return replace(train, table=raw.test.X.table, y=codes, extras=NO_EXTRAS)


def _schema(table: RawTable) -> tuple[ColumnSchema, ...]:
    """The kinds of the columns. Raises InvalidProblem, also for cells of another kind than was said."""
    schema = infer_schema(table.table, table.kinds, table.usage)
    faults: list[Fault] = []
    for column, cells in zip(schema, table.table.cells, strict=True):
        with _gathering(faults):
            if column.name in table.kinds:
                cells_as(column.name, cells, column.spec)
            _check_values(column, cells)
    if faults:
        raise InvalidProblem(*faults[:MAX_FAULTS])
    return schema


def _check_values(column: ColumnSchema, cells: Cells) -> None:
    """Raises InvalidProblem for a category with a value that is too long."""
    if column.kind is not Kind.CATEGORY or not isinstance(cells, TextCells):
        return
    long = np.flatnonzero(cells.texts.lengths > MAX_VALUE_BYTES)
    rows = np.flatnonzero(np.isin(cells.codes, long))
    if len(rows):
        message = (
            f"Row {rows[0]} (counted from 0), column {column.name!r:.80}: the value has"
            f" {cells.texts.lengths[cells.codes[rows[0]]]} bytes; those of a category have at most"
            f" {MAX_VALUE_BYTES}. Say {reading_hint('columns', f'{column.name:.60}:text')}, or :ignore."
        )
        raise InvalidProblem(Fault("X", "value_too_long", message, row=int(rows[0])))


def _extras(raw: RawData, table: RawTable, classes: tuple[str, ...]) -> Extras:
    """Privileged columns and scores, checked together with the views. Raises InvalidProblem."""
    checked = raw.train.extras.checked(table.table.n, len(table.table.names), classes)
    return replace(checked, views=())


@contextmanager
def _gathering(faults: list[Fault]) -> Iterator[None]:
    """Collect the faults of one check, so that one error reports those of all."""
    try:
        yield
    except InvalidProblem as error:
        faults.extend(error.faults)
