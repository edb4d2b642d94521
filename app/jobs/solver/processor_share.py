"""The share of the processor that a solver gets beside other programs, and whether the solver starves.

Compared with queries, a solver has a small weight. On a machine with much other work it would hardly run. So
a solver that waits far longer than it runs gets the weight of a normal session until it no longer waits.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

from app.processes.os_process import IDLE_NICENESS, processor_times, set_session_niceness

Times = dict[int, tuple[int, int]]
"""Nanoseconds that each thread has run and waited, by thread id."""

_POLL_SECONDS: Final = 2.0
_STARVED: Final = 5.0
"""Seconds of waiting per second of running.

With one other session, a solver of niceness 5 waits 3 seconds.
"""
_LEAST_WAIT: Final = 0.5
"""Seconds of waiting per second; if a solver waits less, it hardly wants to run."""


class ProcessorShare:
    """Checks every two seconds how long the threads of this process have run and waited for the processor.

    niceness: of the session while the solver does not starve. `IDLE_NICENESS` is never changed, because the
    operator wants the solver to compute only while nothing else does. report: called with True when the
    solver begins to starve, and with False when it waits no longer than it runs.
    """

    def __init__(
        self,
        niceness: int,
        report: Callable[[bool], None],
        times: Callable[[], Times] = processor_times,
        clock: Callable[[], float] = time.monotonic,
        set_niceness: Callable[[int], object] = set_session_niceness,
    ) -> None:
        self._niceness, self._report, self._times, self._clock = niceness, report, times, clock
        self._set_niceness = set_niceness
        self._before, self._at = times(), clock()
        self.starves = False

    def start(self) -> None:
        """Poll in a thread of its own until the process ends."""
        threading.Thread(target=self._loop, name="processor-share", daemon=True).start()

    def poll(self) -> None:
        """Change the share if the solver has begun or ceased to starve since the last poll."""
        ran, waited = self._since_last_poll()
        ratio = 1.0 if self.starves else _STARVED
        if (waited > max(ratio * ran, _LEAST_WAIT)) != self.starves:
            self.starves = not self.starves
            if self._niceness < IDLE_NICENESS:
                self._set_niceness(0 if self.starves else self._niceness)
            self._report(self.starves)

    def _since_last_poll(self) -> tuple[float, float]:
        """Seconds that all threads have run and waited, per second."""
        times, now = self._times(), self._clock()
        before, seconds = self._before, 1e9 * max(now - self._at, 1e-3)
        self._before, self._at = times, now
        ran, waited = (
            sum(time[place] - before.get(thread, (0, 0))[place] for thread, time in times.items()) / seconds
            for place in (0, 1)
        )
        return ran, waited

    def _loop(self) -> None:
        while True:
            time.sleep(_POLL_SECONDS)
            self.poll()
