"""CSV files: one example per row, labels in one column.

Arrow reads the file; only if it fails does `app.ingest.csv.diagnose` locate the faults cell by cell.
"""

from __future__ import annotations

import json
import mmap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from app.domain.errors import InputFault, InvalidRequest
from app.ingest.cells import Column, may_be_thousands, null_tokens
from app.ingest.columns import (
    Columns,
    ambiguous_label,
    index_candidates,
    index_reason,
    label_doubt,
    likely_labels,
)
from app.ingest.csv.arrow import numbers_of, open_rows, text_columns, texts_of
from app.ingest.csv.blanks import copy_with_single_blanks
from app.ingest.csv.diagnose import find_faults
from app.ingest.csv.encodings import copy_in_utf8, unicode_encoding
from app.ingest.csv.layout import (
    BLANK,
    COUNTS,
    CsvLayout,
    ambiguous_header,
    is_number,
    separator_of,
    sniff,
    variant_of,
)
from app.ingest.csv.lines import LineNumbers, count_lines, mapped
from app.ingest.csv.quotes import quotes_of
from app.ingest.csv.table import CellReader
from app.ingest.options import GIVEN, Decision, ReadingOptions
from app.ingest.raw import (
    DatasetLimits,
    FeatureRows,
    Known,
    LinesOf,
    RawData,
    RawPart,
    in_lines,
    invalid_file,
    invalid_rows,
)
from app.ingest.tables import check_width, data_of_columns, record_rows
from core.data.labels import MAX_NAME_LENGTH
from core.data.reading_hints import reading_hint
from core.data.schema import KindSpec
from core.data.table import TextCells
from core.data.validation import value_faults

OPTIONS = (
    "label_column",
    "header",
    "separator",
    "decimal",
    "index_column",
    "columns",
    "null_values",
    "skip_lines",
    "column_names",
    "encoding",
)
"""Options that a sender may set for a CSV file."""
OPTIONS_OF_ROWS = (
    "label_column",
    "header",
    "separator",
    "decimal",
    "index_column",
    "skip_lines",
    "column_names",
    "encoding",
)
"""Options that a sender may set for a CSV file of rows without labels."""

_SNIFF_BYTES = 1024**2
_LONGEST_FIRST_LINE = 64 * 1024**2
_COMPARED = 1000
"""Number of different texts of a column that are checked for numbers with another decimal sign."""


def read_csv(path: Path, limits: DatasetLimits, options: ReadingOptions) -> RawData:
    """Read a CSV file.

    Numbers are float64, labels are text without surrounding whitespace; features that are not all numbers
    without gaps become a table of raw cells. Raises TooLarge, and InvalidRequest that names line, row and
    column of the first faults, or the columns that may hold the labels.
    """
    with _opened(path, limits, options) as file:
        layout, table = file.read()
        columns = layout.columns
        labels = _labels(table.texts[columns.label], layout)
        _check_label(layout, labels)
        lines_of = LineNumbers(path, layout, len(labels)).of
        warnings = (*layout.warnings, *columns.warnings)
        variant = (*variant_of(file.beginning, options, layout, whole=file.is_whole), *file.variant)
        decisions = (*layout.decisions, *file.decisions)
        if table.cells is not None:
            _check_repeated_header(columns, table.cells, labels, lines_of)
            return data_of_columns(
                columns,
                table.cells,
                labels,
                options,
                limits,
                decisions=decisions,
                variant=variant,
                warnings=layout.warnings,
                lines_of=lines_of,
                decimal=layout.decimal,
            )
        return RawData(
            RawPart(table.numbers["X"], labels, columns.extras(table.numbers)),
            feature_names=columns.feature_names,
            label_column=columns.label_name,
            decisions=(*columns.decisions, *decisions, _NULLS),
            variant=(*columns.variant, *variant),
            warnings=warnings,
            lines_of=lines_of,
        )


