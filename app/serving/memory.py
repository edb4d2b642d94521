"""How a server process treats memory that it has freed."""

from __future__ import annotations

import ctypes
import sys
from typing import Final

KEPT_BYTES: Final = 64 * 1024**2
"""Freed memory at the end of the heap that is kept for the next request."""

LARGE_BYTES: Final = 8 * 1024**2
"""Blocks from this size on come from the system and go back there at once."""

# malloc.h of the GNU C library
_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3


def keep_freed_memory() -> bool:
    """Keep some freed memory instead of returning it at once; False where the C library has no such wish.

    A query of some megabytes would else pay for every page of its body anew: a third of its whole cost.
    """
    if sys.platform != "linux":
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, LARGE_BYTES) and mallopt(_M_TRIM_THRESHOLD, KEPT_BYTES))
