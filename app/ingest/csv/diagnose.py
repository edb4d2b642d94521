"""Locates the faults of an invalid CSV file, cell by cell; it is slow, so it runs only on invalid files."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterator, Sequence

from app.domain.errors import InputFault
from app.ingest.csv.layout import CsvLayout, is_number, is_utf8
from app.ingest.raw import MAX_FAULTS


def find_faults(text: bytes, layout: CsvLayout, *, unlabelled: bool = False) -> list[InputFault]:
    """The first faults of a file, at most `MAX_FAULTS`.

    Messages name the column and the line of the file, counted from 1 as editors do. In the fault itself
    ``row`` counts data rows and ``column`` the columns of its field, both from 0.
    unlabelled: whether labels may be missing.
    """
    # Bytes that are not UTF-8 become surrogates, which `_cell_fault` reports with their position.
    lines = io.TextIOWrapper(io.BytesIO(text), encoding="utf-8", errors="surrogateescape", newline="")
    reader = csv.reader(lines, delimiter=layout.separator)
    faults: list[InputFault] = []
    row = -(layout.columns.names is not None)
    try:
        for cells in reader:
            if row >= 0 and not _is_clean(cells, layout):
                found = _row_faults(cells, row, reader.line_num, layout)
                faults += (fault for fault in found if not (unlabelled and fault.code == "empty_label"))
            row += 1
            if len(faults) >= MAX_FAULTS:
                break
    except csv.Error as error:
        message = f"Line {reader.line_num} cannot be read: {error}."
        faults.append(InputFault("X", "unreadable_row", message, row=max(row, 0)))
    return faults[:MAX_FAULTS]


def _is_clean(cells: Sequence[str], layout: CsvLayout) -> bool:
    """Whether a row certainly has no fault. Fast, because most rows of an invalid file are valid."""
    position = layout.columns.label
    if len(cells) != layout.columns.count:
        return False
    label = cells[position]
    numbers = [*cells[:position], *cells[position + 1 :]]
    text = "".join(numbers)
    if not text.isascii() or "_" in text or not label.isprintable() or not label.strip():
        return False
    try:
        return math.isfinite(sum(map(float, numbers)))
    except ValueError:
        return False


def _row_faults(cells: Sequence[str], row: int, line: int, layout: CsvLayout) -> Iterator[InputFault]:
    if not any(cell.strip() for cell in cells):
        yield InputFault("X", "empty_row", f"Line {line} is empty.", row=row)
        return
    columns = layout.columns
    if len(cells) != columns.count:
        count = f"{len(cells)} cell{'' if len(cells) == 1 else 's'}"
        yield InputFault(
            "X", "ragged_row", f"Line {line} has {count}; {columns.count} are expected.", row=row
        )
        return
    for position, cell in enumerate(cells):
        fault = _cell_fault(cell.strip(), is_label=position == columns.label)
        if fault is None:
            continue
        code, text = fault
        shown = position + 1 if columns.names is None else repr(columns.names[position])[:80]
        field, column = columns.place(position)
        yield InputFault(field, code, f"Line {line}, column {shown}: {text}", row=row, column=column)


def _cell_fault(cell: str, *, is_label: bool) -> tuple[str, str] | None:
    """Code and message of a cell's fault, or None."""
    if not is_utf8(cell):
        return "bad_encoding", "the cell is not UTF-8 text."
    if "\n" in cell or "\r" in cell:
        return "line_break", "the cell contains a line break."
    if not cell:
        return (
            ("empty_label", "the label is missing.")
            if is_label
            else ("missing_value", "the value is missing.")
        )
    if is_label:
        return None
    if not is_number(cell):
        return "not_a_number", f"{cell!r:.60} is not a number."
    if not math.isfinite(float(cell)):
        return "not_finite", f"{cell!r:.60} is not a finite number."
    return None
