"""How a server process treats memory that it has freed."""

from __future__ import annotations

import ctypes
import os
import sys
import time
from pathlib import Path
from typing import Final

KEPT_BYTES: Final = 64 * 1024**2
"""Freed memory at the end of the heap that is kept for the next request."""

LARGE_BYTES: Final = 8 * 1024**2
"""Blocks from this size on come from the system and go back there at once."""

_LOOK_SECONDS: Final = 5.0
_WORTH_BYTES: Final = 16 * 1024**2

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


class FreedMemory:
    """Gives memory between what is in use back to the system, a few seconds after it has become much.

    What is kept for the next request is kept for a while only: after a few large ones a process would else
    stay as large as they made it.
    """

    def __init__(self) -> None:
        self._trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
        self._held = 0 if self._trim is None else resident_bytes()
        self._next = time.monotonic() + _LOOK_SECONDS

    def look(self) -> bool:
        """Call it often; whether memory was given back just now."""
        if self._trim is None or time.monotonic() < self._next:
            return False
        self._next = time.monotonic() + _LOOK_SECONDS
        if resident_bytes() < self._held + _WORTH_BYTES:
            return False
        self._trim(0)
        self._held = resident_bytes()
        return True


def resident_bytes() -> int:
    """Memory of this process that is in the machine's. Linux only."""
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")
