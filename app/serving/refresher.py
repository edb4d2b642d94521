"""Polling of the registry: reloads API keys and model references when its revision changes."""

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
    """What the refresher reads; both methods block."""

    def revision(self) -> int:
        """The revision of the registry, which every change of models and keys increments."""
        ...

    def keys(self) -> Sequence[ApiKey]:
        """All current API keys."""
        ...


class Refresher:
    """Reads the revision every ``seconds``, and updates authenticator and cache when it has changed.

    While the database cannot be read, both keep their state. failing_since: start of the failure in seconds
    since the epoch; None without one.
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
        # A separate thread: a read that hangs must not delay loads, nor loads these reads.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="stms-revision")
        self._task: asyncio.Task[None] | None = None
        self.failing_since: float | None = None

    async def start(self) -> None:
        """Refresh once, then start the background task."""
        await self.refresh()
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Stop the background task."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def refresh(self) -> None:
        """Update keys and references now if necessary. A failure is logged and recorded, not raised."""
        async with self._lock:
            try:
                await self._follow()
            except Exception as error:  # noqa: BLE001 - every failure is retried at the next poll
                self._failed(error)
            else:
                self._recovered()

    async def _follow(self) -> None:
        revision = await self._read(self._registry.revision)
        if revision == self._revision and self._cache.up_to_date:
            return
        # Read after the revision: the next poll sees a change in between again, so none is missed.
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
            logger.error("the registry cannot be read, serving continues with what is loaded: %s", error)

    def _recovered(self) -> None:
        if self.failing_since is not None:
            logger.warning("the registry can be read again after %.1f s", time.time() - self.failing_since)
            self.failing_since = None
