"""Polling of the registry: keys and references are updated if and only if its revision changes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from app.auth.authenticator import ANONYMOUS, Authenticator
from app.domain.entities import ApiKey
from app.domain.errors import NotAuthenticated, Unavailable
from app.serving.refresher import Refresher, RegistryRevision
from app.settings import Settings


class Registry(RegistryRevision):
    def __init__(self) -> None:
        self.now = 1
        self.known: list[ApiKey] = []
        self.down = False
        self.asked = 0
        self.keys_read = 0

    def revision(self) -> int:
        self.asked += 1
        if self.down:
            raise Unavailable("The database is down.")
        return self.now

    def keys(self) -> Sequence[ApiKey]:
        self.keys_read += 1
        return self.known


class Cache:
    """Counts refreshes; fails as often as told."""

    def __init__(self) -> None:
        self.refreshed = 0
        self.failures = 0
        self.up_to_date = True

    async def refresh(self) -> None:
        self.refreshed += 1
        if self.failures:
            self.failures -= 1
            raise Unavailable("The new version cannot be read.")


class World:
    def __init__(self, seconds: float = 60.0) -> None:
        self.registry, self.cache, self.authenticator = Registry(), Cache(), Authenticator(Settings())
        self.refresher = Refresher(self.registry, self.authenticator, self.cache, seconds=seconds)  # type: ignore[arg-type]


def test_nothing_is_read_while_the_revision_is_unchanged():
    async def story() -> None:
        world = World()
        for _ in range(3):
            await world.refresher.refresh()
        assert (world.registry.asked, world.registry.keys_read, world.cache.refreshed) == (3, 1, 1)
        world.registry.now = 2
        await world.refresher.refresh()
        assert (world.registry.keys_read, world.cache.refreshed) == (2, 2)
        await world.refresher.stop()

    asyncio.run(story())


def test_new_keys_are_accepted_after_a_new_revision():
    async def story() -> None:
        world = World()
        with pytest.raises(Unavailable):
            world.authenticator.identify({})
        await world.refresher.refresh()
        assert world.authenticator.identify({}) is ANONYMOUS
        world.registry.known = [ApiKey("key_1", "n", "d", frozenset({"admin"}), frozenset(), 0.0)]
        world.registry.now = 2
        await world.refresher.refresh()
        with pytest.raises(NotAuthenticated):
            world.authenticator.identify({})
        await world.refresher.stop()

    asyncio.run(story())


def test_a_partly_failed_refresh_is_repeated():
    async def story() -> None:
        world = World()
        world.cache.failures = 1
        await world.refresher.refresh()
        assert world.refresher.failing_since is not None
        await world.refresher.refresh()
        assert world.refresher.failing_since is None
        assert world.cache.refreshed == 2
        await world.refresher.stop()

    asyncio.run(story())


def test_an_unfinished_move_is_polled_again():
    async def story() -> None:
        world = World()
        await world.refresher.refresh()
        world.cache.up_to_date = False
        await world.refresher.refresh()
        assert world.cache.refreshed == 2
        world.cache.up_to_date = True
        await world.refresher.refresh()
        assert world.cache.refreshed == 2
        await world.refresher.stop()

    asyncio.run(story())


def test_the_default_poll_interval_is_below_a_second():
    assert Settings().refresh_seconds <= 0.5


def test_a_database_failure_is_logged_once_and_retried(caplog: pytest.LogCaptureFixture):
    async def story() -> None:
        world = World(seconds=0.005)
        await world.refresher.start()
        world.registry.down = True
        await asyncio.sleep(0.1)
        assert world.refresher.failing_since is not None
        assert world.authenticator.identify({}) is ANONYMOUS
        world.registry.down = False
        await asyncio.sleep(0.1)
        assert world.refresher.failing_since is None
        await world.refresher.stop()
        asked = world.registry.asked
        await asyncio.sleep(0.05)
        assert world.registry.asked == asked, "nothing goes on after the end"

    asyncio.run(story())
    assert caplog.text.count("cannot be read") == 1
    assert caplog.text.count("can be read again") == 1
