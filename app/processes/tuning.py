"""Tuning of a server process: heap memory that stays allocated, BLAS threads, and the event loop first."""

from __future__ import annotations

import ctypes
import gc
import sys
import time
from typing import Final

from threadpoolctl import threadpool_limits

from app.processes.os_process import let_others_first, memory_bytes, set_time_slice

KEPT_BYTES: Final = 64 * 1024**2
"""Freed memory at the end of the heap that is kept for the next request."""

LARGE_BYTES: Final = 8 * 1024**2
"""Blocks of this size and above are mapped from the system and returned when they are freed."""

SWITCH_SECONDS: Final = 0.0002
"""Longest time that the event loop waits for another thread which computes in Python."""

SLICE_SECONDS: Final = 0.0001
"""Time slice of the event loop's thread, the shortest that Linux knows."""

_POLL_SECONDS: Final = 5.0
_WORTH_BYTES: Final = 16 * 1024**2
"""Growth of the process from which on its heap is trimmed."""
_LEAST_BYTES: Final = 1024**2
"""A trim that returns less has shown that the process needs its memory."""

# malloc.h of the GNU C library
_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3


def limit_blas_threads() -> None:
    """Limit BLAS to one thread for the rest of the process.

    A query is some microseconds of arithmetic, so waking a second thread costs more than it saves. On a busy
    machine the other cores are used by the other server processes.
    """
    threadpool_limits(limits=1, user_api="blas")


def favour_event_loop() -> bool:
    """Let the calling thread, that of the event loop, run soon after it wakes while other threads compute.

    Another thread of this process releases the interpreter lock after `SWITCH_SECONDS`; Python's default is
    5 ms. With its short time slice the thread preempts other threads as soon as it wakes, see
    `set_time_slice`. Returns whether the slice could be set.
    """
    sys.setswitchinterval(SWITCH_SECONDS)
    return set_time_slice(SLICE_SECONDS)


def favour_others() -> None:
    """Let this process, whose clients wait for milliseconds, and its children preempt no other one."""
    sys.setswitchinterval(SWITCH_SECONDS)
    let_others_first()


def leave_out_of_collections() -> None:
    """Exclude all existing objects from garbage collections, because the program stays in memory anyway.

    Otherwise a full collection visits several hundred thousand of them, and holds the interpreter lock for
    about 50 ms; the objects of a large request cause such collections.
    """
    gc.collect()
    gc.freeze()


def keep_freed_memory() -> bool:
    """Let glibc keep freed heap for reuse. Returns False if `mallopt` is missing.

    Otherwise a query of some megabytes causes page faults for its whole body, a third of its cost.
    """
    if sys.platform != "linux":
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, LARGE_BYTES) and mallopt(_M_TRIM_THRESHOLD, KEPT_BYTES))


class MallocTrimmer:
    """Returns freed heap to the system by `malloc_trim`, a few seconds after the process has grown.

    This bounds the memory that `keep_freed_memory` keeps; otherwise a few large requests would leave the
    process at their size for ever. Only if almost nothing can be returned is the larger size taken as the
    size that the process needs, because a trim during a large request does not know what the request will
    free.
    """

    def __init__(self) -> None:
        self._trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
        self._needed_size = 0 if self._trim is None else resident_bytes()
        self._next = time.monotonic() + _POLL_SECONDS

    def poll(self) -> bool:
        """Trim the heap if it is due; cheap enough for every tick. Returns whether it trimmed."""
        if self._trim is None or time.monotonic() < self._next:
            return False
        self._next = time.monotonic() + _POLL_SECONDS
        size = resident_bytes()
        if size < self._needed_size + _WORTH_BYTES:
            return False
        self._trim(0)
        if size - resident_bytes() < _LEAST_BYTES:
            self._needed_size = size
        return True


def resident_bytes() -> int:
    """Resident set size of this process in bytes."""
    return memory_bytes()[1]
