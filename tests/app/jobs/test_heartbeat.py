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


def test_a_peer_is_dead_when_its_heartbeat_does_not_change():
    peers = Peers(timeout=5.0, late=2.0)
    assert peers.dead([worker("a", 1.0), worker("b", 1.0)], now=100.0) == []
    assert peers.dead([worker("a", 2.0), worker("b", 1.0)], now=104.0) == []
    assert names(peers.dead([worker("a", 3.0), worker("b", 1.0)], now=106.0)) == ["b"]
    assert names(peers.dead([worker("a", 3.0)], now=111.5)) == ["a"]


def test_no_clock_of_a_peer_is_trusted():
    peers = Peers(timeout=5.0, late=2.0)
    assert peers.dead([worker("slow", -1e9)], now=0.0) == []
    assert peers.dead([worker("slow", -1e9 + 1)], now=6.0) == []


def test_after_forget_every_peer_counts_as_just_seen():
    peers = Peers(timeout=5.0, late=2.0)
    peers.dead([worker("a")], now=0.0)
    peers.forget()
    assert peers.dead([worker("a")], now=6.0) == []
    assert names(peers.dead([worker("a")], now=12.0)) == ["a"]


def test_a_peer_that_was_late_before_a_pause_has_half_of_the_time_left():
    peers = Peers(timeout=4.0, late=2.0)
    peers.dead([worker("late"), worker("punctual", 1.0)], now=0.0)
    peers.dead([worker("late"), worker("punctual", 2.0)], now=2.5)
    peers.resume(now=60.0)
    assert peers.dead([worker("late"), worker("punctual", 2.0)], now=61.9) == []
    assert names(peers.dead([worker("late"), worker("punctual", 2.0)], now=62.1)) == ["late"]
    assert names(peers.dead([worker("punctual", 2.0)], now=66.0)) == ["punctual"]


def test_a_late_peer_that_returns_after_a_pause_is_observed_anew():
    peers = Peers(timeout=4.0, late=2.0)
    for now in (0.0, 3.0):
        peers.dead([worker("late")], now)
    peers.resume(now=60.0)
    peers.dead([worker("late", 1.0)], now=61.0)
    assert peers.dead([worker("late", 1.0)], now=64.9) == []


class Takeovers(list[list[str]]):
    def __call__(self, dead: Sequence[str]) -> None:
        self.append(list(dead))


def heartbeat(store: Store, took: Takeovers, **changes: Any) -> Heartbeat:
    arguments: dict[str, Any] = {
        "interval": 0.05,
        "timeout": 0.4,
        "units": lambda: ({"job_id": "job_1"},),
        "on_lost": lambda: None,
    }
    return Heartbeat(store, worker("me"), take_over=took, **arguments | changes)


def beats(store: Store) -> dict[str, float]:
    with store.read() as uow:
        return {row.executor_id: row.beat_at for row in uow.workers.all()}


def test_heartbeats_are_stored_and_dead_peers_taken_over(store: Store):
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


def test_a_worker_observes_its_peers_again_after_a_freeze(store: Store):
    with store.begin() as uow:
        uow.workers.beat(worker("peer", 1.0))
    took = Takeovers()
    clock = [1000.0]
    mine = heartbeat(store, took, interval=1.0, timeout=5.0, clock=lambda: clock[0])
    mine.beat()
    mine.check_peers()
    clock[0] += 60.0
    mine.beat()
    mine.check_peers()
    assert not took
    for _ in range(6):
        clock[0] += 1.0
        mine.beat()
        mine.check_peers()
    assert took == [["peer"]]
    # Repeated while the peer is listed: it may have taken more work before it noticed.
    mine.check_peers()
    assert took == [["peer"], ["peer"]]


@pytest.mark.parametrize("error", [Unavailable("The database is away."), ZeroDivisionError("surprise")])
def test_heartbeats_continue_after_an_error(sqlite_store: Store, error: Exception, caplog):
    failures = [error]

    def units() -> tuple[()]:
        if failures:
            raise failures.pop()
        return ()

    mine = heartbeat(sqlite_store, Takeovers(), units=units)
    mine.start()
    try:
        wait_for(lambda: "me" in beats(sqlite_store))
    finally:
        mine.stop()
    assert "heartbeat" in caplog.text


def test_a_heartbeat_that_fails_is_repeated_sooner(sqlite_store: Store, monkeypatch: pytest.MonkeyPatch):
    failures = [Unavailable("The database is away.")] * 2
    waits: list[float] = []

    def units() -> tuple[()]:
        if failures:
            raise failures.pop()
        return ()

    def wait(seconds: float) -> bool:
        waits.append(seconds)
        return len(waits) == 4

    mine = heartbeat(sqlite_store, Takeovers(), units=units, interval=1.0)
    monkeypatch.setattr(mine._stopping, "wait", wait)
    mine._send_heartbeats()
    assert waits[:3] == [1.0, 0.25, 0.25]
    assert 0.0 < waits[3] <= 1.0


def test_a_worker_that_ends_before_its_first_heartbeat_was_not_silent_for_long(
    store: Store, monkeypatch: pytest.MonkeyPatch
):
    """The simulation found it: such a worker was given up after less than two seconds."""
    mine = heartbeat(store, Takeovers())
    with monkeypatch.context() as patch:
        patch.setattr(store, "single", lambda: pytest.fail("it ends here"))
        with pytest.raises(pytest.fail.Exception):
            mine.beat()
    assert abs(beats(store)["me"] - time.time()) < 10.0


def test_a_heartbeat_reports_the_running_units(store: Store):
    mine = heartbeat(store, Takeovers())
    for _ in range(2):
        mine.beat()
    with store.read() as uow:
        (row,) = uow.workers.all()
    assert row.units == ({"job_id": "job_1"},)
    assert row.lost_at is None


def test_a_worker_marked_as_lost_is_informed_and_stops_its_heartbeat(store: Store):
    lost = threading.Event()
    mine = heartbeat(store, Takeovers(), on_lost=lost.set)
    mine.beat()
    mine.start()
    with store.begin() as uow:
        assert uow.workers.mark_lost("me")
    try:
        assert lost.wait(120.0)
    finally:
        mine.stop()
    with store.read() as uow:
        (row,) = uow.workers.all()
    assert row.lost_at is not None
    # A worker that starts under the same name is listed again.
    heartbeat(store, Takeovers()).beat()
    with store.read() as uow:
        assert uow.workers.all()[0].lost_at is None


def test_a_worker_that_is_no_longer_listed_is_lost(store: Store):
    lost = threading.Event()
    mine = heartbeat(store, Takeovers(), on_lost=lost.set)
    mine.beat()
    with store.begin() as uow:
        uow.workers.forget("me")
    mine.beat()
    assert lost.is_set()
    with store.read() as uow:
        assert not uow.workers.all()


def test_one_of_several_peers_marks_a_worker_as_lost_unless_its_heartbeat_has_changed(store: Store):
    with store.begin() as uow:
        uow.workers.beat(worker("peer", 1.0))
        assert not uow.workers.mark_lost("peer", 0.5)
        assert uow.workers.mark_lost("peer", 1.0)
        assert not uow.workers.mark_lost("peer", 1.0)


def test_a_heartbeat_that_never_started_can_be_stopped(sqlite_store: Store):
    heartbeat(sqlite_store, Takeovers()).stop()
