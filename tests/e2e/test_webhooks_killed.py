"""Events reach their receivers although workers and the database are killed, and receivers are frozen."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from app.domain.errors import Unavailable
from app.services import models
from app.settings import Settings
from app.store.engine import open_engine
from app.store.migrate import upgrade
from app.store.unit_of_work import Store
from tests.app.webhook_rows import ROOT, add_webhook, deliveries, publish_version
from tests.receiver import Receiver, receiver
from tests.system.deployment import Deployment
from tests.system.postgres import Shutdown, postgres
from tests.system.processes import Process, free_port, wait_for

pytestmark = pytest.mark.long

EVENTS = 60
SLOW = 0.1
"""Seconds that an answer takes, so that a worker is killed in the middle."""


@contextmanager
def worker(address: str, folder: Path, *origins: str) -> Iterator[None]:
    """A worker process, which is killed at the end of the block."""
    settings = {
        "STMS_WEBHOOKS": ",".join(origins),
        "STMS_WEBHOOK_SECRET": ROOT,
        "STMS_HEARTBEAT_SECONDS": "0.5",
        "STMS_TAKEOVER_SECONDS": "2",
        "STMS_SPARE_SOLVER": "false",
    }
    folder.mkdir(exist_ok=True)
    with Deployment(folder, workers=1, database=address, is_new=False, settings=settings) as running:
        yield
        running["worker-0"].kill()


def move_alias(store: Store, times: int) -> None:
    """Moves of an alias, each with an event."""
    for _ in range(times):
        revision = models.alias_revision(store, "letters", "live") or None
        models.point_alias(store, Settings(), "letters", "live", 1, revision)


def ids(found: Receiver) -> set[str]:
    return {headers["webhook-id"] for headers, _ in found.requests}


def all_delivered(store: Store, webhook_id: str) -> bool:
    return {delivery.state for delivery in deliveries(store, webhook_id)} == {"delivered"}


@contextmanager
def slow_receiver() -> Iterator[Receiver]:
    def status(_number: int) -> int:
        time.sleep(SLOW)
        return 200

    with receiver(status) as found:
        yield found


def test_a_worker_that_is_killed_loses_no_event(database_address: str, tmp_path: Path):
    store = Store(open_engine(database_address))
    publish_version(store, "letters")
    with slow_receiver() as found:
        webhook_id = add_webhook(store, url=found.url)
        move_alias(store, EVENTS)
        for least in (5, 20, 40):
            with worker(database_address, tmp_path / "worker", found.url):
                wait_for(lambda least=least: len(found.requests) >= least)
        assert not all_delivered(store, webhook_id), "the workers were killed in the middle"
        move_alias(store, 3)
        with worker(database_address, tmp_path / "worker", found.url):
            wait_for(lambda: all_delivered(store, webhook_id))
    assert ids(found) == {delivery.event_id for delivery in deliveries(store, webhook_id)}
    assert len(ids(found)) == EVENTS + 3
    assert len(found.requests) < EVENTS + 3 + 4 * 2, "only what was being sent is sent twice"
    store.dispose()


def test_a_database_that_is_killed_loses_no_event(tmp_path: Path):
    with postgres(settings={"fsync": "off"}) as server, slow_receiver() as found:
        address = server.create_database("stms")
        upgrade(address)
        store = Store(open_engine(address))
        publish_version(store, "letters")
        webhook_id = add_webhook(store, url=found.url)
        move_alias(store, EVENTS)
        with worker(address, tmp_path / "worker", found.url):
            wait_for(lambda: len(found.requests) >= 10)
            server.stop(Shutdown.IMMEDIATE)
            with pytest.raises(Unavailable):
                move_alias(store, 1)
            sent = len(found.requests)
            time.sleep(3.0)
            assert len(found.requests) <= sent + 2, "what cannot be recorded is not sent again and again"
            server.start()
            move_alias(store, 2)
            wait_for(lambda: all_delivered(store, webhook_id))
        found_ids = {delivery.event_id for delivery in deliveries(store, webhook_id)}
        assert ids(found) == found_ids
        assert len(found_ids) == EVENTS + 2
        store.dispose()


def test_a_receiver_that_is_frozen_delays_nobody(sqlite_address: str, tmp_path: Path):
    store = Store(open_engine(sqlite_address))
    publish_version(store, "letters")
    port = free_port()
    command = [sys.executable, "-m", "http.server", "--bind", "127.0.0.1", str(port)]
    frozen = f"http://127.0.0.1:{port}"
    with receiver() as quick, Process("frozen", command, tmp_path, url=frozen) as other:
        other.send(signal.SIGSTOP)
        hanging = add_webhook(store, url=frozen)
        move_alias(store, 30)
        webhook_id = add_webhook(store, url=quick.url)
        with worker(sqlite_address, tmp_path / "worker", frozen, quick.url):
            move_alias(store, 1)
            wait_for(lambda: len(quick.requests) == 1)
            for count in range(2, 12):
                began = time.monotonic()
                move_alias(store, 1)
                wait_for(lambda count=count: len(quick.requests) == count)
                assert time.monotonic() - began < 8.0, "a frozen receiver is waited for for ten seconds"
            wait_for(lambda: all_delivered(store, webhook_id))
            wait_for(lambda: any(delivery.attempts for delivery in deliveries(store, hanging)))
        tried = [delivery for delivery in deliveries(store, hanging) if delivery.attempts]
        assert all("no whole answer within 10 s" in str(delivery.error) for delivery in tried)
        other.send(signal.SIGCONT)
    store.dispose()
