"""Polling of the registry: keys and references are updated if and only if they changed."""

from __future__ import annotations

import asyncio
import math
import subprocess
import sys
import time
from collections.abc import Collection, Mapping, Sequence

import pytest

from app.auth.authenticator import Authenticator
from app.domain.entities import ApiKey, ModelVersion
from app.domain.errors import NotAuthenticated, Unavailable
from app.processes.scoreboard import Scoreboard
from app.services.keys import digest_of, new_text
from app.serving import refresher
from app.serving.loader import RegistryChanges
from app.serving.refresher import Refresher, Registry
from app.serving.watch import AnswerWatches
from app.settings import Settings
from tests.refusals import refused_as

TEXT = new_text("key_" + "1" * 24)
HEADERS = {b"authorization": b"Bearer " + TEXT.encode()}
KEY = ApiKey("key_" + "1" * 24, "n", digest_of(TEXT)[1], frozenset({"admin"}), frozenset(), 0.0)


class Book(Registry):
    """A registry in memory, which can be unreachable or damaged."""

    def __init__(self) -> None:
        self.now = 1
        self.known: list[ApiKey] = []
        self.models: Collection[str] | None = None
        self.error: Exception | None = None
        self.damage: Exception | None = None
        self.asked: list[int | None] = []

    def changes(self, after: int | None) -> RegistryChanges | None:
        self.asked.append(after)
        if self.error is not None:
            raise self.error
        if after == self.now:
            return None
        return RegistryChanges(self.now, self.known, None if after is None else self.models)

    def resolve_all(self, references: Collection[str]) -> Mapping[str, ModelVersion]:
        if self.damage is not None:
            raise self.damage
        return {
            name: ModelVersion("pets", self.now, None, None, "head", (), 2, "", {}, 0.0)
            for name in references
        }


class Cache:
    """Records what it is to follow. moving_since: as of `ModelCache`."""

    def __init__(self) -> None:
        self.followed: list[Mapping[str, ModelVersion]] = []
        self.settled: list[str] = []
        self.moving_since = math.inf
        self.watches = AnswerWatches()

    def begin_refresh(self, models: Collection[str] | None) -> list[str]:
        return [] if models is not None and "pets" not in models else ["pets"]

    def follow(self, references: Sequence[str], versions: Mapping[str, ModelVersion], since: float) -> None:
        assert references == ["pets"]
        assert since <= time.monotonic()
        self.followed.append(versions)

    async def settle(self, model: str) -> None:
        self.settled.append(model)

    def evict_unused(self) -> None:
        """Nothing is kept."""


class World:
    def __init__(self, seconds: float = 60.0) -> None:
        self.book, self.cache = Book(), Cache()
        self.authenticator = Authenticator(Settings(require_keys=True))
        self.refresher = Refresher(self.book, self.authenticator, self.cache, seconds=seconds)  # type: ignore[arg-type]


async def test_only_changes_after_the_last_revision_are_read():
    world = World()
    for _ in range(3):
        await world.refresher.refresh()
    assert (world.book.asked, len(world.cache.followed)) == ([None, 1, 1], 1)
    world.book.now, world.book.models = 5, ["cars"]
    await world.refresher.refresh("cars")
    assert (world.book.asked[-1], len(world.cache.followed)) == (1, 1), "nothing of model cars is served"
    assert world.cache.settled == ["cars"]
    world.book.now, world.book.models = 6, ["cars", "pets"]
    await world.refresher.refresh()
    assert (world.book.asked[-1], len(world.cache.followed)) == (5, 2)
    await world.refresher.stop()


async def test_a_registry_that_goes_back_is_reported(caplog: pytest.LogCaptureFixture):
    world = World()
    world.book.now = 9
    await world.refresher.refresh()
    world.book.now = 4
    await world.refresher.refresh()
    assert len(world.cache.followed) == 2, "the references are resolved again"
    await world.refresher.stop()
    assert "the registry went back from revision 9 to 4" in caplog.text


async def test_new_keys_are_accepted_after_a_new_revision():
    world = World()
    with pytest.raises(Unavailable):
        world.authenticator.identify(HEADERS)
    await world.refresher.refresh()
    with pytest.raises(NotAuthenticated):
        world.authenticator.identify(HEADERS)
    world.book.known, world.book.models = [KEY], []
    world.book.now = 2
    await world.refresher.refresh()
    assert world.authenticator.identify(HEADERS) is KEY
    await world.refresher.stop()