def read_csv_rows(path: Path, limits: DatasetLimits, options: ReadingOptions, known: Known) -> FeatureRows:
    """Read rows of features without labels, as `read_csv` reads features; raises as it does."""
    with _opened(path, limits, options, known) as file:
        layout, table = file.read()
        decisions = (*layout.columns.decisions, *layout.decisions, *file.decisions)
    lines = LineNumbers(path, layout, table.rows)
    if table.cells is None:
        return layout.columns.rows(table.numbers["X"], decisions, lines.all())
    return record_rows(layout.columns, table.cells, known, decisions, lines.all(), lines.of)


_NULLS = Decision("null_values", "''", "an empty label is missing; no other cell stands for a missing value")


@dataclass(frozen=True, slots=True)
class _Table:
    """numbers: tables by field. texts: the columns of labels and indices by position. cells: columns of raw
    cells by position, in place of the numbers.
    """

    numbers: dict[str, NDArray[np.float64]]
    texts: dict[int | None, list[str]]
    cells: dict[int, Column] | None = None

    @property
    def rows(self) -> int:
        """How many rows there are."""
        first = None if self.cells is None else next(iter(self.cells.values())).cells
        return len(self.numbers["X"] if first is None else first)


@dataclass(frozen=True, slots=True)
class _File:
    """A mapped file with start and end of its text. known: for rows without labels, see `Known`.

    unicode: UTF-16 or UTF-32, if this is a copy of a file in that encoding.
    """

    path: Path
    text: mmap.mmap
    start: int
    end: int
    limits: DatasetLimits
    options: ReadingOptions
    known: Known | None = None
    unicode: str | None = None

    def read(self) -> tuple[CsvLayout, _Table]:
        """The layout, and the contents of the file. Raises InvalidRequest, TooLarge."""
        layout = self._sniff(None)
        guessed = () if self.options.index_column is not None else layout.columns.index
        table_layout, table = self._table(layout)
        reasons = {k: _left_out(layout.columns.names, k, table.texts[k]) for k in guessed}
        for position, reason in reasons.items():
            if reason is None:
                self._check_named(layout, position)
        if guessed:
            index = {k: reason for k, reason in reasons.items() if reason is not None}
            named = replace(table_layout, columns=self._sniff(index).columns)
            return (named, table) if index else self._table(self._sniff({}))
        return table_layout, table

    @property
    def decisions(self) -> tuple[Decision, ...]:
        """Which part of the file was read, and how."""
        said, found = self.options, list[Decision]()
        if said.skip_lines:
            found.append(Decision("skip_lines", str(said.skip_lines), GIVEN))
        if said.encoding:
            found.append(Decision("encoding", said.encoding, GIVEN))
        if self.unicode:
            reason = f"the file begins with text in {self.unicode.upper()}"
            found.append(Decision("encoding", self.unicode, reason))
        if said.column_names:
            found.append(Decision("column_names", ", ".join(said.column_names)[:400], GIVEN))
        return tuple(found)

    @property
    def variant(self) -> tuple[str, ...]:
        """How this reading differs from that of the whole file by its own names."""
        said = self.options
        found = {
            "skip_lines": said.skip_lines,
            "encoding": said.encoding,
            "column_names": json.dumps(said.column_names) if said.column_names else None,
        }
        return tuple(f"{name}={value}" for name, value in found.items() if value)

    @property
    def beginning(self) -> bytes:
        """The first lines."""
        stop = min(self.end, self.start + _SNIFF_BYTES)
        beginning = self.text[self.start : stop]
        if stop < self.end and b"\n" not in beginning and b"\r" not in beginning:
            beginning = self.text[self.start : min(self.end, self.start + _LONGEST_FIRST_LINE)]
        return beginning

    @property
    def is_whole(self) -> bool:
        """Whether ``beginning`` is the whole text."""
        return len(self.beginning) == self.end - self.start

    def _sniff(self, index: dict[int, str] | None) -> CsvLayout:
        beginning = self.beginning
        whole = len(beginning) == self.end - self.start
        return sniff(beginning, self.options, whole=whole, index=index, rows=self.known)

    def _check_named(self, layout: CsvLayout, position: int) -> None:
        """Raise InvalidRequest for a column without a name that is no index."""
        names = layout.columns.names
        if names is not None and not names[position].strip() and position in index_candidates(names):
            text = (
                f"Column {position} (counted from 0) has no name, and its cells do not number the rows. Name"
                f" it in the file, or leave it out: {reading_hint('index_column', str(position))}."
            )
            raise invalid_file(
                text,
                code="ambiguous_index_column",
                faults=[InputFault("index_column", "ambiguous_index_column", text)],
            )

    def _table(self, layout: CsvLayout) -> tuple[CsvLayout, _Table]:
        """The table, and the layout with which it was read. Raises InvalidRequest, TooLarge."""
        columns = layout.columns
        self.limits.check_shape(0, columns.count)
        rows = count_lines(self.text, self.start, self.end) - layout.has_header
        if rows < 1:
            raise invalid_file("The file has no rows of data.", code="no_rows")
        self.limits.check(rows, columns.count)
        if self._has_records or (self.known is None and self._needs_cells(layout)):
            return self._table_of_cells(layout, rows)
        layouts = [layout]
        if layout.separator != "," and not layout.decimal_is_given and layout.decimal == ".":
            # The first decimal comma may be below the lines that were checked.
            layouts.append(layout.with_decimal(",", "the file has numbers with decimal commas"))
        for tried in layouts:
            try:
                table = self._read_fast(tried, rows)
            except pa.ArrowInvalid as error:
                fault = error
            else:
                if self.known is None and not self._is_sure(tried, table):
                    return self._table_of_cells(tried, rows)
                self._check_values(tried, table)
                return tried, table
        if self.known is None:
            return self._table_of_cells(layouts[-1], rows)
        raise self._unread(layout, fault) from fault

    @property
    def _has_records(self) -> bool:
        """Whether the rows are records to ask about."""
        return self.known is not None and self.known.kinds is not None

    @property
    def _kinds(self) -> Mapping[str, KindSpec]:
        """The kinds that the sender gave for columns, by name."""
        of_model = None if self.known is None else self.known.kinds
        return self.options.kinds if of_model is None else of_model

    def _needs_cells(self, layout: CsvLayout) -> bool:
        """Whether the columns are surely not numbers without gaps, or the sender gave other kinds."""
        if self.options.columns or self.options.null_values or not layout.has_quotes:
            return True
        positions = [k for table in layout.columns.tables.values() for k in table]
        return not all(layout.is_value(row[k], k) for row in layout.rows for k in positions)

    def _table_of_cells(self, layout: CsvLayout, rows: int) -> tuple[CsvLayout, _Table]:
        """The table as columns of raw cells. rows: largest possible number of rows.

        Raises InvalidRequest, and TooLarge before too many columns are read.
        """
        check_width(layout.columns)
        quotes = quotes_of(self.text, self.start, self.end, layout.separator)
        if quotes.are_letters:
            layout = replace(layout, has_quotes=False)
        reader = CellReader(
            pa.memory_map(str(self.path)).read_buffer().slice(self.start, self.end - self.start),
            layout,
            {k: kind for k in layout.columns.features if (kind := self._said(layout, k)) is not None},
            null_tokens(self.options.null_values),
            _block_bytes(self.text, self.start, self.end),
            has_line_breaks=layout.has_quotes and quotes.enclose_line_breaks,
            are_known=self.known is not None,
        )
        try:
            cells, texts = reader.read()
        except pa.ArrowInvalid as error:
            raise self._unread(layout, error, texts=True) from error
        table = _Table({}, texts, cells)
        if table.rows > rows:
            text = "The CSV file cannot be read: the file mixes different line endings"
            raise invalid_file(text, code="unreadable_file")
        return layout, table

    def _is_sure(self, layout: CsvLayout, table: _Table) -> bool:
        """Whether all numbers have a usable size, and none of them may have separators of thousands."""
        if not all(map(_is_usable, table.numbers.values())):
            return False
        return not any(
            may_be_thousands(values, (row[k] for row in layout.rows))
            for field, listed in layout.columns.tables.items()
            for k, values in zip(listed, table.numbers[field].T, strict=True)
        )

    def _said(self, layout: CsvLayout, position: int) -> KindSpec | None:
        return self._kinds.get(layout.columns.name(position))

    def _unread(self, layout: CsvLayout, error: pa.ArrowInvalid, *, texts: bool = False) -> InvalidRequest:
        """The error for a table that Arrow does not read. texts: whether features may be texts."""
        _check_label_of_sample(layout)
        faults = self._faults(layout, texts=texts)
        if faults:
            return invalid_rows(faults)
        if "straddling" in str(error):
            size = _block_bytes(self.text, self.start, self.end)
            text = f"A row of the file is longer than {size} bytes; is this a CSV file?"
            return invalid_file(text, code="line_too_long")
        return invalid_file(f"The CSV file cannot be read: {error}", code="unreadable_file")

    def _faults(self, layout: CsvLayout, *, texts: bool = False) -> list[InputFault]:
        unlabelled = self.options.unlabelled in ("accept", "drop")
        return find_faults(self.text, self.start, self.end, layout, unlabelled=unlabelled, texts=texts)

    def _check_values(self, layout: CsvLayout, table: _Table) -> None:
        """Raise InvalidRequest that names the lines of numbers that cannot be used."""
        if any(value_faults(values, "X") for values in table.numbers.values()):
            faults = self._faults(layout)
            if faults:
                raise invalid_rows(faults)

    def _read_fast(self, layout: CsvLayout, rows: int) -> _Table:
        """Raises ArrowInvalid, which does not locate the fault."""
        reader = open_rows(
            pa.memory_map(str(self.path)).read_buffer().slice(self.start, self.end - self.start),
            layout,
            skip_header=layout.has_header,
            block_bytes=_block_bytes(self.text, self.start, self.end),
        )
        positions = layout.columns.tables
        tables = {field: np.empty((rows, len(listed))) for field, listed in positions.items()}
        read_as_text = text_columns(layout)
        found: dict[int | None, list[str]] = {k: [] for k in read_as_text}
        stop = 0
        for batch in reader:
            start, stop = stop, stop + len(batch)
            if stop > rows:
                raise pa.ArrowInvalid("the file mixes different line endings")
            for field, listed in positions.items():
                values = [numbers_of(batch, k, layout) for k in listed]
                np.stack(values, axis=1, out=tables[field][start:stop])
            for k in read_as_text:
                found[k] += texts_of(batch, k).to_pylist()
        return _Table({field: table[:stop] for field, table in tables.items()}, found)


