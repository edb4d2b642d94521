"""Polling of the registry: API keys and model references that changed are followed."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import time
from collections.abc import Callable, Collection, Mapping
from typing import Final, Protocol, TypeVar

from app.auth.authenticator import Authenticator
from app.domain.entities import ModelVersion
from app.domain.errors import Unavailable
from app.processes.periodic import BackgroundTask, until_beat
from app.processes.scoreboard import Scoreboard, Slot
from app.serving.cache import ModelCache
from app.serving.loader import RegistryChanges

logger = logging.getLogger(__name__)

Read = TypeVar("Read")

CHANGED: Final = signal.SIGUSR1
"""Tells a query process that the registry has changed."""
OTHERS_SECONDS: Final = 1.5
"""How long a change waits until the query processes serve it."""
_OTHERS_POLL_SECONDS: Final = 0.002


class Registry(Protocol):
    """The registry that the refresher reads; `changes` and `resolve_all` block."""

    def is_at(self, revision: int) -> bool:  # noqa: ARG002 - for those that can tell
        """Whether this is certainly the registry's revision, so that nothing has changed since."""
        return False

    def changes(self, after: int | None) -> RegistryChanges | None:
        """The changes after a revision; None if there are none. after: None to read everything."""
        ...

    def resolve_all(self, references: Collection[str]) -> Mapping[str, ModelVersion]:
        """The versions that references resolve to, without references that no longer exist."""
        ...


