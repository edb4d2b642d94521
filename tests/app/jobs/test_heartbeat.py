from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any

import pytest

from app.domain.entities import Worker
from app.domain.errors import Unavailable
from app.jobs.heartbeat import Heartbeat, Peers
from app.store.unit_of_work import Store
from tests.app.jobs.conftest import wait_for


def worker(name: str, beat_at: float = 0.0) -> Worker:
    return Worker(name, "host", 1, started_at=0.0, beat_at=beat_at)


def names(workers: Sequence[Worker]) -> list[str]:
    return [worker.executor_id for worker in workers]


def test_a_peer_is_dead_when_its_beat_stands_still():
    peers = Peers(patience=5.0)
    assert peers.dead([worker("a", 1.0), worker("b", 1.0)], now=100.0) == []
    assert peers.dead([worker("a", 2.0), worker("b", 1.0)], now=104.0) == []
    assert names(peers.dead([worker("a", 3.0), worker("b", 1.0)], now=106.0)) == ["b"]
    assert names(peers.dead([worker("a", 3.0)], now=111.5)) == ["a"]


def test_no_clock_of_a_peer_is_trusted():
    peers = Peers(patience=5.0)
    assert peers.dead([worker("slow", -1e9)], now=0.0) == []
    assert peers.dead([worker("slow", -1e9 + 1)], now=6.0) == []


def test_after_forgetting_everybody_counts_as_just_seen():
    peers = Peers(patience=5.0)
    peers.dead([worker("a")], now=0.0)
    peers.forget()
    assert peers.dead([worker("a")], now=6.0) == []
    assert names(peers.dead([worker("a")], now=12.0)) == ["a"]


class Takeovers(list[list[str]]):
    def __call__(self, dead: Sequence[str]) -> None:
        self.append(list(dead))


def heartbeat(store: Store, took: Takeovers, **changes: Any) -> Heartbeat:
    given: dict[str, Any] = {
        "every": 0.05,
        "patience": 0.4,
        "doing": lambda: ({"job_id": "job_1"},),
        "lost": lambda: None,
    }
    return Heartbeat(store, worker("me"), take_over=took, **given | changes)


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
    # Until it is not listed any more: it may have taken up something before it knew.
    mine.look()
    assert took == [["peer"], ["peer"]]


@pytest.mark.parametrize("error", [Unavailable("The database is away."), ZeroDivisionError("surprise")])
def test_the_heart_goes_on_beating_after_an_error(sqlite_store: Store, error: Exception, caplog):
    failures = [error]

    def doing() -> tuple[()]:
        if failures:
            raise failures.pop()
        return ()

    mine = heartbeat(sqlite_store, Takeovers(), doing=doing)
    mine.start()
    try:
        wait_for(lambda: "me" in beats(sqlite_store))
    finally:
        mine.stop()
    assert "heartbeat" in caplog.text


def test_a_beat_tells_what_is_under_way(store: Store):
    mine = heartbeat(store, Takeovers())
    for _ in range(2):
        mine.beat()
    with store.read() as uow:
        (row,) = uow.workers.all()
    assert row.units == ({"job_id": "job_1"},)
    assert row.lost_at is None


def test_a_worker_that_was_given_up_is_told_and_beats_no_more(store: Store):
    told = threading.Event()
    mine = heartbeat(store, Takeovers(), lost=told.set)
    mine.beat()
    mine.start()
    with store.begin() as uow:
        assert uow.workers.mark_lost("me", 5.0)
    try:
        assert told.wait(20.0)
    finally:
        mine.stop()
    with store.read() as uow:
        (row,) = uow.workers.all()
    assert row.lost_at == 5.0
    # Who starts again under the name is on the list again.
    heartbeat(store, Takeovers()).beat()
    with store.read() as uow:
        assert uow.workers.all()[0].lost_at is None


def test_a_worker_that_nobody_knows_any_more_is_lost(store: Store):
    told = threading.Event()
    mine = heartbeat(store, Takeovers(), lost=told.set)
    mine.beat()
    with store.begin() as uow:
        uow.workers.forget("me")
    mine.beat()
    assert told.is_set()
    with store.read() as uow:
        assert not uow.workers.all()


def test_of_several_peers_one_gives_a_worker_up_and_none_whose_heart_beat_meanwhile(store: Store):
    with store.begin() as uow:
        uow.workers.beat(worker("peer", 1.0))
        assert not uow.workers.mark_lost("peer", 9.0, 0.5)
        assert uow.workers.mark_lost("peer", 9.0, 1.0)
        assert not uow.workers.mark_lost("peer", 9.0, 1.0)


def test_a_heartbeat_that_never_started_can_be_stopped(sqlite_store: Store):
    heartbeat(sqlite_store, Takeovers()).stop()
