"""The .npy format: header first, untrusted, and without pickled objects."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from app.domain.errors import InputFault
from app.ingest.mapped_arrays import empty
from app.ingest.raw import invalid_file

_MAGIC = b"\x93NUMPY"
_LENGTH_BYTES = {b"\x01\x00": 2, b"\x02\x00": 4, b"\x03\x00": 4}
_MAX_HEADER = 10_000
_MAX_SIZE = 2**40
_READ_BYTES = 1024**2


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

    def read(self, stream: IO[bytes], folder: Path | None = None) -> NDArray[Any]:
        """Read the array that follows the header. The caller has checked that ``size`` is acceptable.

        folder: for large arrays, see `app.ingest.mapped_arrays.empty`. Raises InvalidRequest, Unavailable.
        """
        data = empty((self.size,), np.uint8, folder)
        view, done = data.data, 0
        while done < self.size:
            # Not numpy.lib.format: for old format versions it warns and guesses.
            block = stream.read(min(_READ_BYTES, self.size - done))
            if not block:
                raise invalid_file(f"Array {self.name!r:.80} is cut off.", code="truncated_upload")
            view[done : done + len(block)] = block
            done += len(block)
        return data.view(self.dtype).reshape(self.shape, order="F" if self.order == "F" else "C")


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
        raise invalid_file(
            f"Array {name!r:.80} has no valid header: {reason}.", code="unreadable_file"
        ) from error
    if dtype.hasobject:
        text = f"Array {name!r:.80} holds pickled Python objects, which are never read. Save plain arrays."
        raise invalid_file(
            text, code="pickled_objects", faults=[InputFault(name[:80], "pickled_objects", text)]
        )
    if dtype.kind not in "biufUS" or dtype.itemsize == 0:
        raise invalid_file(
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