async def test_a_change_is_not_confirmed_while_the_registry_cannot_be_read():
    world = World()
    world.book.damage = Unavailable("The database is down.")
    with refused_as(Unavailable, "registry_unavailable"):
        await world.refresher.refresh("pets")
    assert world.refresher.failing_since is not None
    assert (world.cache.followed, world.cache.settled) == ([], [])
    world.book.damage = None
    await world.refresher.refresh("pets")
    assert world.refresher.failing_since is None
    assert world.book.asked == [None, None], "what was not followed is read again"
    assert len(world.cache.followed) == 1
    await world.refresher.stop()


async def test_a_version_that_cannot_be_read_is_no_failure_of_the_registry(caplog: pytest.LogCaptureFixture):
    world = World()
    world.book.damage = ValueError("no JSON")
    for _ in range(3):
        await world.refresher.refresh()
    assert world.refresher.failing_since is None
    assert world.cache.followed == [{}], "references without a version are resolved by their queries"
    await world.refresher.stop()
    assert caplog.text.count("could not be resolved together") == 1


async def test_the_lag_counts_from_the_last_poll_or_the_oldest_move():
    world = World()
    await world.refresher.refresh()
    assert 0.0 <= world.refresher.lag_seconds < 300.0
    world.cache.moving_since = time.monotonic() - 700.0
    assert 700.0 <= world.refresher.lag_seconds < 1000.0
    world.cache.moving_since = math.inf
    world.book.error = Unavailable("The database is down.")
    failed_from, before = time.monotonic(), world.refresher.lag_seconds
    await asyncio.sleep(0.05)
    with pytest.raises(Unavailable):
        await world.refresher.refresh()
    elapsed = time.monotonic() - failed_from
    assert elapsed / 2 < world.refresher.lag_seconds - before, "a poll that fails does not count"
    await world.refresher.stop()


def test_the_default_poll_interval_is_below_a_second():
    assert Settings().refresh_seconds <= 0.5


async def test_a_database_failure_is_logged_once_and_retried(caplog: pytest.LogCaptureFixture):
    world = World(seconds=0.005)
    world.book.known = [KEY]
    await world.refresher.start()
    world.book.error = Unavailable("The database is down.")
    while world.refresher.failing_since is None:
        await asyncio.sleep(0.01)
    assert world.authenticator.identify(HEADERS) is KEY
    world.book.error = None
    while world.refresher.failing_since is not None:
        await asyncio.sleep(0.01)
    await world.refresher.stop()
    asked = len(world.book.asked)
    await asyncio.sleep(0.05)
    assert len(world.book.asked) == asked, "nothing goes on after the end"
    assert caplog.text.count("cannot be read") == 1
    assert caplog.text.count("can be read again") == 1


QUERY_PROCESS = """
import signal, sys, time
from app.processes.scoreboard import Scoreboard, State
slot = Scoreboard.inherited(int(sys.argv[1])).slots[1]
slot.claim(State.STARTING)
def follow(*_):
    if sys.argv[2] == "follows":
        slot.revision = 5.0
signal.signal(signal.SIGUSR1, follow)
slot.state = State[sys.argv[3]]
slot.follows_signals = True
time.sleep(60)
"""


@pytest.mark.parametrize(
    ("behaviour", "state"),
    [("follows", "STARTING"), ("follows", "SERVING"), ("follows", "DRAINING"), ("hangs", "SERVING")],
)
def test_a_change_is_confirmed_once_the_query_processes_serve_it(monkeypatch, behaviour, state):
    """Also those that start, which have read the registry, and those that shut down, which still answer."""
    monkeypatch.setattr(refresher, "OTHERS_SECONDS", 30.0 if behaviour == "follows" else 0.3)
    scoreboard = Scoreboard.shared(2)
    assert scoreboard.file is not None
    world = World()
    world.refresher._slot, world.refresher._scoreboard = scoreboard.slots[0], scoreboard
    command = [sys.executable, "-c", QUERY_PROCESS, str(scoreboard.file), behaviour, state]

    async def story() -> None:
        world.book.now = 5
        started = time.monotonic()
        await world.refresher.refresh()
        assert (scoreboard.slots[1].revision == 5.0) is (behaviour == "follows")
        assert time.monotonic() - started < 20, "a process that hangs is not waited for"
        await asyncio.sleep(0)
        assert scoreboard.slots[0].revision == 5.0
        await world.refresher.stop()

    with subprocess.Popen(command, pass_fds=[scoreboard.file]) as process:
        try:
            while not scoreboard.slots[1].follows_signals:
                assert process.poll() is None
                time.sleep(0.01)
            asyncio.run(story())
        finally:
            process.kill()
    scoreboard.close()
