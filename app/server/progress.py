"""Timeouts of slow clients, and idle time, from bytes and times alone.

Progress is checked about once a second instead of by a timer for each request, so that a fast request pays
nothing for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

HEAD_SECONDS: Final = 10.0
"""Longest time for a request head, counted from its first byte or from the start of the connection."""
BODY_SECONDS: Final = 20.0
"""Period in which a body must arrive at MIN_RATE on average."""
READ_SECONDS: Final = 20.0
"""Period in which a client must read a waiting response at MIN_RATE on average."""
MIN_RATE: Final = 500
"""Bytes per second."""


class WaitingFor(Enum):
    """What the server waits for from a client; the value is the reason to count if it takes too long."""

    HEAD = "slow_head"
    BODY = "slow_body"
    READ = "slow_reader"
    NEXT = "slow_next"


@dataclass(frozen=True, slots=True)
class _ProgressWindow:
    """A period of waiting. size: bytes received, or bytes unread, at its start."""

    waiting_for: WaitingFor
    request: object
    since: float
    size: int


class ProgressClock:
    """Decides for one connection whether the client is too slow, and for how long it has been idle.

    All times are in seconds on one clock, passed by the caller.
    """

    def __init__(self) -> None:
        self._window: _ProgressWindow | None = None
        self._idle_since: float | None = None

    def is_too_slow(self, waiting_for: WaitingFor | None, request: object, size: int, now: float) -> bool:
        """Record progress, and return whether the client has exceeded the time limit.

        waiting_for: None if the server does not wait for the client. request: identifies the request; a new
        one starts a new period. size: bytes received on the connection, or for READ bytes not read yet.
        """
        window = self._window
        if waiting_for is None:
            self._window = None
        elif window is None or window.waiting_for is not waiting_for or window.request is not request:
            self._window = _ProgressWindow(waiting_for, request, now, size)
        elif now - window.since >= _limit(waiting_for):
            self._window = None
            if waiting_for in (WaitingFor.HEAD, WaitingFor.NEXT):
                # However steadily the bytes arrive.
                return True
            moved = window.size - size if waiting_for is WaitingFor.READ else size - window.size
            return moved < MIN_RATE * (now - window.since)
        return False

    def restart(self) -> None:
        """Start a new period: the client has read most of the response."""
        self._window = None

    def idle_seconds(self, now: float, *, is_idle: bool) -> float:
        """Seconds since the connection was first seen idle; 0 if it is not idle."""
        if not is_idle:
            self._idle_since = None
            return 0.0
        if self._idle_since is None:
            self._idle_since = now
        return now - self._idle_since


def _limit(waiting_for: WaitingFor) -> float:
    if waiting_for is WaitingFor.BODY:
        return BODY_SECONDS
    return READ_SECONDS if waiting_for is WaitingFor.READ else HEAD_SECONDS
