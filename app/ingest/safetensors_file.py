"""safetensors files of other programs, read array by array without believing their header."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

import numpy as np

from app.ingest.npy_stream import Declared
from app.ingest.raw import unusable

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


@dataclass(frozen=True, slots=True)
class SafetensorsFile:
    """Arrays by name. entries: what each is and where its bytes begin. metadata: text by name."""

    file: IO[bytes]
    entries: Mapping[str, tuple[Declared, int]]
    metadata: Mapping[str, str]

    @contextmanager
    def opened(self, name: str) -> Iterator[tuple[Declared, IO[bytes]]]:
        """What an array is, and the file at its first byte."""
        declared, start = self.entries[name]
        self.file.seek(start)
        yield declared, self.file


def is_safetensors(beginning: bytes) -> bool:
    """Whether the first bytes of a file are an acceptable length and the beginning of a JSON object."""
    length = int.from_bytes(beginning[:_LENGTH_BYTES], "little")
    return length <= MAX_HEADER_BYTES and beginning[_LENGTH_BYTES : _LENGTH_BYTES + 1] == b"{"


@contextmanager
def safetensors_file(path: Path) -> Iterator[SafetensorsFile]:
    """The file at ``path``, which begins as `is_safetensors` asks. Raises InvalidRequest."""
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
        index = _index(file.read(length))
        metadata = index.pop("__metadata__", {})
        if not isinstance(metadata, dict):
            raise _unreadable("its metadata are not an object")
        entries = {name: _entry(name, item, _LENGTH_BYTES + length, size) for name, item in index.items()}
        yield SafetensorsFile(file, entries, metadata)


def _index(text: bytes) -> dict[str, Any]:
    try:
        index = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _unreadable("it is cut off or not JSON") from error
    if not isinstance(index, dict):
        raise _unreadable("it is not an object")
    return index


def _entry(name: str, item: Any, start: int, size: int) -> tuple[Declared, int]:
    """One array's type, shape and place, checked against each other and the file."""
    try:
        dtype, shape, (begin, end) = item["dtype"], tuple(item["shape"]), item["data_offsets"]
        numbers = (*shape, begin, end)
        if not all(type(number) is int and 0 <= number < _MAX_SIZE for number in numbers):
            raise ValueError(f"array {name!r:.80} has an impossible shape or place")
    except (ValueError, TypeError, KeyError) as error:
        raise _unreadable(f"array {name!r:.80} is not described as it should be") from error
    if dtype not in _DTYPES:
        text = f"Array {name!r:.80} is of type {dtype!r:.20}; float32 and float64 are read. Convert it first."
        raise unusable(text, code="unreadable_array")
    declared = Declared(name, shape, np.dtype(_DTYPES[dtype]), "C")
    if end - begin != declared.size:
        raise _unreadable(f"array {name!r:.80} is not as long as its shape says")
    if start + end > size:
        raise unusable(f"The file is cut off within array {name!r:.80}.", code="truncated_upload")
    return declared, start + begin


def _unreadable(why: str) -> Exception:
    return unusable(f"The header of the safetensors file cannot be used: {why}.", code="unreadable_file")
