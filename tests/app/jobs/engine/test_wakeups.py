"""Notifications of queued work."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from app.jobs.engine.config import JOB_QUEUE, UNIT_QUEUE
from app.jobs.engine.wakeups import Wakeups, notify
from app.store.engine import open_engine
from app.store.unit_of_work import Store
from tests.app.jobs.conftest import wait_for


@pytest.fixture
def wakeups(store: Store) -> Iterator[Wakeups]:
    listening = Wakeups(open_engine(store.engine.url.render_as_string(hide_password=False), pool_size=1))
    listening.start()
    yield listening
    listening.stop()


def waited(wakeups: Wakeups, queue: str) -> float:
    began = time.monotonic()
    wakeups.wait(queue)
    return time.monotonic() - began


def test_a_worker_waits_until_it_is_notified_of_its_queue(store: Store, wakeups: Wakeups):
    if store.engine.dialect.name == "sqlite":
        notify(store.engine, JOB_QUEUE)
        assert waited(wakeups, JOB_QUEUE) < 4.0, "without notifications it polls as before"
        return
    wait_for(lambda: wakeups._is_listening)
    sender = threading.Timer(0.2, notify, (store.engine, JOB_QUEUE))
    sender.start()
    assert 0.1 < waited(wakeups, JOB_QUEUE) < 4.0
    sender.join()
    # A notification that is sent before a thread waits is kept; that of another queue wakes none.
    notify(store.engine, UNIT_QUEUE)
    wait_for(lambda: wakeups._events[UNIT_QUEUE].is_set())
    assert not wakeups._events[JOB_QUEUE].is_set()
    assert waited(wakeups, UNIT_QUEUE) < 4.0
    threading.Timer(0.2, wakeups.stop).start()
    assert waited(wakeups, JOB_QUEUE) < 4.0, "stopping ends every wait"
