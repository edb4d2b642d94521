"""JSON Lines: one object a line, whose keys name the columns. A list of numbers is a vector."""

from __future__ import annotations

import json
import math
from array import array
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from app.domain.errors import InputFault
from app.ingest.cells import Column, null_tokens, number_column, text_column
from app.ingest.columns import (
    Columns,
    ambiguous_label,
    index_candidates,
    index_reason,
    label_doubt,
)
from app.ingest.options import ReadingOptions
from app.ingest.raw import (
    MAX_FAULTS,
    DatasetLimits,
    FeatureRows,
    Known,
    RawData,
    invalid_file,
    invalid_rows,
)
from app.ingest.tables import data_of_columns, record_rows
from core.data.cell_values import category_key
from core.data.schema import Kind, KindSpec
from core.data.table import VectorCells
from core.data.validation import MAX_MAGNITUDE

OPTIONS: Final = ("label_column", "index_column", "columns", "null_values")
"""Options that a sender may set for a file of JSON lines."""
MAX_LINE_BYTES: Final = 1024**2
MAX_PICTURE_LINE_BYTES: Final = 24 * 1024**2
"""Of a file with a column of pictures: base64 of the largest picture, and some more."""
_BOM: Final = b"\xef\xbb\xbf"
_BLOCK_ROWS: Final = 8192
_BLOCK_CELLS: Final = 1_000_000


def read_jsonl(path: Path, limits: DatasetLimits, options: ReadingOptions) -> RawData:
    """Read a file of JSON lines as a table of numbers, or of raw cells if some columns are not numbers.

    A missing key is a gap, like null. Raises TooLarge, and InvalidRequest that names lines.
    """
    has_pictures = any(kind.kind is Kind.IMAGE for kind in options.kinds.values())
    file, names = _read(path, limits, MAX_PICTURE_LINE_BYTES if has_pictures else MAX_LINE_BYTES)
    found = {}
    for k in index_candidates(names) if options.index_column is None else ():
        reason = index_reason(names[k], file.values(names[k]))
        if reason is not None:
            found[k] = reason
    columns = Columns.of(names, len(names), options, index=found)
    # A table always has a label column; it is called by its position if its key is blank.
    label = names[columns.label or 0]
    labels = file.values(label)
    if file.has("vector", label):
        text = f"The label column {columns.label_name!r:.80} has lists."
        raise invalid_rows([InputFault("y", "bad_label_type", text)])
    if (
        columns.label_is_guessed
        and (doubt := label_doubt(labels, may_lack=columns.labels_may_lack)) is not None
    ):
        texts = [k for k, name in enumerate(names) if k != columns.label and file.has("text", name)]
        reason = f"{columns.doubtful_label}: {doubt}."
        raise ambiguous_label(names, texts, reason, len(names))
    cells = file.cells(columns, null_tokens(options.null_values), options.kinds)
    return data_of_columns(columns, cells, labels, options, limits, lines_of=file.lines_of)


def read_jsonl_records(
    path: Path, limits: DatasetLimits, options: ReadingOptions, known: Known
) -> FeatureRows:
    """Read records to ask about. Raises as `read_jsonl` does."""
    file, names = _read(path, limits)
    columns = Columns.of_rows(names, len(names), options, known=known)
    cells = file.cells(columns, null_tokens(options.null_values), known.kinds or {})
    return record_rows(columns, cells, known, (), file.lines, file.lines_of)


def _read(path: Path, limits: DatasetLimits, most: int = MAX_LINE_BYTES) -> tuple[_File, tuple[str, ...]]:
    """The content of a file and the names of its columns. most: bytes of a line. Raises InvalidRequest,
    TooLarge.
    """
    file = _File(limits, most)
    file.read(path)
    if not file.rows:
        raise invalid_file("The file has no rows of data.", code="no_rows")
    names = tuple(file.blocks)
    limits.check(file.rows, len(names))
    return file, names


@dataclass(slots=True)
class _Block:
    """Cells of a column in some rows. kind: number, truth, text, vector or gap. values: an array by kind."""

    kind: str
    values: Any
    rows: int

    def listed(self) -> Iterator[Any]:
        """The cells as labels; None for gaps."""
        if self.kind == "gap":
            yield from [None] * self.rows
        elif self.kind == "text":
            yield from self.values.to_pylist()
        elif self.kind == "vector":
            yield from self.values
        else:
            for value in self.values.tolist():
                whole = value == value and value.is_integer()
                truth = bool(value) if self.kind == "truth" else int(value) if whole else value
                yield None if value != value else truth

    def numbers(self) -> NDArray[np.float64]:
        """The cells as numbers, for a block of numbers, truth values or gaps."""
        found: NDArray[np.float64] = np.full(self.rows, np.nan) if self.kind == "gap" else self.values
        return found

    def texts(self) -> pa.Array:
        """The cells as texts."""
        if self.kind == "text":
            return self.values
        keys = [None if one is None else category_key(one) for one in self.listed()]
        return pa.array(keys, pa.string())


