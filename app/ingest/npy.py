"""Reads the data of arrays in the .npy format."""

from __future__ import annotations

from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from app.domain.npy_header import ArrayHeader
from app.ingest.mapped_arrays import empty
from app.ingest.raw import invalid_file

_READ_BYTES = 1024**2


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
    return data.view(header.dtype).reshape(header.shape, order="F" if header.order == "F" else "C")
