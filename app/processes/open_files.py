"""Open files of a process: its limit, how many there are, and how many connections that allows."""

from __future__ import annotations

import resource
import sys
from contextlib import suppress
from pathlib import Path
from typing import Final

HARD_LIMIT: Final = 1.25
"""A server accepts up to this multiple of its limit of connections; those beyond the limit get 429."""
FILES_PER_CONNECTION: Final = HARD_LIMIT + 1
"""Files for each connection within the limit. A query process has one more while it relays a request, and the
control process one more while it sends or receives a file."""
_RESERVED: Final = 224
"""Files for blobs, uploads, the file reader and pipes."""
_PER_POOLED: Final = 4
"""Files for each pooled database connection: there are twice as many under load, of two files on SQLite."""
_RESERVED_SHARE: Final = 0.5
_OWN_FILES: Final = Path("/proc/self/fd")


def raise_open_files() -> int:
    """Raise this process's soft limit of open files to the hard one; returns the limit that holds then.

    Child processes inherit it.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        # Some systems report a hard limit that they do not allow.
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
    return sys.maxsize if soft == resource.RLIM_INFINITY else soft


def affordable_connections(limit: int, pool_size: int, beside: float = 0.0) -> int:
    """The most client connections, see `FILES_PER_CONNECTION`, that ``limit`` open files allow.

    Files for everything else are reserved, but never more than half of the files. beside: number of other
    files for each connection.
    """
    reserved = min(_RESERVED + _PER_POOLED * pool_size, int(limit * _RESERVED_SHARE))
    return max(1, int((limit - reserved) / (FILES_PER_CONNECTION + beside)))


def open_files() -> int:
    """The number of open files of this process, counted on Linux without opening one; elsewhere 0."""
    if sys.platform != "linux":
        return 0
    # From Linux 6.2 this is the size of the folder; before that it is 0.
    return _OWN_FILES.stat().st_size or len(list(_OWN_FILES.iterdir()))
