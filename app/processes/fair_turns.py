"""A limit on concurrent work whose free places are given to the waiting callers by turns."""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class FairTurns:
    """At most ``places`` pieces of work at once, and at most ``per_caller`` of one caller.

    Waiting callers are served round robin, however many pieces each has waiting. Work that is divided into
    short pieces, each with a turn of its own, therefore delays another caller by about one piece. Only the
    thread of the event loop may use it.
    """

    def __init__(self, places: int, per_caller: int) -> None:
        self._free = places
        self._per_caller = per_caller
        self._running: Counter[str] = Counter()
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()

    @asynccontextmanager
    async def turn(self, caller: str) -> AsyncIterator[None]:
        """Wait for a place, and keep it until the end of the block."""
        await self.acquire(caller)
        try:
            yield
        finally:
            self.release(caller)

    async def acquire(self, caller: str) -> None:
        """Wait for a place, which must be released."""
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(caller, deque()).append(place)
        self._grant()
        try:
            await place
        except asyncio.CancelledError:
            # A task may be cancelled after it received its place and before it continued.
            if place.done() and not place.cancelled():
                self.release(caller)
            else:
                self._forget(caller, place)
            raise

    def release(self, caller: str) -> None:
        """Give a place back."""
        self._free += 1
        self._running[caller] -= 1
        if not self._running[caller]:
            del self._running[caller]
        self._grant()

    def _grant(self) -> None:
        while self._free:
            caller = next((name for name in self._waiting if self._running[name] < self._per_caller), None)
            if caller is None:
                return
            place = self._waiting[caller].popleft()
            if self._waiting[caller]:
                self._waiting.move_to_end(caller)
            else:
                del self._waiting[caller]
            if not place.cancelled():
                self._free -= 1
                self._running[caller] += 1
                place.set_result(None)

    def _forget(self, caller: str, place: asyncio.Future[None]) -> None:
        waiting = self._waiting.get(caller)
        if waiting is not None and place in waiting:
            waiting.remove(place)
            if not waiting:
                del self._waiting[caller]
