"""Notifications of queued work."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.jobs.engine.config import JOB_QUEUE, UNIT_QUEUE
from app.jobs.engine.wakeups import LIKELY, Wakeups, notify
from app.store.engine import open_engine
from app.store.unit_of_work import Store
from tests.app.jobs.conftest import wait_for


@pytest.fixture
def likely() -> threading.Event:
    return threading.Event()


@pytest.fixture
def wakeups(store: Store, likely: threading.Event) -> Iterator[Wakeups]:
    engine = open_engine(store.engine.url.render_as_string(hide_password=False), pool_size=1)
    listening = Wakeups(engine, "local-0", likely.set)
    listening.start()
    wait_for(lambda: listening._is_listening)
    yield listening
    listening.stop()


def waited(wakeups: Wakeups, queue: str) -> float:
    began = time.monotonic()
    wakeups.wait(queue)
    return time.monotonic() - began


def test_a_worker_waits_until_it_is_notified_of_its_queue(
    store: Store, wakeups: Wakeups, likely: threading.Event
):
    sender = threading.Timer(0.2, notify, (store.engine, JOB_QUEUE))
    sender.start()
    assert 0.1 < waited(wakeups, JOB_QUEUE) < 4.0
    sender.join()
    assert likely.is_set(), "a job that is in the queue needs a solver soon"
    likely.clear()
    # A notification that is sent before a thread waits is kept; that of another queue wakes none.
    notify(store.engine, UNIT_QUEUE)
    wait_for(lambda: wakeups._events[UNIT_QUEUE].is_set())
    assert not wakeups._events[JOB_QUEUE].is_set()
    assert waited(wakeups, UNIT_QUEUE) < 4.0
    assert not likely.is_set()
    notify(store.engine, LIKELY)
    wait_for(likely.is_set)
    assert not any(event.is_set() for event in wakeups._events.values())
    threading.Timer(0.2, wakeups.stop).start()
    assert waited(wakeups, JOB_QUEUE) < 4.0, "stopping ends every wait"


def test_workers_beside_one_file_are_all_told_and_a_dead_one_hinders_nobody(sqlite_store: Store):
    folder = Path(sqlite_store.engine.url.database).parent
    os.mkfifo(folder / "local-7.wake")
    (folder / "local-0.wake").write_text("left behind")
    address = sqlite_store.engine.url.render_as_string(hide_password=False)
    several = [Wakeups(open_engine(address, pool_size=1), f"local-{number}") for number in (0, 1)]
    for one in several:
        one.start()
    wait_for(lambda: all(one._is_listening for one in several))
    notify(sqlite_store.engine, UNIT_QUEUE)
    for one in several:
        assert waited(one, UNIT_QUEUE) < 4.0
        one.stop()
    assert [file.name for file in folder.glob("*.wake")] == ["local-7.wake"]
