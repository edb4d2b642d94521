"""The header of the .npy format: untrusted, and never with pickled objects."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from math import prod
from typing import IO, Any

import numpy as np

from app.domain.errors import InputFault, InvalidRequest

_MAGIC = b"\x93NUMPY"
_LENGTH_BYTES = {b"\x01\x00": 2, b"\x02\x00": 4, b"\x03\x00": 4}
_MAX_HEADER = 10_000
_MAX_SIZE = 2**40


class _HeaderError(ValueError):
    """A header is not valid; the message is written for the sender of the file."""


@dataclass(frozen=True, slots=True)
class ArrayHeader:
    """Name, shape, dtype and memory order ("C" or "F") of an array, as its file declares them."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    order: str

    @property
    def size(self) -> int:
        """Bytes of the array."""
        return prod(self.shape) * self.dtype.itemsize


def read_header(stream: IO[bytes], name: str) -> ArrayHeader:
    """Read the header at the start of ``stream``. Raises InvalidRequest, also for pickled objects."""
    try:
        header = ast.literal_eval(_header_text(stream))
        shape, order = tuple(header["shape"]), "F" if header["fortran_order"] else "C"
        dtype = np.dtype(header["descr"])
        if not all(type(size) is int and 0 <= size < _MAX_SIZE for size in shape):
            raise _HeaderError("its shape is impossible")
    except (ValueError, TypeError, KeyError, SyntaxError, MemoryError, RecursionError) as error:
        # Python's own message is no help to the sender, and may contain memory addresses.
        reason = str(error) if isinstance(error, _HeaderError) else "it is not of the form that NumPy writes"
        raise InvalidRequest(
            f"Array {name!r:.80} has no valid header: {reason}.", code="unreadable_file"
        ) from error
    if dtype.hasobject:
        text = f"Array {name!r:.80} holds pickled Python objects, which are never read. Save plain arrays."
        raise InvalidRequest(
            text, code="pickled_objects", faults=[InputFault(name[:80], "pickled_objects", text)]
        )
    if dtype.kind not in "biufUS" or dtype.itemsize == 0:
        raise InvalidRequest(
            f"Array {name!r:.80} is of type {dtype}, which is not supported.", code="unreadable_array"
        )
    return ArrayHeader(name, shape, dtype, order)


def _header_text(stream: IO[bytes]) -> str:
    if stream.read(len(_MAGIC)) != _MAGIC:
        raise _HeaderError("it does not begin as NumPy arrays do")
    width = _LENGTH_BYTES.get(stream.read(2))
    if width is None:
        raise _HeaderError("its version is unknown")
    length = int.from_bytes(stream.read(width), "little")
    if length > _MAX_HEADER:
        raise _HeaderError("its header is too long")
    return stream.read(length).decode("latin-1").strip()
