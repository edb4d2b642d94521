"""Answers to probes are computed at most once a second, by one thread, and by nothing that requests use."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from app.domain.object_address import ObjectAddress
from app.services import health, webhooks
from app.services.health import ComputedOncePerSecond, Probes, database_health
from app.store import object_bodies
from app.store.opening import open_objects
from app.store.unit_of_work import Store
from tests.app.webhook_rows import add_webhook

OPEN = object_bodies._open
"""Before a fixture replaces it."""


async def test_any_number_of_probes_share_one_computation_a_second():
    calls: list[str] = []

    def compute() -> int:
        calls.append(threading.current_thread().name)
        time.sleep(0.05)
        return len(calls)

    answer = ComputedOncePerSecond(compute, "test")
    assert set(await asyncio.gather(*[answer.get() for _ in range(300)])) == {1}
    assert await answer.get() == 1
    answer.seconds = 0.0
    assert await answer.get() == 2
    answer.close()
    assert len(calls) == 2
    assert set(calls) == {"stms-test_0"}


async def test_a_computation_that_hangs_delays_its_callers_by_a_bounded_time(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(health, "PATIENCE_SECONDS", 0.1)
    release = threading.Event()
    answer = ComputedOncePerSecond(lambda: release.wait(300), "test", seconds=0.0)
    started = time.monotonic()
    assert await asyncio.gather(*[answer.get() for _ in range(50)]) == [None] * 50
    assert await answer.get() is None, "and later ones do not wait at all"
    assert time.monotonic() - started < 60
    release.set()
    while await answer.get() is not True:
        await asyncio.sleep(0.01)
    answer.close()


async def test_a_computation_that_fails_is_logged_and_repeated(caplog: pytest.LogCaptureFixture):
    results = [ValueError("once"), b"text"]

    def compute() -> bytes:
        result = results.pop(0)
        if isinstance(result, Exception):
            raise result
        return result

    answer = ComputedOncePerSecond(compute, "test", seconds=0.0)
    assert await answer.get() is None
    assert await answer.get() == b"text"
    answer.close()
    assert "once" in caplog.text


class _Queue:
    def enqueue(self, *_arguments: str) -> None:
        raise AssertionError

    cancel = enqueue

    def ping(self) -> None:
        """Answer."""


async def test_a_database_that_does_not_answer_is_asked_once(sqlite_store: Store):
    healthy = database_health(sqlite_store, _Queue(), 4.0)
    assert [each.name for each in healthy.checks if each.ok] == ["database", "schema", "job_engine"]
    assert healthy.figures is not None
    assert set(healthy.figures.jobs.values()) == {0}
    assert healthy.figures.workers == {"alive": 0, "silent": 0, "lost": 0}
    asked: list[str] = []

    class Lost(Store):
        def read(self):
            asked.append("read")
            raise health.Unavailable("It is gone.")

    lost = database_health(Lost(sqlite_store.engine), _Queue(), 4.0)
    assert asked == ["read"]
    assert not any(each.ok for each in lost.checks)
    assert [each.name for each in lost.checks if each.needed] == ["database", "schema"]
    assert lost.figures is None
    probes = Probes(lambda: lost, lambda _open: b"")
    assert probes.metrics() == ({"database": False}, None)
    await probes.refresh()
    checks, figures = probes.metrics()
    assert not any(checks.values())
    assert figures is None
    probes.close()


def test_how_late_deliveries_are_is_a_figure(sqlite_store: Store):
    def late_seconds() -> float:
        figures = database_health(sqlite_store, _Queue(), 10.0).figures
        assert figures is not None
        return figures.late_seconds

    assert late_seconds() == 0.0
    delivery = webhooks.test_webhook(sqlite_store, add_webhook(sqlite_store))
    with sqlite_store.begin() as uow:
        uow.webhooks.change_delivery(delivery.id, due_at=uow.workers.clock() - 100.0)
    assert 100.0 <= late_seconds() < 160.0


def test_the_object_store_is_checked_where_there_is_one(object_backed: Store, store: Store):
    def checks(of: Store) -> dict[str, tuple[bool, bool, str]]:
        return {
            each.name: (each.ok, each.needed, each.detail) for each in database_health(of, None, 4.0).checks
        }

    assert "object_store" not in checks(store)
    assert checks(object_backed)["object_store"] == (True, False, "answers; 0 blobs are in it")
    nowhere = ObjectAddress("bucket", "", "http://127.0.0.1:1", key_id="key", secret="secret")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(object_bodies, "_open", OPEN)
        away = Store(store.engine, objects=open_objects(nowhere, seconds=0.5))
        assert checks(away)["object_store"] == (False, False, "The object store cannot be used.")
