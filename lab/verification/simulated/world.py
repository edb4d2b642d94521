"""Virtual time and processes. Everything that happens follows from the seed."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from random import Random
from typing import Any, Final

from greenlet import GreenletExit, getcurrent, greenlet

_MAX_EVENTS: Final = 200_000


class Process:
    """A simulated process. frozen_until, cut_off_until: virtual times when its pause and partition end."""

    def __init__(self, name: str, drift: float = 1.0) -> None:
        self.name = name
        self.drift = drift
        self.crashed = False
        self.frozen_until = 0.0
        self.cut_off_until = 0.0


class World:
    """The scheduler of all tasks of all processes, on one virtual clock."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.now = 0.0
        self.is_over = False
        self.log: list[str] = []
        self._queue: list[tuple[float, int, Process, greenlet]] = []
        self._events = 0
        self._hub = getcurrent()
        self._owners: dict[greenlet, Process] = {}

    @property
    def process(self) -> Process:
        """The process whose code runs."""
        return self._owners[getcurrent()]

    def note(self, text: str) -> None:
        """Write a line of the schedule."""
        self.log.append(f"{self.now:8.3f}  {text}")

    def spawn(self, process: Process, work: Callable[..., Any], *arguments: Any, delay: float = 0.0) -> None:
        """Start a thread of a process."""
        task = greenlet(lambda: work(*arguments), self._hub)
        self._owners[task] = process
        self._push(delay, process, task)

    def sleep(self, seconds: float) -> None:
        """Let other tasks run for some virtual time."""
        task = getcurrent()
        self._push(seconds, self._owners[task], task)
        self._hub.switch()

    def clock_of(self, process: Process) -> Callable[[], float]:
        """The monotonic clock of a process, which is a little fast or slow."""
        return lambda: 1000.0 + process.drift * self.now

    def run(self, until: float, is_done: Callable[[], bool]) -> None:
        """Run until the given time, or until nothing is left to do."""
        while self._queue and not is_done():
            if self._queue[0][0] > until:
                break
            at, number, process, task = heapq.heappop(self._queue)
            self.now = max(self.now, at)
            if process.crashed:
                continue
            if process.frozen_until > self.now:
                heapq.heappush(self._queue, (process.frozen_until, number, process, task))
                continue
            self._events += 1
            if self._events > _MAX_EVENTS:
                raise RuntimeError("the schedule does not end")
            task.switch()
        if not is_done():
            self.now = max(self.now, until)

    def close(self) -> None:
        """End every task that is left."""
        self.is_over = True
        for task in self._owners:
            if task and not task.dead:
                task.throw(GreenletExit)
        self._owners.clear()
        self._queue.clear()

    def _push(self, delay: float, process: Process, task: greenlet) -> None:
        # The number keeps the order of tasks that are due at the same time.
        number = self._events * 1000 + len(self._queue)
        heapq.heappush(self._queue, (self.now + delay, number, process, task))
