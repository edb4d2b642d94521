"""Polling of the queues: cheap while they are empty, complete otherwise."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import sqlalchemy as sa

from app.jobs.engine.config import JOB_QUEUE, UNIT_QUEUE
from app.jobs.engine.patches import poll_queues_cheaply


class Engine:
    """What `poll_queues_cheaply` uses of DBOS's database object, with a list of the calls."""

    def __init__(self) -> None:
        self.engine = sa.create_engine("sqlite://")
        status = sa.Table(
            "workflow_status",
            sa.MetaData(),
            sa.Column("queue_name", sa.Text),
            sa.Column("status", sa.Text),
        )
        status.create(self.engine)
        self.tables = SimpleNamespace(workflow_status=status)
        self.calls: list[Any] = []

    def add(self, queue: str, status: str) -> None:
        with self.engine.begin() as connection:
            connection.execute(self.tables.workflow_status.insert().values(queue_name=queue, status=status))

    def get_queue(self, name: str) -> Any:
        self.calls.append(("limits", name))
        return SimpleNamespace(name=name, _polling_interval_sec=0.1)

    def start_queued_workflows(self, queue: Any, *arguments: Any, **options: Any) -> Any:
        self.calls.append(("claim", queue.name, arguments, options))
        return ["claimed"], None


@pytest.fixture
def engine() -> Iterator[Any]:
    engine = Engine()
    yield engine
    engine.engine.dispose()


def test_an_empty_queue_is_not_claimed_from(engine):
    engine.add(UNIT_QUEUE, "PENDING")
    engine.add(JOB_QUEUE, "ENQUEUED")
    poll_queues_cheaply(SimpleNamespace(_sys_db=engine), lambda: False)
    assert engine.start_queued_workflows(SimpleNamespace(name=UNIT_QUEUE), "me") == ([], None)
    assert engine.calls == []


def test_a_queue_with_work_is_claimed_from_as_dbos_does(engine):
    engine.add(UNIT_QUEUE, "ENQUEUED")
    poll_queues_cheaply(SimpleNamespace(_sys_db=engine), lambda: False)
    result = engine.start_queued_workflows(SimpleNamespace(name=UNIT_QUEUE), "me", owner_xid="x")
    assert result == (["claimed"], None)
    assert engine.calls == [("claim", UNIT_QUEUE, ("me",), {"owner_xid": "x"})]


@pytest.mark.parametrize(("busy", "seconds"), [(False, 0.1), (True, 0.3)])
def test_limits_are_cached_and_jobs_polled_less_often_during_a_unit(engine, busy, seconds):
    poll_queues_cheaply(SimpleNamespace(_sys_db=engine), lambda: busy)
    for _ in range(3):
        assert engine.get_queue(JOB_QUEUE)._polling_interval_sec == seconds
    assert engine.get_queue(UNIT_QUEUE)._polling_interval_sec == 0.1
    assert engine.calls == [("limits", JOB_QUEUE), ("limits", UNIT_QUEUE)]
