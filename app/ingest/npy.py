"""Reads the data of arrays in the .npy format."""

from __future__ import annotations

from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from app.domain.errors import InputFault
from app.domain.npy_header import ArrayHeader
from app.ingest.mapped_arrays import empty
from app.ingest.raw import invalid_file

_READ_BYTES = 1024**2
_LAST_CHARACTER = 0x10FFFF


def read_array(header: ArrayHeader, stream: IO[bytes], folder: Path | None = None) -> NDArray[Any]:
    """Read the array that follows the header. The caller has checked that its size is acceptable.

    folder: for large arrays, see `app.ingest.mapped_arrays.empty`. Raises InvalidRequest, Unavailable.
    """
    data = empty((header.size,), np.uint8, folder)
    view, done = data.data, 0
    while done < header.size:
        # Not numpy.lib.format: for old format versions it warns and guesses.
        block = stream.read(min(_READ_BYTES, header.size - done))
        if not block:
            raise invalid_file(f"Array {header.name!r:.80} is cut off.", code="truncated_upload")
        view[done : done + len(block)] = block
        done += len(block)
    flat = data.view(header.dtype)
    check_text(flat, header.name)
    return flat.reshape(header.shape, order="F" if header.order == "F" else "C")


def check_text(values: NDArray[Any], name: str) -> None:
    """Raise InvalidRequest if text of NumPy (n,) has code points that are not characters.

    NumPy reads them without a check, and raises SystemError when they become a str.
    """
    if values.dtype.kind != "U":
        return
    codes = values.view(values.dtype.byteorder + "u4")
    if codes.max(initial=0) > _LAST_CHARACTER or ((codes >= 0xD800) & (codes < 0xE000)).any():
        text = f"Array {name!r:.80} has text that is not Unicode."
        raise invalid_file(text, code="bad_encoding", faults=[InputFault(name[:80], "bad_encoding", text)])
