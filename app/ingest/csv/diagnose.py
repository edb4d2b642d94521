"""Locates the faults of an invalid CSV file, cell by cell, in the blocks in which Arrow finds a fault.

Arrow reads each block of about 1 MiB, some hundred times as fast as this module checks its rows. Doubtful
blocks, which Arrow can read but whose rows might have faults, are checked until half of the processor
time is used.
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

from app.domain.errors import InputFault
from app.ingest.csv.arrow import numbers_of, open_rows, texts_of
from app.ingest.csv.layout import ENCODING_HINT, NULLS, TRUTH, CsvLayout, is_number, is_utf8, rows_of
from app.ingest.raw import MAX_FAULTS
from core.data.reading_hints import reading_hint
from core.data.validation import MAX_MAGNITUDE

_SECONDS: Final = 2.0
"""Processor time after which the faults found so far are reported."""
_BLOCK_BYTES: Final = 1024**2
_BLOCK_LINES: Final = 64
_LARGEST_BLOCK: Final = 64 * 1024**2
_ARROW_ROW: Final = re.compile(r"Row #([0-9]+): ")


def find_faults(
    text: mmap.mmap | bytes,
    start: int,
    end: int,
    layout: CsvLayout,
    *,
    unlabelled: bool = False,
    texts: bool = False,
) -> list[InputFault]:
    """The first faults of the rows in ``text[start:end]``, at most `MAX_FAULTS`.

    Messages name the column and the line of the file, counted from 1 as editors do. In the fault itself
    ``row`` counts data rows and ``column`` the columns of its field, both from 0.
    unlabelled: whether labels may be missing. texts: whether features may be texts, or missing.
    """
    rows = _Rows(text, start, end, layout, texts)
    reader = rows_of(rows.lines(), layout.separator, layout.has_quotes)
    faults: list[InputFault] = []
    try:
        for cells in reader:
            if rows.row >= 0 and (texts or not _is_clean(cells, layout)):
                found = _row_faults(cells, rows.row, rows.line, layout, texts)
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

    row, line: of the next row: data rows from 0, −1 is the header; number of lines read so far. unlocated:
    Arrow's error about the first block that it cannot read, as a fault without a column.
    """

    text: mmap.mmap | bytes
    start: int
    end: int
    layout: CsvLayout
    texts: bool = False
    row: int = field(init=False)
    line: int = field(init=False)
    unlocated: list[InputFault] = field(default_factory=list, init=False)
    _is_between: bool = field(default=True, init=False)
    _since: float = field(default_factory=time.process_time, init=False)

    def __post_init__(self) -> None:
        self.row = -self.layout.has_header
        self.line = self.layout.skipped

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
        """Whether a block has no fault to report; if so, its rows and lines are counted."""
        try:
            rows, has_clean_labels, has_clean_numbers = self._read(block)
        except pa.ArrowInvalid as error:
            self.unlocated = self.unlocated or [self._fault_of(error)]
            return False
        lines = rows + (self.row < 0)
        # Quoted cells may contain line ends, and the last cell may continue in the next block.
        is_whole = lines == len(block.splitlines()) and block.count(b'"') % 2 == 0
        # Labels are only doubtful, but numbers that cannot be used are faults.
        is_doubtful = not has_clean_labels and self.spent < _SECONDS / 2
        if not is_whole or not has_clean_numbers or is_doubtful:
            return False
        self.row += lines
        self.line += lines
        return True

    def _read(self, block: bytes) -> tuple[int, bool, bool]:
        """The rows of a block, and whether all labels and numbers are certainly valid.

        Raises ArrowInvalid like the reader.
        """
        # Only a single thread counts the rows for its errors.
        batches = open_rows(
            block,
            self.layout,
            skip_header=self.row < 0,
            block_bytes=len(block) + 1,
            use_threads=False,
            types={k: pa.string() for k in range(self.layout.columns.count)} if self.texts else None,
        )
        found = [
            (
                len(batch),
                _has_clean_labels(batch, self.layout),
                self.texts or _has_clean_numbers(batch, self.layout),
            )
            for batch in batches
        ]
        return sum(one[0] for one in found), all(one[1] for one in found), all(one[2] for one in found)

    def _fault_of(self, error: pa.ArrowInvalid) -> InputFault:
        text = str(error)
        found = _ARROW_ROW.search(text)
        place = int(found[1]) if found else 1
        text = _ARROW_ROW.sub("", text, count=1)
        which = f"Line {self.line + place}" if found else f"A line from {self.line + place} on"
        message = f"{which} cannot be read: {text:.300}"
        return InputFault("X", "unreadable_row", message, row=max(self.row + place - 1, 0))


