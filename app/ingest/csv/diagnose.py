"""Locates the faults of an invalid CSV file, cell by cell, in the blocks in which Arrow finds one.

Arrow reads each block of about 1 MiB, some hundred times as fast as the rows are looked at here. Doubtful
blocks, which Arrow can read but whose rows might have faults, are looked at as long as half of the processor
time lasts.
"""

from __future__ import annotations

import csv
import io
import math
import mmap
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv as arrow_csv

from app.domain.errors import InputFault
from app.ingest.csv.layout import CsvLayout, is_number, is_utf8
from app.ingest.raw import MAX_FAULTS

_SECONDS: Final = 2.0
"""Processor time after which the faults found so far are reported."""
_BLOCK_BYTES: Final = 1024**2
_BLOCK_LINES: Final = 64
_LARGEST_BLOCK: Final = 64 * 1024**2
_ARROW_ROW: Final = re.compile(r"Row #([0-9]+): ")


def find_faults(
    text: mmap.mmap | bytes, start: int, end: int, layout: CsvLayout, *, unlabelled: bool = False
) -> list[InputFault]:
    """The first faults of the rows in ``text[start:end]``, at most `MAX_FAULTS`.

    Messages name the column and the line of the file, counted from 1 as editors do. In the fault itself
    ``row`` counts data rows and ``column`` the columns of its field, both from 0.
    unlabelled: whether labels may be missing.
    """
    rows = _Rows(text, start, end, layout)
    reader = csv.reader(rows.lines(), delimiter=layout.separator)
    faults: list[InputFault] = []
    try:
        for cells in reader:
            if rows.row >= 0 and not _is_clean(cells, layout):
                found = _row_faults(cells, rows.row, rows.line, layout)
                faults += (fault for fault in found if not (unlabelled and fault.code == "empty_label"))
            rows.next_row()
            if len(faults) >= MAX_FAULTS or rows.spent > _SECONDS:
                break
    except csv.Error as error:
        message = f"Line {rows.line} cannot be read: {error}."
        faults.append(InputFault("X", "unreadable_row", message, row=max(rows.row, 0)))
    return faults[:MAX_FAULTS] or rows.unlocated


@dataclass(slots=True)
class _Rows:
    """The lines of a file, without those of blocks that have no fault.

    row, line: of the next row: data rows from 0, −1 is the header; lines read so far. unlocated: what Arrow
    says of the first block that it cannot read, as a fault without a column.
    """

    text: mmap.mmap | bytes
    start: int
    end: int
    layout: CsvLayout
    row: int = field(init=False)
    line: int = field(default=0, init=False)
    unlocated: list[InputFault] = field(default_factory=list, init=False)
    _is_between: bool = field(default=True, init=False)
    _since: float = field(default_factory=time.process_time, init=False)

    def __post_init__(self) -> None:
        self.row = -(self.layout.columns.names is not None)

    @property
    def spent(self) -> float:
        """Processor seconds since the beginning."""
        return time.process_time() - self._since

    def next_row(self) -> None:
        """The row whose last line was read is done."""
        self.row += 1
        self._is_between = True

    def lines(self) -> Iterator[str]:
        """Lines with their ends. Bytes that are not UTF-8 become surrogates, which `_cell_fault` reports."""
        for block in self._blocks():
            # A block that begins within a quoted cell belongs to the row before it.
            if self._is_between and self._has_no_fault(block):
                continue
            stream = io.TextIOWrapper(
                io.BytesIO(block), encoding="utf-8", errors="surrogateescape", newline=""
            )
            for line in stream:
                self.line += 1
                self._is_between = False
                yield line

    def _blocks(self) -> Iterator[bytes]:
        """Pieces of the text that end with a line."""
        mark = b"\n" if self.text.find(b"\n", self.start, self.end) >= 0 else b"\r"
        first = self.text.find(mark, self.start, self.end) - self.start
        size = max(_BLOCK_BYTES, min(_BLOCK_LINES * first, _LARGEST_BLOCK))
        position = self.start
        while position < self.end:
            last = self.text.find(mark, min(position + size, self.end), self.end)
            stop = self.end if last < 0 else last + 1
            yield self.text[position:stop]
            position = stop

    def _has_no_fault(self, block: bytes) -> bool:
        """Whether no fault of a block is to be reported; if so, its rows and lines are counted."""
        try:
            table = self._read(block)
        except pa.ArrowInvalid as error:
            self.unlocated = self.unlocated or [self._fault_of(error)]
            return False
        lines = len(table) + (self.row < 0)
        # Quoted cells may contain ends of lines, and the last may go on in the next block.
        is_whole = lines == len(block.splitlines()) and block.count(b'"') % 2 == 0
        if not is_whole or (not self._is_clean(table) and self.spent < _SECONDS / 2):
            return False
        self.row += lines
        self.line += lines
        return True

    def _read(self, block: bytes) -> pa.Table:
        """Raises ArrowInvalid."""
        label, count = self.layout.columns.label, self.layout.columns.count
        types = {str(k): pa.string() if k == label else pa.float64() for k in range(count)}
        return arrow_csv.read_csv(
            pa.BufferReader(block),
            # Only a single thread counts the rows for its errors.
            read_options=arrow_csv.ReadOptions(
                use_threads=False,
                column_names=list(types),
                skip_rows=int(self.row < 0),
                block_size=len(block) + 1,
            ),
            parse_options=arrow_csv.ParseOptions(delimiter=self.layout.separator, ignore_empty_lines=False),
            convert_options=arrow_csv.ConvertOptions(
                column_types=types, null_values=[], strings_can_be_null=False
            ),
        )

    def _is_clean(self, table: pa.Table) -> bool:
        """As `_is_clean` for all rows of a table."""
        label = self.layout.columns.label
        labels = pc.utf8_trim_whitespace(table.column(label))
        if not pc.all(pc.and_(pc.utf8_is_printable(labels), pc.not_equal(labels, ""))).as_py():
            return False
        numbers = (column for k, column in enumerate(table.columns) if k != label)
        return all(pc.all(pc.is_finite(column)).as_py() for column in numbers)

    def _fault_of(self, error: pa.ArrowInvalid) -> InputFault:
        text = str(error)
        found = _ARROW_ROW.search(text)
        place = int(found[1]) if found else 1
        text = _ARROW_ROW.sub("", text, count=1)
        message = f"Line {self.line + place} cannot be read: {text:.300}"
        return InputFault("X", "unreadable_row", message, row=max(self.row + place - 1, 0))


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
