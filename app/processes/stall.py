"""Detects processes that hang: they neither answer nor use the processor."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Final

_BUSY_SHARE: Final = 0.001
_BUSY_SECONDS: Final = 0.03
"""Processor time below which a process counts as idle: its own timers use a little, too."""
_LONGEST_POLL: Final = 1.0


class StallDetector:
    """Call `is_stalled` several times a second, and `answered` for every answer of the process.

    limit: seconds without an answer and without processor time; 0 for no limit. Time in which this process
    itself did not run, such as a freeze of the whole machine, does not count. On systems without /proc no
    stall is detected.
    """

    def __init__(self, pid: int, limit: float) -> None:
        self._pid = pid
        self._limit = limit
        self._polled_at = time.monotonic()
        self._quiet = 0.0
        self._used: float | None = None

    def answered(self) -> None:
        """Start again: the process has answered."""
        self._polled_at = time.monotonic()
        self._quiet = 0.0

    def is_stalled(self) -> bool:
        """Whether the process has been silent and idle for longer than the limit."""
        now = time.monotonic()
        if self._quiet == 0.0:
            self._used = cpu_seconds(self._pid)
        self._quiet += min(now - self._polled_at, _LONGEST_POLL)
        self._polled_at = now
        if not self._limit or self._quiet <= self._limit:
            return False
        used = cpu_seconds(self._pid)
        self._quiet = 0.0
        return used is not None and self._used is not None and used - self._used <= self._allowance

    @property
    def _allowance(self) -> float:
        return max(_BUSY_SECONDS, _BUSY_SHARE * self._limit)


def cpu_seconds(pid: int) -> float | None:
    """Processor time that all threads of a process have used; None if that is not known."""
    if sys.platform != "linux":
        return None
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # The program's name, in parentheses, may contain spaces.
    user, system = fields.rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")
