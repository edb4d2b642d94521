"""Messages between a worker and its solver process: a JSON header and raw byte strings, nothing pickled.

A frame is: length of the header (4 bytes, big endian), the header as JSON with the sizes of the byte strings
under ``"sizes"``, then the byte strings one after another.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import IO

import msgspec

from app.domain.entities import Json

_LENGTH = struct.Struct(">I")
MAX_HEADER_BYTES = 256 * 1024**2
MAX_BLOB_BYTES = 64 * 1024**3


class BrokenFrame(Exception):
    """Bytes that are not a frame: the other side is not who it should be."""


@dataclass(frozen=True, slots=True)
class Frame:
    """header: JSON-ready, with a ``"type"``. blobs: byte strings that go with it."""

    header: Json
    blobs: tuple[bytes, ...] = ()

    @property
    def type(self) -> str:
        return str(self.header["type"])


def write_frame(stream: IO[bytes], header: Json, blobs: Sequence[bytes] = ()) -> None:
    """Write one frame and flush. Raises OSError when the other side is gone."""
    encoded = msgspec.json.encode(header | {"sizes": [len(blob) for blob in blobs]})
    stream.write(_LENGTH.pack(len(encoded)))
    stream.write(encoded)
    for blob in blobs:
        stream.write(blob)
    stream.flush()


def read_frame(stream: IO[bytes]) -> Frame | None:
    """The next frame; None when the stream ends, also in the middle of a frame. Raises BrokenFrame."""
    prefix = stream.read(_LENGTH.size)
    if len(prefix) < _LENGTH.size:
        return None
    (length,) = _LENGTH.unpack(prefix)
    if length > MAX_HEADER_BYTES:
        raise BrokenFrame(f"A header of {length} bytes is over the limit of {MAX_HEADER_BYTES}.")
    encoded = stream.read(length)
    if len(encoded) < length:
        return None
    header, sizes = _decoded(encoded)
    blobs = []
    for size in sizes:
        blob = stream.read(size)
        if len(blob) < size:
            return None
        blobs.append(blob)
    return Frame(header, tuple(blobs))


def _decoded(encoded: bytes) -> tuple[Json, list[int]]:
    try:
        header = msgspec.json.decode(encoded, type=Json)
        sizes = msgspec.convert(header.pop("sizes", None), list[int])
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise BrokenFrame(f"The header cannot be read: {error}") from error
    if any(not 0 <= size <= MAX_BLOB_BYTES for size in sizes):
        raise BrokenFrame(f"The sizes {sizes[:10]} are out of bounds.")
    if not isinstance(header.get("type"), str):
        raise BrokenFrame("The header has no type.")
    return header, sizes
