"""Keeping a server's keys and references true: one small read of the registry's clock at a time."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol, TypeVar

from app.auth.authenticator import Authenticator
from app.domain.entities import ApiKey
from app.serving.cache import ModelCache

logger = logging.getLogger(__name__)

Read = TypeVar("Read")


class RegistryRevision(Protocol):
    """What the refresher asks; both methods block."""

    def revision(self) -> int:
        """Revision of the registry."""
        ...

    def keys(self) -> Sequence[ApiKey]:
        """All API keys as they are now."""
        ...


class Refresher:
    """Asks for the clock every ``seconds``, and lets keys and cache follow when it has moved.

    While the database cannot be read everything goes on as it was.
    failing_since: when that began, in seconds since the epoch; None while all is well.
    """

    def __init__(
        self, registry: RegistryRevision, authenticator: Authenticator, cache: ModelCache, *, seconds: float
    ) -> None:
        self._registry = registry
        self._authenticator = authenticator
        self._cache = cache
        self._seconds = seconds
        self._revision: int | None = None
        self._lock = asyncio.Lock()
        # A thread of its own: a clock that hangs must not stop loads, nor the other way round.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="stms-revision")
        self._task: asyncio.Task[None] | None = None
        self.failing_since: float | None = None

    async def start(self) -> None:
        """Read once, then go on in the background."""
        await self.refresh()
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """End the background task."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def refresh(self) -> None:
        """Follow the registry now. A failure is logged and remembered, not raised."""
        async with self._lock:
            try:
                await self._follow()
            except Exception as error:  # noqa: BLE001 - whatever it was, the next beat tries again
                self._failed(error)
            else:
                self._recovered()

    async def _follow(self) -> None:
        revision = await self._read(self._registry.revision)
        if revision == self._revision and self._cache.up_to_date:
            return
        # Read after the clock: a change in between is seen again at the next beat, never missed.
        self._authenticator.replace(await self._read(self._registry.keys))
        await self._cache.refresh()
        self._revision = revision

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._seconds)
            await self.refresh()

    async def _read(self, read: Callable[[], Read]) -> Read:
        return await asyncio.get_running_loop().run_in_executor(self._thread, read)

    def _failed(self, error: Exception) -> None:
        if self.failing_since is None:
            self.failing_since = time.time()
            logger.error("the registry cannot be read, answering from what is loaded: %s", error)

    def _recovered(self) -> None:
        if self.failing_since is not None:
            logger.warning("the registry can be read again after %.1f s", time.time() - self.failing_since)
            self.failing_since = None
