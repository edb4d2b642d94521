"""Turns of requests that need not be fast, so that many of them do not keep the event loop from others."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final

PER_SECOND: Final = 200.0
"""Requests that go on in a second."""
_BURST: Final = 8
"""Of them so many at once, such as the files of a page."""
_BYTES_PER_SECOND: Final = 64e6
"""Bytes of their responses."""


class PacedTurns:
    """A queue from which `PER_SECOND` requests go on in a second, and lanes, such as networks, alternate.

    A request costs the event loop some tenths of a millisecond, so they take a small part of its time, and a
    query never waits for more than a few of them. Only the thread of the event loop may use it.
    """

    def __init__(self) -> None:
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}
        self._due = 0.0
        """When all turns that were given would be over at the rate of `PER_SECOND`."""
        self._timer: asyncio.TimerHandle | None = None

    async def turn(self, lane: str) -> None:
        """Wait for the turn of a request, which comes after the earlier ones of its lane."""
        loop = asyncio.get_running_loop()
        if not self._waiting and self._seconds_to_wait(loop.time()) <= 0.0:
            self._due = max(self._due, loop.time()) + 1 / PER_SECOND
            return
        place = loop.create_future()
        self._waiting.setdefault(lane, deque()).append(place)
        if self._timer is None:
            self._timer = loop.call_later(self._seconds_to_wait(loop.time()), self._next)
        await place

    def charge(self, size: int) -> None:
        """Count ``size`` bytes of a response, which delay the next turns."""
        self._due += size / _BYTES_PER_SECOND

    def _seconds_to_wait(self, now: float) -> float:
        return self._due - now - (_BURST - 1) / PER_SECOND

    def _next(self) -> None:
        """Give the next turn to the lane that has waited longest since its last one."""
        loop = asyncio.get_running_loop()
        self._timer = None
        while self._waiting:
            lane = next(iter(self._waiting))
            places = self._waiting.pop(lane)
            place = places.popleft()
            if places:
                self._waiting[lane] = places
            if not place.done():
                place.set_result(None)
                # Without a burst: as long as requests wait, one goes on at a time.
                self._due = max(self._due, loop.time()) + 1 / PER_SECOND
                break
        if self._waiting:
            self._timer = loop.call_later(max(1 / PER_SECOND, self._seconds_to_wait(loop.time())), self._next)
