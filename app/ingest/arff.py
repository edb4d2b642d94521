"""ARFF files of Weka: attributes of stated types, and rows between commas. ``?`` is a missing value."""

from __future__ import annotations

import csv
import re
from array import array
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Final

import pyarrow as pa

from app.domain.errors import InputFault, InvalidRequest
from app.ingest.cells import Column, null_tokens, text_column
from app.ingest.columns import Columns, distinct_names, renamed_warning
from app.ingest.options import ReadingOptions
from app.ingest.raw import (
    MAX_FAULTS,
    DatasetLimits,
    FeatureRows,
    Known,
    RawData,
    in_lines,
    invalid_file,
    invalid_rows,
)
from app.ingest.tables import data_of_columns, record_rows
from core.data.cell_values import TRUTH, number_of
from core.data.schema import Kind, KindSpec
from core.errors import InvalidProblem

OPTIONS: Final = ("label_column", "index_column", "columns", "null_values")
"""Options that a sender may set for an ARFF file."""
MAX_LINE_BYTES: Final = 16 * 1024**2
_BLOCK_ROWS: Final = 8192
_ATTRIBUTE: Final = re.compile(
    r"@attribute\s+(?:'((?:[^'\\]|\\.)*)'|\"((?:[^\"\\]|\\.)*)\"|(\S+))\s+(.+)", re.IGNORECASE | re.DOTALL
)
_NUMERIC: Final = frozenset({"numeric", "real", "integer"})
_PATTERN: Final = {
    "yyyy": "%Y",
    "yy": "%y",
    "MM": "%m",
    "dd": "%d",
    "HH": "%H",
    "mm": "%M",
    "ss": "%S",
    "SSS": "%f",
    "Z": "%z",
}
"""Letters of Java's date patterns, as ``strptime`` has them."""


@dataclass(frozen=True, slots=True)
class _Attribute:
    """kind: number, text, date or nominal. values: of a nominal one. pattern: of dates, None for ISO 8601."""

    name: str
    kind: str
    values: frozenset[str] = frozenset()
    pattern: str | None = None

    @property
    def said(self) -> KindSpec | None:
        """The kind of the column that the file declares."""
        if self.kind == "nominal" and not {value.lower() for value in self.values} <= set(TRUTH):
            return KindSpec(Kind.CATEGORY)
        return KindSpec(Kind.DATE, self.pattern) if self.kind == "date" else None


def read_arff(path: Path, limits: DatasetLimits, options: ReadingOptions) -> RawData:
    """Read an ARFF file as a table of numbers, or of raw cells if some columns are not numbers.

    The classes are the attribute with a usual name of a label, or the last one. Raises TooLarge, and
    InvalidRequest that names lines.
    """
    rows, names = _read(path, limits, options)
    attributes = rows.attributes
    columns = Columns.of(names, len(names), options)
    rows.check()
    label = columns.label or 0
    labels = ["" if text == "?" else text for chunk in rows.chunks[label] for text in chunk.to_pylist()]
    kinds = {names[k]: said for k in columns.features if (said := attributes[k].said) is not None}
    cells = {
        k: rows.column(k, options.kinds.get(names[k]) or attributes[k].said)
        for positions in columns.tables.values()
        for k in positions
    }
    return data_of_columns(
        columns,
        cells,
        labels,
        options,
        limits,
        warnings=tuple(renamed_warning([one.name for one in attributes], names)),
        lines_of=rows.lines_of,
        kinds=kinds,
    )


def read_arff_records(
    path: Path, limits: DatasetLimits, options: ReadingOptions, known: Known
) -> FeatureRows:
    """Read records to ask about. Raises as `read_arff` does."""
    rows, names = _read(path, limits, options)
    columns = Columns.of_rows(names, len(names), options, known=known)
    rows.check()
    cells = {k: rows.column(k, (known.kinds or {}).get(names[k])) for k in columns.features}
    return record_rows(columns, cells, known, (), rows.lines, rows.lines_of)