def _has_clean_labels(batch: pa.RecordBatch, layout: CsvLayout) -> bool:
    if layout.columns.label is None:
        return True
    labels = texts_of(batch, layout.columns.label)
    is_clean: bool = pc.all(pc.and_(pc.utf8_is_printable(labels), pc.not_equal(labels, ""))).as_py()
    return is_clean


def _has_clean_numbers(batch: pa.RecordBatch, layout: CsvLayout) -> bool:
    """Raises ArrowInvalid."""
    columns = (numbers_of(batch, k, layout) for table in layout.columns.tables.values() for k in table)
    # NaN fails both comparisons.
    return all(
        not len(column) or (column.min() >= -MAX_MAGNITUDE and column.max() <= MAX_MAGNITUDE)
        for column in columns
    )


def _is_clean(cells: Sequence[str], layout: CsvLayout) -> bool:
    """Whether a row is certainly valid. It is fast, because most rows of an invalid file are valid."""
    columns = layout.columns
    if len(cells) != columns.count:
        return False
    label = "a" if columns.label is None else cells[columns.label]
    if any(cells[k].strip().lower() not in TRUTH for k in layout.booleans):
        return False
    numbers = [cells[k] for table in columns.tables.values() for k in table if k not in layout.booleans]
    text = "".join(numbers)
    if not text.isascii() or "_" in text or not label.isprintable() or not label.strip():
        return False
    if layout.decimal != ".":
        if "." in text:
            return False
        numbers = [number.replace(layout.decimal, ".") for number in numbers]
    try:
        return math.fsum(map(abs, map(float, numbers))) <= MAX_MAGNITUDE
    except ValueError:
        return False


def _row_faults(
    cells: Sequence[str], row: int, line: int, layout: CsvLayout, texts: bool
) -> Iterator[InputFault]:
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
        if position in columns.unread:
            continue
        fault = _cell_fault(cell.strip(), position, layout, texts)
        if fault is None:
            continue
        code, text = fault
        shown = position + 1 if columns.names is None else repr(columns.names[position])[:80]
        field, column = columns.place(position)
        yield InputFault(field, code, f"Line {line}, column {shown}: {text}", row=row, column=column)


def _cell_fault(cell: str, position: int, layout: CsvLayout, texts: bool) -> tuple[str, str] | None:
    """Code and message of a cell's fault, or None."""
    is_label = position == layout.columns.label
    if not is_utf8(cell):
        return "bad_encoding", f"the cell is not UTF-8 text. {ENCODING_HINT}"
    if texts and not is_label:
        return None
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
    if not layout.is_value(cell, position):
        return "not_a_number", f"{cell!r:.60} is {_wanted(cell, position, layout)}."
    value = layout.number(cell, position)
    if not math.isfinite(value):
        return "not_finite", f"{cell!r:.60} is not a finite number."
    if abs(value) > MAX_MAGNITUDE:
        return "too_large", f"{cell!r:.60} is beyond ±{MAX_MAGNITUDE:g}."
    return None


def _wanted(cell: str, position: int, layout: CsvLayout) -> str:
    """Why a cell is invalid, and what to write instead."""
    if position in layout.booleans:
        return "neither true nor false, as the cells above it"
    if cell.lower() in NULLS:
        return "not a number; if it stands for a missing value, fill it in or remove the row"
    if cell.lower() in TRUTH:
        return "not a number, as the cells above it"
    if is_number(cell, "." if layout.decimal == "," else ","):
        sign = "." if layout.decimal == "," else ","
        return f"not a number; if {sign!r} is the sign of decimals, send {reading_hint('decimal', sign)}"
    return "not a number"