@contextmanager
def _opened(
    path: Path, limits: DatasetLimits, options: ReadingOptions, known: Known | None = None
) -> Iterator[_File]:
    """The file, or a copy in UTF-8, or in which single blanks separate the cells. Raises InvalidRequest."""
    skipped = options.skip_lines or 0
    with ExitStack() as stack:
        with path.open("rb") as stream:
            unicode = unicode_encoding(stream.read(_SNIFF_BYTES)) if options.encoding is None else None
        encoding = unicode or options.encoding
        if encoding is not None:
            path = stack.enter_context(copy_in_utf8(path, encoding, limits.temp_folder))
        file = _File(path, *stack.enter_context(mapped(path, skipped)), limits, options, known, unicode)
        if separator_of(file.beginning, options, whole=file.is_whole) == BLANK:
            copy = stack.enter_context(copy_with_single_blanks(path, limits.temp_folder))
            file = _File(copy, *stack.enter_context(mapped(copy, skipped)), limits, options, known, unicode)
        yield file


def _left_out(names: Sequence[str] | None, position: int, texts: Sequence[str]) -> str | None:
    """Why a column is left out, or None: it numbers the rows, or it is the empty one after the last."""
    if texts and not any(texts):
        return "it has no name and no values"
    return index_reason(names[position], texts) if names and position in index_candidates(names) else None


