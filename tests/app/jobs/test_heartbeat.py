from __future__ import annotations

import threading
import time
from collections.abc import Sequence

import pytest

from app.domain.entities import Worker
from app.domain.errors import Unavailable
from app.jobs.heartbeat import Heartbeat, Peers
from app.store.unit_of_work import Store
from tests.app.jobs.conftest import wait_for


def worker(name: str, beat_at: float = 0.0) -> Worker:
    return Worker(name, "host", 1, started_at=0.0, beat_at=beat_at)


def test_a_peer_is_dead_when_its_beat_stands_still():
    peers = Peers(patience=5.0)
    assert peers.dead([worker("a", 1.0), worker("b", 1.0)], now=100.0) == []
    assert peers.dead([worker("a", 2.0), worker("b", 1.0)], now=104.0) == []
    assert peers.dead([worker("a", 3.0), worker("b", 1.0)], now=106.0) == ["b"]
    assert peers.dead([worker("a", 3.0)], now=111.5) == ["a"]


def test_no_clock_of_a_peer_is_trusted():
    peers = Peers(patience=5.0)
    assert peers.dead([worker("slow", -1e9)], now=0.0) == []
    assert peers.dead([worker("slow", -1e9 + 1)], now=6.0) == []


def test_after_forgetting_everybody_counts_as_just_seen():
    peers = Peers(patience=5.0)
    peers.dead([worker("a")], now=0.0)
    peers.forget()
    assert peers.dead([worker("a")], now=6.0) == []
    assert peers.dead([worker("a")], now=12.0) == ["a"]


class Takeovers(list[list[str]]):
    def __call__(self, dead: Sequence[str]) -> None:
        self.append(list(dead))


def heartbeat(store: Store, took: Takeovers, **changes: float) -> Heartbeat:
    return Heartbeat(store, worker("me"), **({"every": 0.05, "patience": 0.4} | changes), take_over=took)


def beats(store: Store) -> dict[str, float]:
    with store.read() as uow:
        return {row.executor_id: row.beat_at for row in uow.workers.all()}


def test_a_heartbeat_is_seen_and_takes_over_from_the_dead_only(store: Store):
    with store.begin() as uow:
        uow.workers.beat(worker("dead", 1.0))
    took = Takeovers()
    mine = heartbeat(store, took)
    mine.beat()
    first = beats(store)["me"]
    assert abs(first - time.time()) < 10.0
    mine.start()
    try:
        wait_for(lambda: took)
        assert beats(store)["me"] > first
    finally:
        mine.stop()
    assert took[0] == ["dead"]


def test_a_worker_that_was_frozen_watches_its_peers_anew(store: Store, monkeypatch):
    with store.begin() as uow:
        uow.workers.beat(worker("peer", 1.0))
    took = Takeovers()
    mine = heartbeat(store, took, every=1.0, patience=5.0)
    clock = [1000.0]
    monkeypatch.setattr("app.jobs.heartbeat.time.monotonic", lambda: clock[0])
    mine.beat()
    mine.look()
    clock[0] += 60.0
    mine.beat()
    mine.look()
    assert not took
    for _ in range(6):
        clock[0] += 1.0
        mine.beat()
        mine.look()
    assert took == [["peer"]]


@pytest.mark.parametrize("error", [Unavailable("The database is away."), ZeroDivisionError("surprise")])
def test_the_heart_goes_on_beating_after_an_error(sqlite_store: Store, error: Exception, caplog):
    mine = heartbeat(sqlite_store, Takeovers())
    failed = threading.Event()
    beat = mine.beat

    def beat_that_fails_once() -> None:
        if not failed.is_set():
            failed.set()
            raise error
        beat()

    mine.beat = beat_that_fails_once  # type: ignore[method-assign]
    mine.start()
    try:
        wait_for(lambda: "me" in beats(sqlite_store))
    finally:
        mine.stop()
    assert "heartbeat" in caplog.text


def test_a_heartbeat_that_never_started_can_be_stopped(sqlite_store: Store):
    heartbeat(sqlite_store, Takeovers()).stop()
