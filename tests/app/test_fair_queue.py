"""The order in which waiting threads get the one place of a queue."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from app.domain.entities import Caller
from app.fair_queue import FairQueue, RecentWork

NOBODY = Caller("", "")


def order_of(queue: FairQueue, callers: list[Caller], seconds: float) -> list[Caller]:
    """The order in which callers that wait from the beginning get their turns; each works ``seconds``."""
    order: list[Caller] = []

    def work(caller: Caller) -> None:
        with queue.turn(caller, lambda: None):
            order.append(caller)
            queue.work.add(caller, seconds)

    with ThreadPoolExecutor(len(callers)) as pool, queue.turn(NOBODY, lambda: None):
        for number, caller in enumerate(callers, start=1):
            pool.submit(work, caller)
            while len(queue._waiting) < number:
                time.sleep(0.001)
    return order


def test_the_tenant_with_the_least_work_comes_first_however_many_wait():
    many, few = Caller("a", "key_1"), Caller("b", "key_2")
    queue = FairQueue(RecentWork())
    queue.work.add(many, 10.0)
    assert order_of(queue, [many, many, many, few, few], 1.0) == [few, few, many, many, many]


def test_equal_tenants_take_turns_in_the_order_of_their_arrival():
    first, second = Caller("a", "key_1"), Caller("b", "key_2")
    assert order_of(FairQueue(RecentWork()), [first, first, second, second], 1.0) == [
        first,
        second,
        first,
        second,
    ]


def test_within_a_tenant_keys_take_turns():
    first, second = Caller("a", "key_1"), Caller("a", "key_2")
    assert order_of(FairQueue(RecentWork()), [first, first, first, second], 1.0) == [
        first,
        second,
        first,
        first,
    ]


def test_old_work_counts_less_and_is_forgotten_in_the_end():
    now = [0.0]
    work = RecentWork(lambda: now[0])
    work.add(Caller("a", "key_1"), 8.0)
    now[0] = 120.0
    work.add(Caller("b", "key_2"), 3.0)
    assert (work.of("a"), work.of(Caller("a", "key_1")), work.of("b")) == (2.0, 2.0, 3.0)
    now[0] = 10_000.0
    assert work.tenants() == set()


def test_a_thread_that_gives_up_leaves_its_turn_to_the_next():
    queue, given_up = FairQueue(RecentWork()), threading.Event()

    def give_up() -> None:
        if given_up.is_set():
            raise InterruptedError

    def wait() -> None:
        with queue.turn(Caller("a", "key_1"), give_up):
            pytest.fail("it has given up")

    with ThreadPoolExecutor(1) as pool:
        with queue.turn(NOBODY, lambda: None):
            waiting = pool.submit(wait)
            while not queue._waiting:
                time.sleep(0.001)
            given_up.set()
            with pytest.raises(InterruptedError):
                waiting.result()
        assert order_of(queue, [NOBODY], 0.0) == [NOBODY]
    assert not queue.is_taken