def _is_usable(values: NDArray[np.float64]) -> bool:
    """Whether all numbers of a table are finite and of usable size."""
    return not value_faults(values, "X")


def _check_repeated_header(
    columns: Columns, cells: Mapping[int, Column], labels: Sequence[str], lines_of: LinesOf
) -> None:
    """Raise InvalidRequest for a row that repeats the header, for example in concatenated files."""
    names, label = columns.names, columns.label
    if names is None or label is None or names[label] not in labels:
        return
    row = labels.index(names[label])
    texts = [(k, column.cells) for k, column in cells.items()]
    if all(isinstance(one, TextCells) and _text_of(one, row) == names[k] for k, one in texts):
        text = f"Row {row} (counted from 0) repeats the header. Remove it, and the others like it."
        fault = InputFault("X", "repeated_header", text, row=row)
        raise invalid_rows(in_lines([fault], lines_of))


def _text_of(cells: TextCells, row: int) -> str | None:
    return None if cells.codes[row] < 0 else cells.texts[int(cells.codes[row])]


def _labels(labels: list[str], layout: CsvLayout) -> list[str]:
    """Labels with decimal points, if all of them are numbers and commas are decimal signs here."""
    if layout.separator == "," or (layout.decimal_is_given and layout.decimal == "."):
        return labels
    points = {label: label.replace(",", ".") for label in set(labels)}
    if not all(is_number(point) for point in points.values() if point):
        return labels
    return [points[label] for label in labels]


