"""Work that a process repeats as long as it lives, and that must not end it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from app.domain.errors import ServiceError

logger = logging.getLogger(__name__)

Result = TypeVar("Result")


def until_beat(seconds: float) -> float:
    """Seconds until the next multiple of an interval on the monotonic clock of the machine.

    Tasks that wait in this way wake up together, so that an idle machine is woken less often.
    """
    return seconds - time.monotonic() % seconds


class BackgroundTask:
    """A task of the event loop, and a thread of its own for the calls of it that block."""

    def __init__(self, thread_name: str) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=thread_name)
        self._task: asyncio.Task[None] | None = None

    def start(self, work: Coroutine[object, object, None]) -> None:
        """Start the task."""
        self._task = asyncio.get_running_loop().create_task(work)

    async def cancel(self) -> None:
        """End the task, if it was started. The thread still takes calls."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def in_thread(self, call: Callable[[], Result]) -> Result:
        """The result of a call in the thread, which runs after earlier calls."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, call)

    async def stop(self, last: Callable[[], Awaitable[object]] | None = None, seconds: float = 2.0) -> bool:
        """End the task, run ``last``, and close. last: final work, for ``seconds`` at most.

        Returns whether it finished in that time.
        """
        await self.cancel()
        is_done = True
        if last is not None:
            try:
                async with asyncio.timeout(seconds):
                    await last()
            except TimeoutError:
                is_done = False
        self.close()
        return is_done

    def close(self) -> None:
        """Let the thread end after its current call; waiting calls are cancelled."""
        self._thread.shutdown(wait=False, cancel_futures=True)


class PeriodicWork:
    """Runs the parts of periodic work, each for itself.

    parts: their names. log: reports the first failure of a part, and that it works again, as one line each.
    failures: how often each part has failed since the start.
    """

    def __init__(self, parts: Iterable[str], log: logging.Logger = logger) -> None:
        self.failures: dict[str, int] = dict.fromkeys(parts, 0)
        self._failing: dict[str, int] = {}
        self._log = log

    def run(self, part: str, work: Callable[[], object]) -> bool:
        """Call ``work``, which is the part named ``part``; returns whether it succeeded."""
        try:
            work()
        except Exception as error:  # noqa: BLE001 - every failure is logged, counted and tried again
            self._failed(part, error)
            return False
        if part in self._failing:
            count = self._failing.pop(part)
            self._log.warning("periodic work %r succeeds again after %d failures", part, count)
        return True

    def _failed(self, part: str, error: Exception) -> None:
        self.failures[part] += 1
        self._failing[part] = self._failing.get(part, 0) + 1
        if self._failing[part] == 1:
            trace = None if isinstance(error, ServiceError) else error
            self._log.error("periodic work %r fails and is tried again: %s", part, error, exc_info=trace)