class Refresher:
    """Reads the changes of the registry every ``seconds``, and passes them to authenticator and cache.

    While the database cannot be read, both keep their state. failing_since: start of the failure in seconds
    since the epoch; None without one. slot, scoreboard: where this process writes the revision that it
    serves, and reads the revisions of the others.
    """

    def __init__(
        self,
        registry: Registry,
        authenticator: Authenticator,
        cache: ModelCache,
        *,
        seconds: float,
        slot: Slot | None = None,
        scoreboard: Scoreboard | None = None,
    ) -> None:
        self._slot, self._scoreboard = slot, scoreboard
        self._announcing: set[asyncio.Task[None]] = set()
        self._registry = registry
        self._authenticator = authenticator
        self._cache = cache
        self._seconds = seconds
        self._revision: int | None = None
        self._current_at = time.monotonic()
        self._lock = asyncio.Lock()
        self._changed = asyncio.Event()
        self._next_look: asyncio.TimerHandle | None = None
        # A separate thread, so that a read that hangs does not delay loads, nor loads these reads.
        self._background = BackgroundTask("stms-revision")
        self.failing_since: float | None = None

    @property
    def lag_seconds(self) -> float:
        """Age in seconds of the registry's state that is served at least.

        It is below the interval between two polls while the database answers and no reference is moving.
        """
        return max(0.0, time.monotonic() - min(self._current_at, self._cache.moving_since))

    @property
    def was_read(self) -> bool:
        """Whether the registry, and with it the API keys, was read at least once."""
        return self._revision is not None

    @property
    def age_seconds(self) -> float:
        """Seconds since the start of the last poll that could read the registry."""
        return max(0.0, time.monotonic() - self._current_at)

    @property
    def failing_seconds(self) -> float:
        """For how long the registry could not be read; 0 while it can."""
        since = self.failing_since
        return 0.0 if since is None else max(0.0, time.time() - since)

    async def start(self) -> None:
        """Poll once, then start the background task."""
        await self._poll()
        self._background.start(self._run())

    async def follow_signals(self) -> None:
        """Poll now, and immediately when another process sends the signal `CHANGED`. Only in the main thread.

        Changes from now on wait for this process; earlier changes are read here.
        """
        asyncio.get_running_loop().add_signal_handler(CHANGED, self._changed.set)
        if self._slot is not None:
            self._slot.follows_signals = True
        await self._poll()

    async def stop(self) -> None:
        """Stop the background task."""
        await self._background.stop()

    async def refresh(self, model: str | None = None) -> None:
        """Read the registry now, so that this process serves every change that is already committed.

        model: also wait, for a limited time, until the references to this model have moved. Raises
        Unavailable if the registry cannot be read, so that no change is confirmed before it is served.
        """
        error = await self._poll()
        if error is not None:
            raise Unavailable(
                "The registry cannot be read: a change may be stored, but is not in effect here yet.",
                code="registry_unavailable",
            ) from error
        if model is not None:
            await self._cache.settle(model)
        await self._wait_for_others()

    async def _wait_for_others(self) -> None:
        """Signal the query processes to read the registry, and wait until they serve the same revision.

        It returns after `OTHERS_SECONDS`; processes that did not answer follow with their next poll.
        """
        wanted = float(self._revision or 0)
        behind = self._behind(wanted)
        for slot in behind:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(slot.pid, CHANGED)
        deadline = time.monotonic() + OTHERS_SECONDS
        while behind and time.monotonic() < deadline:
            await asyncio.sleep(_OTHERS_POLL_SECONDS)
            behind = self._behind(wanted)

    def _behind(self, revision: float) -> list[Slot]:
        """The slots of other processes that react to signals and serve an older revision.

        Starting processes are about to answer queries, and processes that shut down may still do so.
        """
        if self._scoreboard is None or self._slot is None:
            return []
        others = [slot for slot in self._scoreboard.slots if slot.index != self._slot.index]
        return [slot for slot in others if slot.follows_signals and slot.revision < revision]

    async def _poll(self) -> Exception | None:
        """Follow the registry; a failure is logged, recorded and returned."""
        async with self._lock:
            try:
                await self._follow()
            except Exception as error:  # noqa: BLE001 - every failure is retried at the next poll
                self._failed(error)
                return error
            self._recovered()
            return None

    async def _follow(self) -> None:
        started, before = time.monotonic(), self._current_at
        if self._is_current():
            return
        changes = await self._read(lambda: self._registry.changes(self._revision))
        if changes is not None:
            if self._revision is not None and changes.revision < self._revision:
                logger.error(
                    "the registry went back from revision %d to %d: the database was restored, or a failover"
                    " lost changes; keys and references are read again",
                    self._revision,
                    changes.revision,
                )
            if changes.models is None:
                self._authenticator.replace(changes.keys, changes.revocations)
            elif changes.keys or changes.revocations:
                self._authenticator.update(changes.keys, changes.revocations)
            self._cache.watches.follow(changes.models, changes.monitors, changes.shadows)
            references = self._cache.begin_refresh(changes.models)
            if references:
                self._cache.follow(references, await self._resolve(references), before)
            # Last, so that all of it is repeated if one of the reads fails.
            self._revision = changes.revision
            self._announce(changes.revision)
        self._current_at = started

    def _is_current(self) -> bool:
        """Whether this process certainly serves the registry's revision. It does not block."""
        started = time.monotonic()
        self._cache.evict_unused()
        if self._revision is None or not self._registry.is_at(self._revision):
            return False
        self._current_at = started
        return True

    def _announce(self, revision: int) -> None:
        """Write the revision into the slot as soon as the references that moved have moved."""
        slot = self._slot
        if slot is None:
            return

        async def announce() -> None:
            await self._cache.settle(None)
            if self._revision == revision:
                slot.revision = float(revision)

        task = asyncio.get_running_loop().create_task(announce())
        self._announcing.add(task)
        task.add_done_callback(self._announcing.discard)

    async def _resolve(self, references: Collection[str]) -> Mapping[str, ModelVersion]:
        try:
            return await self._read(lambda: self._registry.resolve_all(references))
        except Unavailable:
            raise
        except Exception:
            # Without a version the references are removed, and each is resolved by its own queries, so a row
            # that cannot be read fails these alone.
            logger.exception("%d references could not be resolved together", len(references))
            return {}

    async def _run(self) -> None:
        try:
            while True:
                self._look_later()
                await self._changed.wait()
                self._changed.clear()
                await self._poll()
        finally:
            if self._next_look is not None:
                self._next_look.cancel()

    def _look_later(self) -> None:
        if self._next_look is not None:
            self._next_look.cancel()
        self._next_look = asyncio.get_running_loop().call_later(until_beat(self._seconds), self._look)

    def _look(self) -> None:
        """Poll if the registry may have changed, and look again later if it has not.

        A callback costs an idle process less than a task that waits with a timeout.
        """
        is_current = False
        try:
            is_current = self.failing_since is None and self._is_current()
        finally:
            # An error here probably also occurs in the poll, which tries again.
            if is_current:
                self._look_later()
            else:
                self._changed.set()

    async def _read(self, read: Callable[[], Read]) -> Read:
        return await self._background.in_thread(read)

    def _failed(self, error: Exception) -> None:
        if self.failing_since is None:
            self.failing_since = time.time()
            logger.error("the registry cannot be read, serving continues with what is loaded: %s", error)

    def _recovered(self) -> None:
        if self.failing_since is not None:
            logger.warning("the registry can be read again after %.1f s", time.time() - self.failing_since)
            self.failing_since = None