@dataclass(slots=True)
class _File:
    """The contents of a file. blocks: of each column by name. lines: line of each row, counted from 1."""

    limits: DatasetLimits
    most: int = MAX_LINE_BYTES
    blocks: dict[str, list[_Block]] = field(default_factory=dict)
    lines: array[int] = field(default_factory=lambda: array("q"))
    faults: list[InputFault] = field(default_factory=list)
    _waiting: dict[str, list[Any]] = field(default_factory=dict)
    _done: int = 0
    _columns: int = 0

    @property
    def rows(self) -> int:
        """Rows read so far."""
        return len(self.lines)

    def read(self, path: Path) -> None:
        """Read all lines. Raises InvalidRequest that names lines, and TooLarge."""
        decoder = msgspec.json.Decoder()
        with path.open("rb") as file:
            if file.read(len(_BOM)) != _BOM:
                file.seek(0)
            number = 0
            while line := file.readline(self.most + 1):
                number += 1
                if line.isspace():
                    continue
                self._add(decoder, line, number)
                waiting = self.rows - self._done
                if waiting == _BLOCK_ROWS or waiting * self._columns > _BLOCK_CELLS:
                    self._flush()
                if len(self.faults) >= MAX_FAULTS:
                    break
        self._flush()
        if self.faults:
            raise invalid_rows(self.faults[:MAX_FAULTS])

    def lines_of(self, wanted: Collection[int]) -> dict[int, int]:
        """The lines of some rows."""
        return {row: self.lines[row] for row in wanted if row < len(self.lines)}

    def values(self, name: str) -> list[Any]:
        """The cells of a column as labels."""
        return [value for block in self.blocks[name] for value in block.listed()]

    def has(self, kind: str, name: str) -> bool:
        """Whether a column has cells of a kind, such as texts."""
        return any(block.kind == kind for block in self.blocks[name])

    def cells(
        self, columns: Columns, nulls: frozenset[str], kinds: Mapping[str, KindSpec]
    ) -> dict[int, Column]:
        """The cells of features and extras by position. Raises InvalidRequest."""
        keys = tuple(self.blocks)
        found = {
            k: self.column(keys[k], columns.name(k), nulls, kinds.get(columns.name(k)))
            for positions in columns.tables.values()
            for k in positions
        }
        if self.faults:
            raise invalid_rows(self.faults[:MAX_FAULTS])
        return found

    def column(self, key: str, name: str, nulls: frozenset[str], kind: KindSpec | None) -> Column:
        """The cells of a key, which are then removed. name: of its column. Faults are collected."""
        blocks = self.blocks.pop(key)
        kinds = {block.kind for block in blocks} - {"gap"}
        if "vector" in kinds:
            return self._vectors(name, blocks, kinds)
        if kinds <= {"number"} or kinds == {"truth"}:
            return number_column(
                np.concatenate([block.numbers() for block in blocks]), {}, is_truth=kinds == {"truth"}
            )
        return text_column([block.texts() for block in blocks], nulls, kind)

    def _add(self, decoder: msgspec.json.Decoder[Any], line: bytes, number: int) -> None:
        row = self.rows
        if len(line) > self.most:
            what = f"is longer than {self.most} bytes. Each line holds one object, which is one row."
            raise invalid_rows([InputFault("X", "line_too_long", f"Line {number} {what}", row=row)])
        try:
            record = decoder.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            not_finite = _not_finite(line)
            for name, word in not_finite.items():
                what = f"column {name!r:.80}: {word} is no JSON; write null for a missing value"
                self._fault("not_finite", number, row, what)
            hint = "; keys and texts need double quotes" if line.lstrip().startswith(b"{'") else ""
            if not not_finite:
                self._fault("bad_json", number, row, f"is not JSON: {error}"[:300] + hint)
            record = {}
        if not isinstance(record, dict):
            self._fault("no_object", number, row, "is not an object with a key for each column")
            record = {}
        place = row - self._done
        self.lines.append(number)
        for name, value in record.items():
            cells = self._waiting.get(name)
            if cells is None:
                cells = self._waiting[name] = []
                self._columns += name not in self.blocks
            cells += [None] * (place - len(cells))
            cells.append(value)
        self.limits.check_shape(self.rows, self._columns)

    def _flush(self) -> None:
        """Make blocks of the cells that are waiting."""
        rows = self.rows - self._done
        for name in self._waiting:
            if name not in self.blocks:
                self.blocks[name] = [_Block("gap", None, self._done)] if self._done else []
        self.limits.check(self.rows, len(self.blocks))
        for name, blocks in self.blocks.items():
            cells = self._waiting.pop(name, [])
            cells += [None] * (rows - len(cells))
            if rows:
                blocks.append(self._block(name, cells))
        self._waiting.clear()
        self._done = self.rows

    def _block(self, name: str, cells: list[Any]) -> _Block:
        kinds = {type(cell) for cell in cells} - {type(None)}
        if not kinds:
            return _Block("gap", None, len(cells))
        if kinds & {list, dict}:
            return self._block_of_lists(name, cells)
        if kinds <= {int, float}:
            values = np.array([np.nan if cell is None else _float(cell) for cell in cells])
            for place in np.flatnonzero(np.abs(values) > MAX_MAGNITUDE)[:MAX_FAULTS]:
                self._cell_fault(name, "too_large", int(place), f"the number is beyond ±{MAX_MAGNITUDE:g}")
            return _Block("number", values, len(cells))
        if kinds == {bool}:
            truths = np.array([np.nan if cell is None else float(cell) for cell in cells])
            return _Block("truth", truths, len(cells))
        texts = [cell if cell is None or isinstance(cell, str) else category_key(cell) for cell in cells]
        return _Block("text", pa.array(texts, pa.string()).dictionary_encode(), len(cells))

    def _block_of_lists(self, name: str, cells: list[Any]) -> _Block:
        """A block of vectors; other cells are faults."""
        kept: list[Any] = []
        nested: list[int] = []
        others: list[int] = []
        for place, cell in enumerate(cells):
            is_vector = isinstance(cell, list) and all(type(one) in (int, float) for one in cell)
            kept.append(cell if is_vector and cell else None)
            if cell is not None and kept[-1] is None:
                (nested if isinstance(cell, list | dict) else others).append(place)
        for place in nested:
            what = (
                "nested values are not read, only lists of numbers without gaps: make a column of each value"
            )
            self._cell_fault(name, "nested_value", place, what)
        for place in [] if nested else others:
            self._cell_fault(name, "no_list", place, "other lines have a list here")
        return _Block("vector", kept, len(cells))

    def _vectors(self, name: str, blocks: list[_Block], kinds: set[str]) -> Column:
        cells = [cell for block in blocks for cell in block.listed()]
        width = next(len(cell) for cell in cells if isinstance(cell, list)) if kinds else 0
        values = np.full((len(cells), width), np.nan)
        for row, cell in enumerate(cells):
            if isinstance(cell, list) and len(cell) == width:
                values[row] = [*map(_float, cell)]
            elif cell is not None:
                what = f"there is no list of {width} numbers, as in other lines"
                self._fault("ragged_vector", self.lines[row], row, f"column {name!r:.80}: {what}")
        for row in np.flatnonzero((np.abs(values) > MAX_MAGNITUDE).any(axis=1))[:MAX_FAULTS]:
            what = f"column {name!r:.80}: a number of the list is beyond ±{MAX_MAGNITUDE:g}"
            self._fault("too_large", self.lines[int(row)], int(row), what)
        return Column(VectorCells(values))

    def _cell_fault(self, name: str, code: str, place: int, what: str) -> None:
        row = self._done + place
        self._fault(code, self.lines[row], row, f"column {name!r:.80}: {what}")

    def _fault(self, code: str, line: int, row: int, what: str) -> None:
        mark = " " if what.startswith("is ") else ", "
        if len(self.faults) < MAX_FAULTS:
            self.faults.append(InputFault("X", code, f"Line {line}{mark}{what}.", row=row))


class _Word(str):
    """A word that Python writes for a number that JSON cannot express."""

    __slots__ = ()


def _not_finite(line: bytes) -> dict[str, str]:
    """Words such as NaN for numbers that are not finite, in an object that is otherwise valid JSON."""
    if b"NaN" not in line and b"Infinity" not in line:
        return {}
    try:
        record = json.loads(line, parse_constant=_Word)
    except (ValueError, RecursionError):
        return {}
    words: dict[str, str] = {}
    for name, value in record.items() if isinstance(record, dict) else ():
        listed = value if isinstance(value, list) else [value]
        words.update((name, str(one)) for one in listed if isinstance(one, _Word))
    return words


def _float(value: float) -> float:
    """A number as a float, also one that is too large for it."""
    try:
        return float(value)
    except OverflowError:
        return math.inf