def _read(path: Path, limits: DatasetLimits, options: ReadingOptions) -> tuple[_Rows, tuple[str, ...]]:
    """The rows of a file, whose faults are to be checked, and the names of its attributes, all different."""
    with path.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
        lines = _Lines(file)
        attributes = _header(lines)
        names = distinct_names([one.name for one in attributes])
        limits.check_shape(0, len(names))
        rows = _Rows(attributes, null_tokens(options.null_values), limits)
        for text in lines.rest():
            rows.add(text, lines.number)
            if len(rows.faults) >= MAX_FAULTS:
                break
        rows.flush()
    if not rows.lines:
        raise invalid_file("The file has no rows of data.", code="no_rows")
    return rows, names


class _Lines:
    """The lines of a file that are neither empty nor comments. number: of the last one, counted from 1."""

    def __init__(self, file: IO[str]) -> None:
        self._file, self.number = file, 0

    def rest(self) -> Iterator[str]:
        """The lines that were not read yet. Raises InvalidRequest for one that is too long."""
        while line := self._file.readline(MAX_LINE_BYTES):
            self.number += 1
            if len(line) == MAX_LINE_BYTES:
                raise invalid_file(f"Line {self.number} is too long.", code="line_too_long")
            text = line.strip()
            if text and not text.startswith("%"):
                yield text


def _header(lines: _Lines) -> list[_Attribute]:
    """The attributes, up to the line ``@data``. Raises InvalidRequest."""
    attributes: list[_Attribute] = []
    for text in lines.rest():
        word = text.split(maxsplit=1)[0].lower()
        if word == "@data":
            if attributes:
                return attributes
            break
        if word == "@attribute":
            attributes.append(_attribute(text, lines.number))
        elif word != "@relation":
            raise _bad_header(lines.number, f"{text!r:.60} is neither @relation, @attribute nor @data")
    raise _bad_header(lines.number, "there are no attributes, or there is no line @data")


def _attribute(text: str, line: int) -> _Attribute:
    found = _ATTRIBUTE.fullmatch(text)
    if found is None:
        raise _bad_header(line, f"{text!r:.60} is no attribute with a name and a type")
    quoted = found[1] if found[1] is not None else found[2]
    name = found[3] if quoted is None else re.sub(r"\\(.)", r"\1", quoted)
    kind, _, rest = found[4].strip().partition(" ")
    if found[4].lstrip().startswith("{"):
        values = found[4].strip()
        if not values.endswith("}"):
            raise _bad_header(line, f"the values of {name!r:.60} have no closing brace")
        return _Attribute(name, "nominal", frozenset(_cells(values[1:-1], line)))
    if kind.lower() in _NUMERIC:
        return _Attribute(name, "number")
    if kind.lower() == "string":
        return _Attribute(name, "text")
    if kind.lower() == "date":
        return _Attribute(name, "date", pattern=_pattern(rest.strip(), line))
    raise _bad_header(line, f"{name!r:.60} is of type {kind!r:.40}, which is not read")


def _pattern(text: str, line: int) -> str | None:
    """The pattern of dates; None for ISO 8601. Raises InvalidRequest for letters that it may not have."""
    java = text.strip("'\"")
    if java in ("", "yyyy-MM-dd", "yyyy-MM-dd'T'HH:mm:ss", "yyyy-MM-dd HH:mm:ss"):
        return None
    if not java.isprintable():
        raise _bad_header(line, f"the pattern of dates {java!r:.40} has bytes that are no text")
    parts = re.findall(r"[A-Za-z]+|[^A-Za-z]+", java.replace("'T'", "T"))
    if any(part.isalpha() and part not in _PATTERN and part != "T" for part in parts):
        raise _bad_header(line, f"the pattern of dates {java!r:.40} has letters that are not read")
    pattern = "".join(_PATTERN.get(part, part.replace("%", "%%")) for part in parts)
    try:
        KindSpec(Kind.DATE, pattern)
    except InvalidProblem as error:
        raise _bad_header(line, f"the pattern of dates {java!r:.40} has one of its parts twice") from error
    return pattern


