"""Timeouts of slow clients, from bytes and times alone.

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
READ_SECONDS: Final = 120.0
"""How long a client that reads a waiting response at MIN_RATE or faster may pause.

The kernel of a client acknowledges bytes while it has room for them, and again once the client has read a
sixteenth of its buffer, which is up to 2 MB: at 20 kB/s no byte is acknowledged for 100 seconds.
"""
MIN_RATE: Final = 500
"""Bytes per second."""
WHOLE_BODY_SECONDS: Final = 30.0
"""Time for a whole body, without the time in which the server did not read, plus one second for each
`WHOLE_BODY_RATE` bytes that have arrived. A megabyte takes 62 s at most, 16 MiB nine minutes."""
WHOLE_BODY_RATE: Final = 32 * 1024
UNREAD_SECONDS: Final = 10.0
"""Time for the rest of a body whose request has been answered already."""


class WaitingFor(Enum):
    """What the server waits for from a client; the value is the reason to count if it takes too long."""

    HEAD = "slow_head"
    BODY = "slow_body"
    UNREAD = "unread_body"
    READ = "slow_reader"


@dataclass(frozen=True, slots=True)
class _ProgressWindow:
    """A period of waiting. size: as for `ProgressClock.is_too_slow`, at the start of the period.

    since: when it began; for READ it is later by the time that the bytes read since then take at MIN_RATE.
    """

    waiting_for: WaitingFor
    request: object
    since: float
    size: int


@dataclass(slots=True)
class _BodyWait:
    """The wait for one body. size: bytes received at its start. seconds: waited until ``seen``."""

    request: object
    size: int
    seen: float
    seconds: float = 0.0
    is_counting: bool = True


class ProgressClock:
    """Decides for one connection whether the client is too slow.

    All times are in seconds on one clock, passed by the caller.
    """

    def __init__(self) -> None:
        self._window: _ProgressWindow | None = None
        self._body: _BodyWait | None = None

    def is_too_slow(self, waiting_for: WaitingFor | None, request: object, size: int, now: float) -> bool:
        """Record progress, and return whether the client has exceeded the time limit.

        waiting_for: None if the server does not wait for the client. request: identifies the request; a new
        one starts a new period. size: bytes received on the connection, or for READ bytes that the client has
        acknowledged.
        """
        window = self._window
        if self._is_body_overdue(waiting_for, request, size, now):
            return True
        if waiting_for is None:
            self._window = None
        elif window is None or window.waiting_for is not waiting_for or window.request is not request:
            self._window = _ProgressWindow(waiting_for, request, now, size)
        elif waiting_for is WaitingFor.READ:
            since = min(now, window.since + (size - window.size) / MIN_RATE)
            self._window = _ProgressWindow(waiting_for, request, since, size)
            return now - since >= READ_SECONDS
        elif now - window.since >= _limit(waiting_for):
            self._window = None
            if waiting_for in (WaitingFor.HEAD, WaitingFor.UNREAD):
                # However steadily the bytes arrive.
                return True
            return size - window.size < MIN_RATE * (now - window.since)
        return False

    def _is_body_overdue(
        self, waiting_for: WaitingFor | None, request: object, size: int, now: float
    ) -> bool:
        """Whether a whole body has taken too long, however steadily it arrives."""
        body = self._body
        is_waiting = waiting_for is WaitingFor.BODY
        if body is None or body.request is not request:
            self._body = _BodyWait(request, size, now) if is_waiting else None
            return False
        if body.is_counting:
            body.seconds += now - body.seen
        body.seen, body.is_counting = now, is_waiting
        return is_waiting and body.seconds > WHOLE_BODY_SECONDS + (size - body.size) / WHOLE_BODY_RATE


def _limit(waiting_for: WaitingFor) -> float:
    if waiting_for is WaitingFor.BODY:
        return BODY_SECONDS
    return UNREAD_SECONDS if waiting_for is WaitingFor.UNREAD else HEAD_SECONDS
