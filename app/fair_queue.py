"""Turns of threads that wait for one place: the one whose owner used the least processor time goes first.

Requests that wait in the event loop take turns by `app.auth.places`, one after the other. The order here is
different, because one file may take a thousand times as long as the next, and the waiting threads block.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from app.domain.entities import Caller

_HALF_LIFE: Final = 60.0
"""Seconds after which work counts half."""
_FORGOTTEN: Final = 1e-3
"""Processor seconds below which a caller is forgotten."""
_POLL_SECONDS: Final = 0.1


class RecentWork:
    """Processor seconds that each tenant and each of its keys took; older work counts less. Thread-safe.

    clock: seconds of a monotonic clock.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._seconds: dict[str | Caller, float] = {}
        self._since = clock()

    def add(self, caller: Caller, seconds: float) -> None:
        """Count work that has been done."""
        with self._lock:
            self._age()
            for name in (caller.tenant, caller):
                self._seconds[name] = self._seconds.get(name, 0.0) + seconds

    def of(self, name: str | Caller) -> float:
        """The recent work of a tenant (text) or of one of its keys, for comparison with that of others."""
        return self._seconds.get(name, 0.0)

    def tenants(self) -> set[str]:
        """Tenants whose work is not forgotten."""
        with self._lock:
            self._age()
            return {name for name in self._seconds if isinstance(name, str)}

    def _age(self) -> None:
        now = self._clock()
        factor = 0.5 ** ((now - self._since) / _HALF_LIFE)
        aged = ((name, factor * seconds) for name, seconds in self._seconds.items())
        self._seconds = {name: seconds for name, seconds in aged if seconds >= _FORGOTTEN}
        self._since = now


@dataclass(slots=True, eq=False)
class _Waiting:
    caller: Caller


@dataclass(slots=True)
class FairQueue:
    """One place for work, which waiting threads get in turn. Thread-safe.

    Among the waiting threads, the tenant with the least recent work comes first, within it the key with the
    least, and within that the earliest thread. So many waiting callers delay a caller of another tenant by
    the running work only, not by all of theirs. is_taken: whether work runs.
    """

    work: RecentWork
    is_taken: bool = field(default=False, init=False)
    _waiting: list[_Waiting] = field(default_factory=list, init=False)
    _changed: threading.Condition = field(default_factory=threading.Condition, init=False)

    @contextmanager
    def turn(self, caller: Caller, check: Callable[[], None]) -> Iterator[None]:
        """Wait for the place, and keep it until the end of the block.

        check: called ten times a second while the thread waits; it ends the waiting by an exception.
        """
        mine = _Waiting(caller)
        with self._changed:
            self._waiting.append(mine)
            try:
                while self.is_taken or min(self._waiting, key=self._rank) is not mine:
                    check()
                    self._changed.wait(_POLL_SECONDS)
                self.is_taken = True
            finally:
                self._waiting.remove(mine)
                self._changed.notify_all()
        try:
            yield
        finally:
            with self._changed:
                self.is_taken = False
                self._changed.notify_all()

    def _rank(self, waiting: _Waiting) -> tuple[float, float]:
        """The least comes first; `min` takes the first of equals, which has waited longest."""
        return self.work.of(waiting.caller.tenant), self.work.of(waiting.caller)
