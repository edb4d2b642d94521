"""Whose turn it is, on both databases."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from app.domain.entities import Job, JobState
from app.store.engine import open_engine
from app.store.unit_of_work import Store, UnitOfWork

SCALER = Path(__file__).parents[3] / "deploy" / "helm" / "stms" / "files" / "units.sql"
"""What KEDA asks, to scale the workers of the Helm chart."""


def test_starts_are_counted_until_a_result_is_stored(store: Store, add_job: Callable[..., Job]) -> None:
    with store.begin() as uow:
        unit = (add_job(uow).id, 0, 1)
        uow.units.add(*unit, tenant="default", owner="A", level=1)
        assert [uow.units.start(*unit, "w", 1.0) for _ in range(3)] == [1, 2, 3]
        uow.units.excuse(*unit)
        assert uow.units.start(*unit, "w", 1.0) == 3
        uow.units.stored_result(*unit)
        assert uow.units.start(*unit, "w", 1.0) == 2
        for _ in range(4):
            uow.units.excuse(*unit)
        assert uow.units.start(*unit, "w", 1.0) == 1
        assert uow.units.start(unit[0], 0, 99, "w", 1.0) == 1, "a unit that has ended meanwhile"


class House:
    """Two tenants, a job each, and one slot that always takes the unit with the smallest turn."""

    def __init__(self, store: Store, add_job: Callable[..., Job]) -> None:
        self.store = store
        with store.begin() as uow:
            self.jobs = {tenant: add_job(uow, created_by=tenant).id for tenant in "AB"}
        self.waiting: list[tuple[int, int, str, int]] = []
        self.under_way: tuple[str, int] | None = None
        self.counts: Counter[str] = Counter()
        self.served = ""

    def offer(self, tenant: str, level: int = 1) -> int:
        number = self.counts[tenant]
        self.counts[tenant] += 1
        with self.store.begin() as uow:
            turn = uow.units.add(self.jobs[tenant], 0, number, tenant=tenant, owner=tenant, level=level)
        self.waiting.append((turn, sum(self.counts.values()), tenant, number))
        return turn

    def serve(self) -> str:
        """End what is under way and begin the next; returns whose it is."""
        with self.store.begin() as uow:
            if self.under_way is not None:
                uow.units.forget(self.jobs[self.under_way[0]], 0, [self.under_way[1]])
            self.waiting.sort()
            _, _, tenant, number = self.waiting.pop(0)
            uow.units.start(self.jobs[tenant], 0, number, "w", 1.0)
        self.under_way = (tenant, number)
        self.served += tenant
        return tenant


@pytest.fixture
def house(store: Store, add_job: Any) -> House:
    return House(store, add_job)


def test_a_newcomer_is_served_next(house: House):
    for _ in range(20):
        house.offer("A")
    for _ in range(3):
        house.serve()
    house.offer("B")
    assert house.serve() == "B"


def test_two_tenants_take_turns_whatever_each_has_waiting(house: House):
    for _ in range(20):
        house.offer("A")
    house.serve()
    for _ in range(4):
        house.offer("B")
    for _ in range(16):
        house.offer(house.serve())
    last = house.served[-12:]
    assert last.count("A") == last.count("B") == 6
    assert "AAA" not in last
    assert "BBB" not in last


def test_a_stream_of_small_jobs_starves_nobody(house: House):
    """B always has two units waiting, A has one that waits behind them."""
    house.offer("B")
    house.offer("B")
    house.serve()
    house.offer("A")
    while "A" not in house.served:
        house.offer("B")
        house.serve()
        assert len(house.served) < 5


def test_nobody_saves_up_turns_while_idle(house: House):
    for _ in range(10):
        house.offer("A")
    for _ in range(9):
        house.serve()
    turns = [house.offer("B") for _ in range(3)]
    assert turns == [9, 10, 11]


def test_turns_begin_anew_when_everything_is_done(house: House):
    assert [house.offer("A"), house.offer("A")] == [1, 2]
    with house.store.begin() as uow:
        uow.units.forget(house.jobs["A"], 0)
    assert house.offer("A") == 1


def test_levels_have_turns_of_their_own(house: House):
    assert [house.offer("A", 1), house.offer("A", 1), house.offer("A", 0)] == [1, 2, 1]


def test_who_works_on_a_job_is_known(store: Store, add_job: Any):
    with store.begin() as uow:
        one, other = add_job(uow).id, add_job(uow).id
        for number in range(3):
            uow.units.add(one, 0, number, tenant="A", owner="A", level=1)
        uow.units.start(one, 0, 0, "w2", 1.0)
        uow.units.start(one, 0, 1, "w1", 1.0)
    with store.read() as uow:
        assert uow.units.workers_of([one, other]) == {one: ["w1", "w2"]}
        assert uow.units.count_of_owner("A", "A") == 3
        assert uow.units.count_of_owner("B", "B") == 0


def test_units_are_counted_as_the_scaler_of_workers_does(store: Store, add_job: Any):
    with store.of_all_tenants().begin() as uow:
        begun, _, *ended = [
            add_job(uow, tenant=tenant, state=state).id
            for tenant, state in (
                ("A", JobState.RUNNING),
                ("B", JobState.QUEUED),
                ("A", JobState.SUCCEEDED),
                ("B", JobState.CANCELLED),
            )
        ]
        for number in range(3):
            uow.units.add(begun, 0, number, tenant="A", owner="A", level=1)
        uow.units.start(begun, 0, 1, "w", 1.0)
        assert len(ended) == 2
        assert uow.units.counts() == (3, 1), "the queued job counts as one unit"
    with store.engine.connect() as connection:
        assert connection.scalar(sa.text(SCALER.read_text(encoding="utf-8"))) == 4


def test_a_later_attempt_outlives_the_end_of_an_earlier_one(store: Store, add_job: Any):
    with store.begin() as uow:
        job = add_job(uow).id
        for attempt in (0, 1):
            uow.units.add(job, attempt, 0, tenant="A", owner="A", level=1)
        uow.units.forget(job, 0)
        assert uow.units.count_of_owner("A", "A") == 1


def test_a_limit_of_a_tenant_is_kept_by_one_at_a_time(postgres_address: str, add_job: Any):
    store = Store(open_engine(postgres_address))
    with store.begin() as uow:
        job = add_job(uow).id
    counted: list[int] = []

    def add(number: int, uow: UnitOfWork) -> None:
        uow.units.lock_owner("A", "A")
        counted.append(uow.units.count_of_owner("A", "A"))
        uow.units.add(job, 0, number, tenant="A", owner="A", level=1)

    def late() -> None:
        with store.begin() as uow:
            add(1, uow)

    thread = threading.Thread(target=late)
    with store.begin() as uow:
        add(0, uow)
        thread.start()
        thread.join(0.3)
        assert counted == [0]
    thread.join(120.0)
    assert counted == [0, 1]
    store.dispose()


def test_many_keys_of_one_tenant_get_the_share_of_one(sqlite_store: Store, add_job: Any) -> None:
    keys = ["a1", "a2", "a3", "b1"]
    numbers: Counter[str] = Counter()
    waiting: list[tuple[int, int, str]] = []

    def offer(key: str) -> None:
        with sqlite_store.begin() as uow:
            turn = uow.units.add(jobs[key], 0, numbers[key], tenant=key[0], owner=key, level=1)
        waiting.append((turn, len(waiting) + sum(numbers.values()), key))
        numbers[key] += 1

    with sqlite_store.begin() as uow:
        jobs = {key: add_job(uow, created_by=key).id for key in keys}
    for _ in range(3):
        for key in keys:
            offer(key)
    served: Counter[str] = Counter()
    done: Counter[str] = Counter()
    for _ in range(60):
        waiting.sort()
        _, _, key = waiting.pop(0)
        with sqlite_store.begin() as uow:
            uow.units.start(jobs[key], 0, done[key], "w", 1.0)
            if done[key]:
                uow.units.forget(jobs[key], 0, [done[key] - 1])
        done[key] += 1
        served[key] += 1
        offer(key)
    assert 25 <= served["b1"] <= 35, served
    assert max(served[key] for key in keys[:3]) - min(served[key] for key in keys[:3]) <= 2
