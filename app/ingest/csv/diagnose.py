"""Locates the faults of an invalid CSV file, cell by cell; it is slow, so it runs only on invalid files."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterator, Sequence

from app.domain.errors import InputFault
from app.ingest.csv.layout import CsvLayout, is_number, is_utf8
from app.ingest.raw import MAX_FAULTS


def find_faults(text: bytes, layout: CsvLayout) -> list[InputFault]:
    """The first faults of a file, at most `MAX_FAULTS`.

    Messages name the column and the line of the file, counted from 1 as editors do. In the fault itself
    ``row`` counts data rows and ``column`` feature columns, both from 0.
    """
    # Bytes that are not UTF-8 become surrogates, which `_cell_fault` reports with their position.
    lines = io.TextIOWrapper(io.BytesIO(text), encoding="utf-8", errors="surrogateescape", newline="")
    reader = csv.reader(lines, delimiter=layout.separator)
    faults: list[InputFault] = []
    row = -(layout.names is not None)
    try:
        for cells in reader:
            if row >= 0 and not _is_clean(cells, layout):
                faults += _row_faults(cells, row, reader.line_num, layout)
            row += 1
            if len(faults) >= MAX_FAULTS:
                break
    except csv.Error as error:
        message = f"Line {reader.line_num} cannot be read: {error}."
        faults.append(InputFault("X", "unreadable_row", message, row=max(row, 0)))
    return faults[:MAX_FAULTS]


def _is_clean(cells: Sequence[str], layout: CsvLayout) -> bool:
    """Whether a row certainly has no fault. Fast, because most rows of an invalid file are valid."""
    if len(cells) != layout.columns:
        return False
    label = cells[layout.label]
    numbers = [*cells[: layout.label], *cells[layout.label + 1 :]]
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
    if len(cells) != layout.columns:
        count = f"{len(cells)} cell{'' if len(cells) == 1 else 's'}"
        yield InputFault(
            "X", "ragged_row", f"Line {line} has {count}; {layout.columns} are expected.", row=row
        )
        return
    for position, cell in enumerate(cells):
        fault = _cell_fault(cell.strip(), is_label=position == layout.label)
        if fault is None:
            continue
        code, text = fault
        name = f"column {position + 1}" if layout.names is None else f"column {layout.names[position]!r:.80}"
        message = f"Line {line}, {name}: {text}"
        if position == layout.label:
            yield InputFault("y", code, message, row=row)
        else:
            yield InputFault("X", code, message, row=row, column=position - (position > layout.label))


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
