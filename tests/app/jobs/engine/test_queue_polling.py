"""Polling of the queues: nothing is claimed while they are empty, and what is in them is."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest
import sqlalchemy as sa
from dbos import DBOS
from sqlalchemy.engine import Engine

from app.jobs.engine.client import DbosQueue
from app.jobs.engine.config import JOB_QUEUE, SCHEMA, UNIT_QUEUE, engine_url
from app.jobs.engine.database import open_jobs_database
from app.jobs.engine.queue_polling import QueuePolling, WaitForWork
from app.settings import Settings
from app.store.unit_of_work import Store


@pytest.fixture
def settings(store: Store, tmp_path) -> Settings:
    address = store.engine.url.render_as_string(hide_password=False)
    settings = Settings(data_dir=tmp_path, database_url=address)
    DBOS.migrate(engine_url(settings), schema=SCHEMA)
    return settings


@pytest.fixture
def database(settings: Settings) -> Iterator[Engine]:
    engine = open_jobs_database(settings, 2)
    yield engine
    engine.dispose()


def test_work_is_seen_in_its_own_queue_and_while_it_waits(settings, database):
    polling = QueuePolling(database, lambda: False, lambda _queue: None)
    queue = DbosQueue(settings)
    queue.register_queues()
    assert not polling._has_work(JOB_QUEUE)
    queue.enqueue("job_1", "job_1.0")
    assert polling._has_work(JOB_QUEUE)
    assert not polling._has_work(UNIT_QUEUE)
    queue.cancel("job_1.0")
    assert not polling._has_work(JOB_QUEUE)
    queue.close()


def test_a_database_that_cannot_be_asked_is_left_to_dbos():
    gone = sa.create_engine("sqlite:////nowhere/at/all.db")
    assert QueuePolling(gone, lambda: False, lambda _queue: None)._has_work(JOB_QUEUE)
    gone.dispose()


def test_a_wait_ends_when_there_is_work_and_asks_for_notifications_only_without():
    answers, asked = [False, False, True], []
    wait = WaitForWork(lambda: answers.pop(0), lambda: asked.append(len(answers)))
    assert not wait.wait(0.01)
    assert asked == [2, 1]
    answers[:] = [True]
    assert not wait.wait(0.01)
    assert len(asked) == 2


def test_a_wait_ends_when_the_thread_shall():
    wait = WaitForWork(lambda: False, lambda: time.sleep(0.01))
    threading.Timer(0.1, wait.set).start()
    assert wait.wait(0.01)
    assert wait.wait(0.01)


def test_a_thread_that_shall_end_claims_nothing_more():
    wait = WaitForWork(lambda: wait.set() is None, lambda: None)
    assert wait.wait(0.01)


@pytest.mark.parametrize(("busy", "least"), [(False, 0.0), (True, 0.3)])
def test_jobs_are_polled_less_often_while_a_unit_runs(database, busy, least):
    polling = QueuePolling(database, lambda: busy, lambda _queue: None)
    assert polling._waits[JOB_QUEUE]._least_seconds() == least
    assert polling._waits[UNIT_QUEUE]._least_seconds() == 0.0
    began = time.monotonic()
    WaitForWork(lambda: True, lambda: None, lambda: 0.2).wait(0.01)
    assert time.monotonic() - began >= 0.2
