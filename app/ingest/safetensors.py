"""safetensors files of other programs, read array by array without believing their header."""

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
from app.ingest.npy import ArrayHeader
from app.ingest.raw import invalid_file

MAX_HEADER_BYTES: Final = 100 * 1000**2
"""What the format itself allows: a JSON list of a million labels fits."""

_LENGTH_BYTES: Final = 8
_DTYPES: Final = {
    "F64": "<f8",
    "F32": "<f4",
    "I64": "<i8",
    "I32": "<i4",
    "I16": "<i2",
    "U8": "|u1",
}
_MAX_SIZE: Final = 2**40


_MAX_DESCRIPTION: Final = 1024
"""Bytes of what the header says of one array."""
_METADATA: Final = "__metadata__"
_NOTHING: Final = msgspec.Raw(b"{}")
_UNKNOWN: Final = re.compile(r"unknown field `(.*?)`", re.DOTALL)


class _Item(msgspec.Struct):
    dtype: str
    shape: list[int]
    data_offsets: tuple[int, int]


_ITEM: Final = msgspec.json.Decoder(_Item)


@dataclass(frozen=True, slots=True)
class SafetensorsFile:
    """Arrays by name. entries: what each is and where its bytes begin. metadata: JSON by name."""

    file: IO[bytes]
    entries: Mapping[str, tuple[ArrayHeader, int]]
    metadata: Mapping[str, bytes]

    @contextmanager
    def opened(self, name: str) -> Iterator[tuple[ArrayHeader, IO[bytes]]]:
        """What an array is, and the file at its first byte."""
        declared, start = self.entries[name]
        self.file.seek(start)
        yield declared, self.file


def is_safetensors(beginning: bytes) -> bool:
    """Whether the first bytes of a file are an acceptable length and the beginning of a JSON object."""
    length = int.from_bytes(beginning[:_LENGTH_BYTES], "little")
    return length <= MAX_HEADER_BYTES and beginning[_LENGTH_BYTES : _LENGTH_BYTES + 1] == b"{"


@contextmanager
def safetensors_file(
    path: Path, names: Collection[str], metadata: Collection[str]
) -> Iterator[SafetensorsFile]:
    """The file at ``path``, which begins as `is_safetensors` asks.

    names: of the arrays that it may have. metadata: those that are looked at. Raises InvalidRequest.
    """
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
        text = file.read(length)
        if len(text) != length:
            raise _unreadable("it is cut off or not JSON")
        # Nothing is made of JSON but the few objects that are known: a header of brackets stays text.
        found = _members(text, [*names, _METADATA], strict=True)
        said = _members(found.pop(_METADATA, _NOTHING), metadata, strict=False)
        start = _LENGTH_BYTES + length
        entries = {name: _entry(name, item, start, size) for name, item in found.items()}
        _check_places(list(entries.values()), start, size)
        yield SafetensorsFile(file, entries, {name: bytes(value) for name, value in said.items()})


def _members(text: bytes | msgspec.Raw, names: Collection[str], *, strict: bool) -> dict[str, msgspec.Raw]:
    """The members of a JSON object with these names. strict: there may be no others."""
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
            f"The file has an array {unknown[1]!r:.80}; these are read: {', '.join(sorted(names))[:200]}."
        )
        fault = InputFault(unknown[1][:80], "unknown_array", message)
        raise invalid_file(message, code="unknown_array", faults=[fault]) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _unreadable("it is cut off or not JSON") from error
    found = {name: getattr(members, field) for field, name in renamed.items()}
    return {name: value for name, value in found.items() if value is not msgspec.UNSET}


def _entry(name: str, raw: msgspec.Raw, start: int, size: int) -> tuple[ArrayHeader, int]:
    """One array's type, shape and place, checked against each other and the file."""
    try:
        if len(raw) > _MAX_DESCRIPTION:
            raise ValueError("it is too long")
        item = _ITEM.decode(raw)
        shape, (begin, end) = tuple(item.shape), item.data_offsets
        if not all(0 <= number < _MAX_SIZE for number in (*shape, begin, end)):
            raise ValueError("it has an impossible shape or place")
    except (ValueError, RecursionError) as error:
        raise _unreadable(f"array {name!r:.80} is not described as it should be") from error
    if item.dtype not in _DTYPES:
        text = f"Array {name!r:.80} is of type {item.dtype!r:.20}; float32 and float64 are read."
        raise invalid_file(f"{text} Convert it first.", code="unreadable_array")
    declared = ArrayHeader(name, shape, np.dtype(_DTYPES[item.dtype]), "C")
    if end - begin != declared.size:
        raise _unreadable(f"array {name!r:.80} is not as long as its shape says")
    if start + end > size:
        raise invalid_file(f"The file is cut off within array {name!r:.80}.", code="truncated_upload")
    return declared, start + begin


def _check_places(entries: Sequence[tuple[ArrayHeader, int]], start: int, size: int) -> None:
    """Raise InvalidRequest unless the arrays follow each other without gap or overlap, as the format asks."""
    position = start
    for declared, begin in sorted(entries, key=lambda entry: (entry[1], entry[0].size)):
        if begin != position:
            raise _unreadable(f"array {declared.name!r:.80} does not begin where the one before it ends")
        position += declared.size
    if position != size:
        raise _unreadable(f"{size - position} bytes behind the arrays belong to none")


def _unreadable(why: str) -> Exception:
    return invalid_file(f"The header of the safetensors file cannot be used: {why}.", code="unreadable_file")