def _check_label(layout: CsvLayout, labels: list[str]) -> None:
    """Raise InvalidRequest if the last column, taken because no other is better, hardly holds classes."""
    columns = layout.columns
    if columns.label_is_guessed and columns.label is not None:
        doubt = label_doubt(labels, may_lack=columns.labels_may_lack)
        if doubt is not None:
            raise _ambiguous(layout, doubt)
    _check_first_label(layout, labels)


def _check_label_of_sample(layout: CsvLayout) -> None:
    """The same for the first rows of a file that cannot be read because its classes are elsewhere."""
    columns, sample = layout.columns, layout.sample
    if not columns.label_is_guessed or columns.label is None:
        return
    cells = [row[columns.label] for row in sample if len(row) == columns.count]
    texts = [
        k
        for k in columns.features
        if cells
        and not any(layout.is_value(row[k], k) or not row[k] for row in sample if len(row) == columns.count)
    ]
    doubt = label_doubt(cells, may_lack=columns.labels_may_lack)
    if texts and doubt is not None:
        raise _ambiguous(layout, doubt)


def _ambiguous(layout: CsvLayout, doubt: str) -> InvalidRequest:
    columns = layout.columns
    last = columns.label or 0
    skipped = {last, *columns.unread, *columns.privileged, *columns.scores}
    # Columns of texts come first, because they are more likely to be classes than numbers beside them.
    likely = likely_labels(layout.sample, skipped)
    rows = [row for row in layout.sample if len(row) == columns.count]
    texts = [k for k in likely if not any(layout.is_value(row[k], k) for row in rows)]
    candidates = [*texts, *(k for k in likely if k not in texts)]
    reason = f"{columns.doubtful_label}: {doubt}."
    return ambiguous_label(columns.names, candidates, reason, columns.count, rows)


def _check_first_label(layout: CsvLayout, labels: list[str]) -> None:
    """Raise InvalidRequest if line 1, read as a row, seems to be the header."""
    header = next(one for one in layout.decisions if one.name == "header")
    names, label = layout.columns.names, layout.columns.label
    if header.reason == GIVEN or header.reason.startswith(COUNTS):
        return
    if names is not None and label is not None and names[label] in set(labels):
        if any(layout.is_value(names[k], k) for k in layout.columns.features):
            raise ambiguous_header(f"other lines have its last cell, {names[label]!r:.60}, as their class")
        return
    if header.value != "no" or len(labels) < 3:
        return
    numbered = [layout.is_value(label, -1) for label in labels[:100]]
    first = labels[0]
    if not first or len(first) > MAX_NAME_LENGTH or labels.count(first) > 1:
        return
    if not numbered[0] and all(numbered[1:]):
        raise ambiguous_header(f"it ends with {first!r:.60} where all other lines have numbers")
    if len(set(labels)) <= max(3, len(labels) // 2):
        raise ambiguous_header(f"no other line has its class, {first!r:.60}")


def _block_bytes(text: mmap.mmap, start: int, end: int) -> int:
    """Arrow's block size in bytes: large enough for many rows even if they are wide."""
    newline = text.find(b"\n", start, min(end, start + _LONGEST_FIRST_LINE))
    first_line = (end if newline < 0 else newline) - start
    return min(max(4 * 1024**2, 64 * first_line), 256 * 1024**2)
