"""Work that is done again and again in the background: by a thread, or by a task of asyncio."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable


class Repeated:
    """Does ``work`` in a thread, after ``pause()`` seconds each time, until it is closed.

    work: its errors end the thread, so it catches those that it expects.
    """

    def __init__(self, work: Callable[[], None], pause: Callable[[], float]) -> None:
        self._work, self._pause = work, pause
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="stms-local", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Start no more work; what is running ends on its own."""
        self._closed.set()

    def _run(self) -> None:
        while not self._closed.wait(self._pause()):
            try:
                self._work()
            except RuntimeError:
                # The client may be closed while it asks.
                if not self._closed.is_set():
                    raise


class AsyncRepeated:
    """The same by a task of the running event loop."""

    def __init__(self, work: Callable[[], Awaitable[None]], pause: Callable[[], float]) -> None:
        self._work, self._pause = work, pause
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def close(self) -> None:
        """End the work."""
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._pause())
            await self._work()
