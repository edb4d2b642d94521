"""Arrays of the size of a data set: in files without a name, mapped into memory, not in memory itself.

The kernel writes their pages to the disk when memory is short, and they are gone with their last user.
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

from app.domain.errors import Unavailable
from core.data.checks import row_blocks

LARGE_BYTES: Final = 16 * 1024**2
"""Smaller ones are in memory."""

_NO_ROOM: Final = {errno.ENOSPC, errno.EDQUOT}


def empty(shape: Sequence[int], dtype: DTypeLike, folder: Path | None) -> NDArray[Any]:
    """A C-ordered array that is yet to be filled. folder: on which disk; None: that of temporary files.

    Raises Unavailable when the disk has no room for it.
    """
    kind = np.dtype(dtype)
    size = prod(shape) * kind.itemsize
    if size < LARGE_BYTES:
        return np.empty(shape, kind)
    with TemporaryFile(dir=folder) as file:
        try:
            # Room that is missing is told now: found missing by a page fault, it would end the process.
            os.posix_fallocate(file.fileno(), 0, size)
        except OSError as error:
            if error.errno not in _NO_ROOM:
                raise
            text = "The server's disk has no room for this file just now."
            raise Unavailable(text, code="storage_full", retry_after=10.0) from error
        return np.frombuffer(mmap.mmap(file.fileno(), size), kind).reshape(shape)


def mapped(file: IO[bytes], dtype: np.dtype[Any], shape: Sequence[int], order: str) -> NDArray[Any]:
    """The array that begins where ``file`` stands and is wholly there, read as it is looked at."""
    count, start = prod(shape), file.tell()
    if count == 0:
        return np.empty(shape, dtype)
    view = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    return np.frombuffer(view, dtype, count, start).reshape(shape, order="F" if order == "F" else "C")


def as_floats(table: NDArray[Any], folder: Path | None, *, without: int | None = None) -> NDArray[Any]:
    """A table of numbers as training wants it, C-ordered float32 or float64, filled block by block.

    What is so already stays as it is. without: a column to leave out.
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
