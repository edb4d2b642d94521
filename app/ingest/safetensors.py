"""Untrusted safetensors files, read array by array.

`safetensors.safe_open` is not used: it parses the whole header before arrays can be checked or counted. A
99 MB header that names 1.7 million empty arrays took it 10 s and 1.4 GB (version 0.8); this reader rejects
such a file in 0.05 s with the memory of the header's text.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

import msgspec
import numpy as np

from app.domain.errors import InputFault
from app.domain.npy_header import ArrayHeader
from app.ingest.raw import invalid_file

MAX_HEADER_BYTES: Final = 100 * 1000**2
"""The format's own limit. A JSON list of a million labels fits."""

LENGTH_BYTES: Final = 8
_DTYPES: Final = {
    "F64": "<f8",
    "F32": "<f4",
    "I64": "<i8",
    "I32": "<i4",
    "I16": "<i2",
    "U8": "|u1",
}
_MAX_SIZE: Final = 2**40
_MAX_ENTRY_BYTES: Final = 1024
"""Longest JSON that describes one array."""
_METADATA: Final = "__metadata__"
_EMPTY: Final = msgspec.Raw(b"{}")
_UNKNOWN: Final = re.compile(r"unknown field `(.*?)`", re.DOTALL)


class _Entry(msgspec.Struct):
    dtype: str
    shape: list[int]
    data_offsets: tuple[int, int]


_ENTRY: Final = msgspec.json.Decoder(_Entry)


@dataclass(frozen=True, slots=True)
class SafetensorsFile:
    """An open file. entries: header and position of each array, by name. metadata: JSON values by name."""

    file: IO[bytes]
    entries: Mapping[str, tuple[ArrayHeader, int]]
    metadata: Mapping[str, bytes]

    @contextmanager
    def open(self, name: str) -> Iterator[tuple[ArrayHeader, IO[bytes]]]:
        """Header of an array, and the file positioned at its first byte."""
        header, start = self.entries[name]
        self.file.seek(start)
        yield header, self.file


@contextmanager
def safetensors_file(
    path: Path, names: Collection[str], metadata: Collection[str]
) -> Iterator[SafetensorsFile]:
    """Open a file for which `app.ingest.formats.is_safetensors` is true. Raises InvalidRequest.

    names: the arrays that it may contain. metadata: the metadata names to read; others are ignored.
    """
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        length = int.from_bytes(file.read(LENGTH_BYTES), "little")
        text = file.read(length)
        if len(text) != length:
            raise _unreadable("it is cut off or not JSON")
        # Only members with known names are decoded; deeply nested JSON elsewhere stays text.
        arrays = _members(text, [*names, _METADATA], strict=True)
        values = _members(arrays.pop(_METADATA, _EMPTY), metadata, strict=False)
        start = LENGTH_BYTES + length
        entries = {name: _entry(name, item, start, size) for name, item in arrays.items()}
        _check_places(list(entries.values()), start, size)
        yield SafetensorsFile(file, entries, {name: bytes(value) for name, value in values.items()})


def _members(text: bytes | msgspec.Raw, names: Collection[str], *, strict: bool) -> dict[str, msgspec.Raw]:
    """The undecoded members of a JSON object with these names. strict: other names are an error."""
    fields: list[Any] = [(f"_{i}", msgspec.Raw | msgspec.UnsetType, msgspec.UNSET) for i in range(len(names))]
    renamed = {f"_{i}": name for i, name in enumerate(names)}
    kind = msgspec.defstruct("Members", fields, rename=renamed, forbid_unknown_fields=strict)
    try:
        members = msgspec.json.decode(text, type=kind)
    except msgspec.ValidationError as error:
        unknown = _UNKNOWN.search(str(error))
        if unknown is None:
            raise _unreadable("it is not an object") from error
        message = (
            f"The file has an unknown array {unknown[1]!r:.80}; known are {', '.join(sorted(names))[:200]}."
        )
        fault = InputFault(unknown[1][:80], "unknown_array", message)
        raise invalid_file(message, code="unknown_array", faults=[fault]) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _unreadable("it is cut off or not JSON") from error
    values = {name: getattr(members, field) for field, name in renamed.items()}
    return {name: value for name, value in values.items() if value is not msgspec.UNSET}


def _entry(name: str, raw: msgspec.Raw, start: int, size: int) -> tuple[ArrayHeader, int]:
    """Header and position of one array, checked against each other and the size of the file."""
    try:
        if len(raw) > _MAX_ENTRY_BYTES:
            raise ValueError("the entry is too long")
        entry = _ENTRY.decode(raw)
        shape, (begin, end) = tuple(entry.shape), entry.data_offsets
        if not all(0 <= number < _MAX_SIZE for number in (*shape, begin, end)):
            raise ValueError("the entry has an impossible shape or position")
    except (ValueError, RecursionError) as error:
        raise _unreadable(f"the entry of array {name!r:.80} is not valid") from error
    if entry.dtype not in _DTYPES:
        text = f"Array {name!r:.80} is of type {entry.dtype!r:.20}; only float32 and float64 are supported."
        raise invalid_file(f"{text} Convert it first.", code="unreadable_array")
    header = ArrayHeader(name, shape, np.dtype(_DTYPES[entry.dtype]), "C")
    if end - begin != header.size:
        raise _unreadable(f"array {name!r:.80} does not have the size of its shape")
    if start + end > size:
        text = f"The file is cut off within array {name!r:.80}: {start + end - size} bytes of it are missing."
        raise invalid_file(text, code="truncated_upload")
    return header, start + begin


def _check_places(entries: Sequence[tuple[ArrayHeader, int]], start: int, size: int) -> None:
    """Raise InvalidRequest if the arrays overlap or leave gaps, which the format forbids."""
    position = start
    for header, begin in sorted(entries, key=lambda entry: (entry[1], entry[0].size)):
        if begin != position:
            raise _unreadable(f"array {header.name!r:.80} does not begin where the previous one ends")
        position += header.size
    if position != size:
        raise _unreadable(f"{size - position} bytes after the last array belong to no array")


def _unreadable(why: str) -> Exception:
    return invalid_file(f"The header of the safetensors file is not valid: {why}.", code="unreadable_file")
