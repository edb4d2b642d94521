"""Large arrays in unlinked temporary files that are mapped into memory.

The kernel can write their pages to disk when memory is short, and frees the file with the last reference.
"""

from __future__ import annotations

import errno
import mmap
import os
from collections.abc import Sequence
from math import prod
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any, Final

import numpy as np
from numpy.typing import DTypeLike, NDArray

from app.ingest.raw import disk_full_as_unavailable
from core.data.validation import row_blocks

LARGE_BYTES: Final = 16 * 1024**2
"""Smaller arrays stay in ordinary memory."""


def empty(shape: Sequence[int], dtype: DTypeLike, folder: Path | None) -> NDArray[Any]:
    """An uninitialised C-ordered array. folder: for its file; None means the system's temporary folder.

    Raises Unavailable when the disk is full.
    """
    kind = np.dtype(dtype)
    size = prod(shape) * kind.itemsize
    if size < LARGE_BYTES:
        return np.empty(shape, kind)
    with TemporaryFile(dir=folder) as file:
        # Reserve the space now, because a page fault on a full disk would end the process with SIGBUS.
        with disk_full_as_unavailable():
            os.posix_fallocate(file.fileno(), 0, size)
        return np.frombuffer(_map(file, size, mmap.ACCESS_WRITE), kind).reshape(shape)


def mapped(file: IO[bytes], dtype: np.dtype[Any], shape: Sequence[int], order: str) -> NDArray[Any]:
    """Map the array that begins at the current position of ``file``. The file must contain all of it."""
    count, start = prod(shape), file.tell()
    if count == 0:
        return np.empty(shape, dtype)
    view = _map(file, 0, mmap.ACCESS_READ)
    return np.frombuffer(view, dtype, count, start).reshape(shape, order="F" if order == "F" else "C")


def _map(file: IO[bytes], size: int, access: int) -> mmap.mmap:
    """Raises MemoryError when the address space has no room; readers take an OSError for a damaged file."""
    try:
        return mmap.mmap(file.fileno(), size, access=access)
    except OSError as error:
        if error.errno == errno.ENOMEM:
            raise MemoryError from error
        raise


def as_floats(table: NDArray[Any], folder: Path | None, *, without: int | None = None) -> NDArray[Any]:
    """The table as C-ordered float32 or float64, converted block by block.

    A table that already has this form is returned unchanged. without: index of a column to leave out.
    """
    is_float = table.dtype in (np.float32, np.float64) and table.dtype.isnative
    if without is None and is_float and table.flags.c_contiguous:
        return table
    rows, columns = table.shape
    kept = columns if without is None else columns - 1
    cut = columns if without is None else without
    filled = empty((rows, kept), table.dtype if is_float else np.float64, folder)
    for block in row_blocks(rows, columns):
        filled[block, :cut] = table[block, :cut]
        filled[block, cut:] = table[block, cut + 1 :]
    return filled
