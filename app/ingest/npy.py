"""The .npy format, read without believing it: type and shape first, and never an object."""

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
_PIECE_BYTES = 1024**2


class _HeaderError(ValueError):
    """What is wrong with a header, in words for its sender."""


@dataclass(frozen=True, slots=True)
class ArrayHeader:
    """What an .npy header says is to come."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    order: str

    @property
    def size(self) -> int:
        """Bytes of the array."""
        return prod(self.shape) * self.dtype.itemsize

    def read(self, stream: IO[bytes], folder: Path | None = None) -> NDArray[Any]:
        """The array that follows the header; the caller has checked that ``size`` is acceptable.

        folder: for a large one, see `app.ingest.mapped_arrays`. Raises InvalidRequest, Unavailable.
        """
        data = empty((self.size,), np.uint8, folder)
        view, done = data.data, 0
        while done < self.size:
            # NumPy's own reader would do, but for old files it takes paths that warn and guess.
            piece = stream.read(min(_PIECE_BYTES, self.size - done))
            if not piece:
                raise invalid_file(f"Array {self.name!r:.80} is cut off.", code="truncated_upload")
            view[done : done + len(piece)] = piece
            done += len(piece)
        return data.view(self.dtype).reshape(self.shape, order="F" if self.order == "F" else "C")


def read_header(stream: IO[bytes], name: str) -> ArrayHeader:
    """Read the header at the front of ``stream``. Raises InvalidRequest; pickled objects are refused here."""
    try:
        header = ast.literal_eval(_header_text(stream))
        shape, order = tuple(header["shape"]), "F" if header["fortran_order"] else "C"
        dtype = np.dtype(header["descr"])
        if not all(type(size) is int and 0 <= size < _MAX_SIZE for size in shape):
            raise _HeaderError("its shape is impossible")
    except (ValueError, TypeError, KeyError, SyntaxError, MemoryError, RecursionError) as error:
        # What Python says of a header is of no use to its sender, and may name addresses in memory.
        reason = str(error) if isinstance(error, _HeaderError) else "it is not of the form that NumPy writes"
        raise invalid_file(
            f"Array {name!r:.80} has no usable header: {reason}.", code="unreadable_file"
        ) from error
    if dtype.hasobject:
        text = f"Array {name!r:.80} holds pickled Python objects; they are never read. Save plain arrays."
        raise invalid_file(
            text, code="pickled_objects", faults=[InputFault(name[:80], "pickled_objects", text)]
        )
    if dtype.kind not in "biufUS" or dtype.itemsize == 0:
        raise invalid_file(
            f"Array {name!r:.80} is of type {dtype}, which is not read.", code="unreadable_array"
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
