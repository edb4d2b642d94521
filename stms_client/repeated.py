"""Work that is done again and again in the background: by a thread, or by a task of asyncio."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Awaitable, Callable


class Repeated:
    """Does ``work`` in a thread, after ``pause()`` seconds each time, until it is closed.

    work: its errors end the thread, so it catches those that it expects.
    """

    def __init__(self, work: Callable[[], None], pause: Callable[[], float]) -> None:
        self._work, self._pause = work, pause
        self._closed: dict[int, threading.Event] = {}
        self.begin()

    def is_here(self) -> bool:
        """Whether this process has a thread: that of the parent does not live on in the child of a fork."""
        return os.getpid() in self._closed

    def begin(self) -> None:
        """Start the thread in this process if it has none."""
        closed = threading.Event()
        if self._closed.setdefault(os.getpid(), closed) is closed:
            threading.Thread(target=self._run, args=(closed,), name="stms-local", daemon=True).start()

    def close(self) -> None:
        """Start no more work in this process; what is running ends on its own."""
        if self.is_here():
            self._closed[os.getpid()].set()

    def _run(self, closed: threading.Event) -> None:
        while not closed.wait(self._pause()):
            try:
                self._work()
            except RuntimeError:
                # The client may be closed while it asks.
                if not closed.is_set():
                    raise


class AsyncRepeated:
    """The same by a task of the running event loop."""

    def __init__(self, work: Callable[[], Awaitable[None]], pause: Callable[[], float]) -> None:
        self._work, self._pause = work, pause
        self._process = 0
        self.begin()

    def is_here(self) -> bool:
        """Whether a task of this process does the work: it ends with its event loop."""
        return self._process == os.getpid() and not self._task.done()

    def begin(self) -> None:
        """Start a task in the running event loop if this process has none."""
        if not self.is_here():
            self._process = os.getpid()
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def close(self) -> None:
        """End the work."""
        if not self.is_here():
            return
        loop = self._task.get_loop()
        if loop is not asyncio.get_running_loop():
            loop.call_soon_threadsafe(self._task.cancel)
            return
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._pause())
            await self._work()
