"""svmlight / LIBSVM text: one example per line, ``label index:value index:value … # comment``."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import scipy.sparse as sp
from numpy.typing import NDArray

from app.domain.errors import InputFault
from app.ingest.options import GIVEN, Decision, ReadingOptions
from app.ingest.raw import MAX_FAULTS, DatasetLimits, RawData, RawPart, invalid_file, invalid_rows

# The repetition is possessive, because backtracking states of a long line would take a hundred times its
# bytes.
_LINE = re.compile(rb"(\S+)((?:[ \t]+[0-9]{1,15}:[^\s:#]+)*+)[ \t]*(?:#.*)?")
_ENTRY = re.compile(r"[0-9]{1,15}:[^\s:]+")
_EXTRA = re.compile(rb"(?:^|\s)(?:privileged|view|score):")
_QUERY = re.compile(rb"\sqid:")
_BOM = b"\xef\xbb\xbf"
OPTIONS = ("index_base",)
"""Options that a sender may set for an svmlight file."""
_Line: TypeAlias = tuple[int, bytes]
_ENTRY_BYTES = 16
_BLOCK_LINES = 4096
_BLOCK_BYTES = 1024**2
_LONGEST_LINE = 64 * 1024**2


@dataclass(slots=True)
class _Rows:
    """Rows read so far. indices, values: blocks of entries; lengths: number of entries of each row.

    lines: the line of each row, counted from 1.
    """

    labels: list[str] = field(default_factory=list)
    lines: list[int] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    indices: list[NDArray[np.int64]] = field(default_factory=list)
    values: list[NDArray[np.float64]] = field(default_factory=list)
    faults: list[InputFault] = field(default_factory=list)
    entries: int = 0


def read_svmlight(path: Path, limits: DatasetLimits, options: ReadingOptions) -> RawData:
    """Read an svmlight file as a float64 CSR matrix.

    Indices count from 1, or from 0 if any index is 0, unless ``options`` say it. Raises TooLarge, and
    InvalidRequest that names the first invalid lines. The format cannot express extras and rows without a
    label; both are refused.
    """
    rows = _Rows()
    for block in _blocks(path):
        _read_block(block, rows, limits)
        limits.check_shape(len(rows.labels), 0)
        if len(rows.faults) >= MAX_FAULTS:
            break
    if rows.faults:
        raise invalid_rows(rows.faults[:MAX_FAULTS])
    if not rows.labels:
        raise invalid_file("The file has no rows of data.", code="no_rows")
    _check_labels(rows)
    indices = np.concatenate([np.empty(0, np.int64), *rows.indices])
    base = _index_base(rows, indices, options)
    usual = base.reason != GIVEN or base.value == _guessed_base(indices).value
    return RawData(
        RawPart(_matrix(rows, indices, int(base.value), limits), rows.labels),
        decisions=(Decision("label_column", "0", "each line begins with its label"), base),
        variant=() if usual else (f"index_base={base.value}",),
        lines_of=lambda wanted: {row: rows.lines[row] for row in wanted},
    )


def _guessed_base(indices: NDArray[np.int64]) -> Decision:
    if len(indices) and indices.min() == 0:
        return Decision("index_base", "0", "the index 0 occurs")
    return Decision("index_base", "1", "the index 0 does not occur")


def _index_base(rows: _Rows, indices: NDArray[np.int64], options: ReadingOptions) -> Decision:
    """The first index. Raises InvalidRequest for an index below the one that is given."""
    if options.index_base is None:
        return _guessed_base(indices)
    below = np.flatnonzero(indices < options.index_base)
    if len(below):
        row = int(np.searchsorted(np.cumsum(rows.lengths), below[0], side="right"))
        index, line = int(indices[below[0]]), rows.lines[row]
        text = f"Line {line} has the index {index}, but index_base is {options.index_base}."
        raise invalid_rows([InputFault("X", "bad_index", text, row=row)])
    return Decision("index_base", str(options.index_base), GIVEN)


def _blocks(path: Path) -> Iterator[list[_Line]]:
    """Blocks of numbered lines without comment lines, about 1 MiB each; trailing empty lines are dropped."""
    block: list[_Line] = []
    size = 0
    with path.open("rb") as file:
        number = 0
        while line := file.readline(_LONGEST_LINE):
            number += 1
            if number == 1:
                line = line.removeprefix(_BOM)
            if len(line) == _LONGEST_LINE:
                raise invalid_file(
                    f"Line {number} is longer than {_LONGEST_LINE} bytes.", code="line_too_long"
                )
            if line.startswith(b"#"):
                continue
            block.append((number, line.rstrip()))
            size += len(line)
            if len(block) == _BLOCK_LINES or size >= _BLOCK_BYTES:
                yield block
                block, size = [], 0
    while block and not block[-1][1]:
        block.pop()
    if block:
        yield block


def _read_block(lines: Sequence[_Line], rows: _Rows, limits: DatasetLimits) -> None:
    texts: list[bytes] = []
    first_row = len(rows.labels)
    for number, line in lines:
        parts = _LINE.fullmatch(line)
        if parts is None:
            rows.faults.append(_line_fault(number, line, len(rows.labels)))
        entries = parts[2] if parts else b""
        texts.append(entries)
        rows.lines.append(number)
        rows.labels.append(parts[1].decode(errors="surrogateescape") if parts else "")
        rows.lengths.append(entries.count(b":"))
    text = b" ".join(texts)
    try:
        for entries in _split_entries(text):
            tokens = entries.replace(b":", b" ").split()
            # Cast both before appending either, so a fault leaves the two lists equally long.
            values, indices = _cast(tokens[1::2], pa.float64()), _cast(tokens[::2], pa.int64())
            rows.indices.append(indices)
            rows.values.append(values)
            rows.entries += len(values)
            limits.check_bytes(rows.entries * _ENTRY_BYTES)
    except pa.ArrowInvalid:
        rows.faults += islice(_value_faults(lines, first_row), MAX_FAULTS)


def _split_entries(text: bytes) -> Iterator[bytes]:
    """Split at blanks into parts of about 1 MiB: as Python objects the tokens take many times that size."""
    start = 0
    while start < len(text):
        end = start + _BLOCK_BYTES
        while end < len(text) and text[end] not in b" \t":
            end += 1
        yield text[start:end]
        start = end


def _cast(tokens: Sequence[bytes], kind: pa.DataType) -> NDArray[Any]:
    """Raises ArrowInvalid."""
    texts = pa.array(tokens, pa.binary()).cast(pa.string())
    numbers: NDArray[Any] = pc.cast(texts, kind).to_numpy(zero_copy_only=False)
    return numbers


def _line_fault(number: int, line: bytes, row: int) -> InputFault:
    if not line:
        return InputFault("X", "empty_row", f"Line {number} is empty.", row=row)
    if _QUERY.search(line):
        text = (
            f"Line {number} has a qid, which groups the rows of a ranking; this service classifies rows one"
            f" by one. Remove the qid entries from the file: {_shown(line)}."
        )
        return InputFault("X", "cannot_carry", text, row=row)
    if _EXTRA.search(line):
        text = (
            f"Line {number}: an svmlight file cannot carry privileged columns, views or scores of a teacher;"
            f" send .npz, safetensors, CSV or Parquet: {_shown(line)}."
        )
        return InputFault("X", "cannot_carry", text, row=row)
    text = f"Line {number} does not have the form 'label index:value …': {_shown(line)}."
    return InputFault("X", "unreadable_row", text, row=row)


def _check_labels(rows: _Rows) -> None:
    """Raise InvalidRequest for rows that begin with ``index:value`` where a label is expected."""
    entries = {label for label in set(rows.labels) if _ENTRY.fullmatch(label)}
    found = (row for row, label in enumerate(rows.labels) if label in entries)
    faults = [
        InputFault(
            "y",
            "missing_label",
            f"Line {rows.lines[row]} begins with {rows.labels[row]!r:.40}, not with a label; an svmlight file"
            " cannot carry rows without one.",
            row=row,
        )
        for row in islice(found, MAX_FAULTS)
    ]
    if faults:
        raise invalid_rows(faults)


def _value_faults(lines: Sequence[_Line], first_row: int) -> Iterator[InputFault]:
    for row, (number, line) in enumerate(lines, start=first_row):
        parts = _LINE.fullmatch(line)
        for text in _split_entries(parts[2]) if parts else ():
            entries = [entry.partition(b":") for entry in text.split()]
            for place in _not_numbers([value for _, _, value in entries]):
                index, _, value = entries[place]
                message = f"Line {number}, index {index.decode()}: {_shown(value)} is not a number."
                yield InputFault("X", "not_a_number", message, row=row)


def _not_numbers(values: Sequence[bytes]) -> Iterator[int]:
    """Positions of the values that are not numbers: one cast shows whether half of the values has any."""
    try:
        _cast(values, pa.float64())
    except pa.ArrowInvalid:
        if len(values) == 1:
            yield 0
            return
        half = len(values) // 2
        yield from _not_numbers(values[:half])
        yield from (half + place for place in _not_numbers(values[half:]))


def _matrix(rows: _Rows, indices: NDArray[np.int64], first: int, limits: DatasetLimits) -> sp.csr_array:
    columns = int(indices.max()) + 1 if len(indices) else 0
    limits.check_shape(0, columns - first)
    indptr = np.concatenate([[0], np.cumsum(rows.lengths)])
    shape = (len(rows.labels), max(columns - first, 0))
    X = sp.csr_array((np.concatenate([np.empty(0), *rows.values]), indices - first, indptr), shape=shape)
    X.sort_indices()
    _check_duplicates(X, first, rows.lines)
    return X


def _check_duplicates(X: sp.csr_array, first: int, lines: Sequence[int]) -> None:
    same = np.flatnonzero(np.diff(X.indices) == 0) + 1
    # The last entry of a row and the first entry of the next row may have the same index.
    same = same[~np.isin(same, X.indptr)][:MAX_FAULTS]
    faults = []
    for entry in same:
        row = int(np.searchsorted(X.indptr, entry, side="right")) - 1
        text = f"Line {lines[row]} has index {X.indices[entry] + first} twice."
        faults.append(InputFault("X", "duplicate_index", text, row=row, column=int(X.indices[entry])))
    if faults:
        raise invalid_rows(faults)


def _shown(text: bytes) -> str:
    return repr(text.decode(errors="replace"))[:80]