def _cells(text: str, line: int) -> list[str]:
    """The cells of a line, without quotes and the blanks around them. Raises InvalidRequest."""
    quote = '"' if '"' in text and "'" not in text else "'"
    if "'" in text and '"' in text and text.index('"') < text.index("'"):
        quote = '"'
    try:
        reader = csv.reader(
            [text], quotechar=quote, escapechar="\\", doublequote=False, skipinitialspace=True, strict=False
        )
        return [cell.strip() for cell in next(reader)]
    except csv.Error as error:
        message = f"Line {line} cannot be read: {error}."
        raise invalid_rows([InputFault("X", "unreadable_row", message)]) from error


def _bad_header(line: int, what: str) -> InvalidRequest:
    return invalid_file(f"The header of the ARFF file is wrong in line {line}: {what}.", code="bad_header")


@dataclass(slots=True)
class _Rows:
    """The rows of a file as chunks of texts. chunks: of each attribute by its number."""

    attributes: list[_Attribute]
    nulls: frozenset[str]
    limits: DatasetLimits
    chunks: dict[int, list[pa.Array]] = field(default_factory=dict)
    lines: array[int] = field(default_factory=lambda: array("q"))
    faults: list[InputFault] = field(default_factory=list)
    _waiting: list[list[str]] = field(default_factory=list)

    def add(self, text: str, line: int) -> None:
        """One row. Raises InvalidRequest for the sparse form."""
        row = len(self.lines)
        if text.startswith("{"):
            message = f"Line {line} is in the sparse form, which is not read. Write all values of a row."
            raise invalid_rows([InputFault("X", "sparse_row", message, row=row)])
        cells = _cells(text, line)
        self.lines.append(line)
        if len(cells) != len(self.attributes):
            message = f"Line {line} has {len(cells)} cells; {len(self.attributes)} are expected."
            self.faults.append(InputFault("X", "ragged_row", message, row=row))
            cells = ["?"] * len(self.attributes)
        self._waiting.append(cells)
        if len(self._waiting) == _BLOCK_ROWS:
            self.flush()

    def flush(self) -> None:
        """Make chunks of the rows that are waiting. Raises InvalidRequest and TooLarge."""
        self.limits.check(len(self.lines), len(self.attributes))
        for k, cells in enumerate(zip(*self._waiting, strict=True)):
            try:
                chunk = pa.array(cells, pa.string()).dictionary_encode()
            except UnicodeEncodeError as error:
                message = f"Column {self.attributes[k].name!r:.80} has texts that are not UTF-8."
                raise invalid_rows([InputFault("X", "bad_encoding", message)]) from error
            self._check(k, cells, chunk)
            self.chunks.setdefault(k, []).append(chunk)
        self._waiting.clear()

    def check(self) -> None:
        """Raise InvalidRequest for faults that were found."""
        if self.faults:
            raise invalid_rows(in_lines(self.faults[:MAX_FAULTS], self.lines_of))

    def column(self, number: int, kind: KindSpec | None) -> Column:
        """The cells of a column, which is then no longer kept."""
        return text_column(self.chunks.pop(number), self.nulls, kind)

    def lines_of(self, wanted: Collection[int]) -> dict[int, int]:
        """The lines of some rows."""
        return {row: self.lines[row] for row in wanted if row < len(self.lines)}

    def _check(self, number: int, cells: tuple[str, ...], chunk: pa.Array) -> None:
        """Faults of cells that are not of the type of their attribute."""
        attribute = self.attributes[number]
        known = set(chunk.dictionary.to_pylist()) - self.nulls
        if attribute.kind == "number":
            wrong, what = {text for text in known if number_of(text) is None}, "not a number"
        elif attribute.kind == "nominal":
            wrong, what = known - attribute.values, "none of the values of the attribute"
        else:
            return
        start = len(self.lines) - len(cells)
        for place, cell in enumerate(cells):
            if cell in wrong and len(self.faults) < MAX_FAULTS:
                row = start + place
                where = f"Row {row} (counted from 0), column {attribute.name!r:.80}"
                text = f"{where}: {cell!r:.40} is {what}."
                self.faults.append(InputFault("X", "wrong_value", text, row=row))
