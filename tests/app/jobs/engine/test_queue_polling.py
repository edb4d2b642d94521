"""A worker's looks into its queues: light while nothing waits, complete as soon as something does."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import sqlalchemy as sa

from app.jobs.engine.config import JOB_QUEUE, UNIT_QUEUE, look_lightly


class Engine:
    """What `look_lightly` touches of the engine's database; it notes what was asked of it."""

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
        self.asked: list[Any] = []

    def add(self, queue: str, status: str) -> None:
        with self.engine.begin() as connection:
            connection.execute(self.tables.workflow_status.insert().values(queue_name=queue, status=status))

    def get_queue(self, name: str) -> Any:
        self.asked.append(("limits", name))
        return SimpleNamespace(name=name, _polling_interval_sec=0.1)

    def start_queued_workflows(self, queue: Any, *arguments: Any, **options: Any) -> Any:
        self.asked.append(("claim", queue.name, arguments, options))
        return ["claimed"], None


@pytest.fixture
def engine() -> Iterator[Any]:
    made = Engine()
    yield made
    made.engine.dispose()


def test_a_queue_in_which_nothing_waits_is_not_claimed_from(engine):
    engine.add(UNIT_QUEUE, "PENDING")
    engine.add(JOB_QUEUE, "ENQUEUED")
    look_lightly(engine, lambda: False)
    assert engine.start_queued_workflows(SimpleNamespace(name=UNIT_QUEUE), "me") == ([], None)
    assert engine.asked == []


def test_one_in_which_something_waits_is_claimed_from_as_the_engine_does(engine):
    engine.add(UNIT_QUEUE, "ENQUEUED")
    look_lightly(engine, lambda: False)
    found = engine.start_queued_workflows(SimpleNamespace(name=UNIT_QUEUE), "me", owner_xid="x")
    assert found == (["claimed"], None)
    assert engine.asked == [("claim", UNIT_QUEUE, ("me",), {"owner_xid": "x"})]


@pytest.mark.parametrize(("busy", "seconds"), [(False, 0.1), (True, 0.3)])
def test_limits_are_read_now_and_then_and_jobs_looked_for_less_often_during_a_unit(engine, busy, seconds):
    look_lightly(engine, lambda: busy)
    for _ in range(3):
        assert engine.get_queue(JOB_QUEUE)._polling_interval_sec == seconds
    assert engine.get_queue(UNIT_QUEUE)._polling_interval_sec == 0.1
    assert engine.asked == [("limits", JOB_QUEUE), ("limits", UNIT_QUEUE)]
