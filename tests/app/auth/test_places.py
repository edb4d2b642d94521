"""Limited numbers of places and a rate, which tenants, their keys, and networks without a key share."""

from __future__ import annotations

import asyncio
import time

import pytest

from app.auth import places
from app.auth.authenticator import ANONYMOUS
from app.auth.places import PacedTurns, SharedBudget, Turns
from app.auth.shares import Budgets
from app.domain.entities import Caller
from app.domain.errors import Overloaded
from app.settings import Settings
from tests.refusals import refused_as

A, B, C = Caller("a", "a1"), Caller("b", "b1"), Caller("c", "c1")


def keys_of(tenant: str, count: int) -> list[Caller]:
    return [Caller(tenant, f"{tenant}{number}") for number in range(1, count + 1)]


def budget_of(limit: int, share: int | None = None) -> SharedBudget:
    return SharedBudget(limit, share or limit, "queries", "queries", {})


def test_all_callers_together_take_no_more_than_the_limit():
    budget = budget_of(300_000)
    budget.take(A, 100_000)
    budget.take(B, 200_000)
    with pytest.raises(Overloaded, match="300000 queries are in progress"):
        budget.take(A, 100_000)
    budget.release(A, 100_000)
    budget.take(C, 100_000)
    budget.release(B, 200_000)
    budget.release(C, 100_000)
    budget.take(A, 10**9)
    with pytest.raises(Overloaded):
        budget.take(B)


@pytest.mark.parametrize(("limit", "share"), [(256, 64), (64, 16), (3, 1), (1, 1)])
def test_a_key_takes_no_more_than_its_share_and_always_one(limit: int, share: int):
    refused: dict[str, int] = {}
    budget = SharedBudget(limit, limit // 4, "queries", "queries", refused)
    for _ in range(share):
        assert budget.is_available(A)
        budget.take(A)
    assert not budget.is_available(A)
    with pytest.raises(Overloaded) as caught:
        budget.take(A)
    if limit > 1:
        assert caught.value.reason == "share_exceeded"
        assert refused == {"queries": 0, "queries_of_key": 1, "queries_of_tenant": 0}
        budget.take(B)
    budget.release(A)
    assert budget.is_available(A) is (limit != 1 or share != 1) or budget.used == 0


def test_the_keys_of_one_tenant_take_half_while_there_are_other_tenants():
    has_tenants, refused = [True], dict[str, int]()
    budget = SharedBudget(64, 16, "requests", "requests", refused, lambda: has_tenants[0])
    a, b = keys_of("a", 4), keys_of("b", 2)
    for key in a[:2]:
        budget.take(key, 16)
    assert not budget.is_available(a[2])
    with refused_as(Overloaded, "share_exceeded", match="of this tenant"):
        budget.take(a[2])
    assert refused == {"requests": 0, "requests_of_key": 0, "requests_of_tenant": 1}
    for key in b:
        budget.take(key, 16)
    for key in [*a[:2], *b]:
        budget.release(key, 16)
    has_tenants[0] = False
    for key in a:
        budget.take(key, 16)
    assert budget.used == budget.limit, "the only tenant has all"


def test_a_tenant_that_holds_nothing_may_take_more_than_its_share():
    budget = SharedBudget(10, 10, "bytes", "bytes", {}, lambda: True)
    budget.take(B)
    budget.take(A, 7)
    with refused_as(Overloaded, "share_exceeded", match="7 bytes of this tenant"):
        budget.take(Caller("a", "a2"))


def test_the_caller_of_a_server_without_keys_takes_the_whole_capacity():
    budget, anonymous = budget_of(8, 2), Caller.of(ANONYMOUS)
    for _ in range(8):
        budget.take(anonymous)
    with pytest.raises(Overloaded, match="8 queries"):
        budget.take(anonymous)


async def order_of(turns: Turns, work: list[tuple[Caller, int]]) -> list[Caller]:
    """The order in which pieces of work get their turns: each caller has so many of them waiting."""
    order: list[Caller] = []
    await turns.acquire(C)

    async def do(caller: Caller) -> None:
        async with turns.turn(caller):
            await asyncio.sleep(0)
            order.append(caller)

    tasks = [asyncio.create_task(do(caller)) for caller, count in work for _ in range(count)]
    await asyncio.sleep(0)
    turns.release(C)
    await asyncio.gather(*tasks)
    return order


async def test_tenants_alternate_whatever_their_numbers_of_keys():
    order = await order_of(Turns(1, 1), [*((key, 5) for key in keys_of("b", 16)), (A, 10)])
    assert [at for at, caller in enumerate(order[:20]) if caller == A] == list(range(1, 20, 2))


async def test_within_a_tenant_its_keys_alternate():
    many, few = keys_of("a", 2)
    order = await order_of(Turns(1, 1), [(many, 6), (few, 3), (B, 12)])
    assert order.count(few) == 3
    of_tenant = [caller for caller in order if caller.tenant == "a"]
    assert of_tenant[:6] == [many, few] * 3


async def test_the_keys_of_a_tenant_leave_a_place_to_another_tenant():
    has_tenants = [True]
    turns = Turns(3, 2, lambda: has_tenants[0])
    for key in keys_of("b", 2):
        await turns.acquire(key)
    third = asyncio.create_task(turns.acquire(Caller("b", "b3")))
    await asyncio.sleep(0)
    assert not third.done()
    await asyncio.wait_for(turns.acquire(A), 60)
    turns.release(A)
    await asyncio.sleep(0)
    assert not third.done()
    has_tenants[0] = False
    turns.release(Caller("b", "b1"))
    await asyncio.wait_for(third, 60)


async def test_the_keys_of_the_only_tenant_have_all_places():
    turns = Turns(3, 2)
    for key in keys_of("a", 3):
        await asyncio.wait_for(turns.acquire(key), 60)
    assert turns.used == 3


async def test_one_key_has_its_share_of_the_places():
    turns = Turns(3, 2)
    await turns.acquire(A)
    await turns.acquire(A)
    third = asyncio.create_task(turns.acquire(A))
    await asyncio.sleep(0)
    assert not third.done()
    await asyncio.wait_for(turns.acquire(Caller("a", "a2")), 60)
    turns.release(A)
    await asyncio.wait_for(third, 60)


async def test_blocks_of_callers_alternate():
    turns, order = Turns(1, 1), list[Caller]()

    async def work(caller: Caller, blocks: int) -> None:
        for _ in range(blocks):
            async with turns.turn(caller):
                await asyncio.sleep(0)
                order.append(caller)

    many = [asyncio.create_task(work(A, 10)) for _ in range(20)]
    await asyncio.sleep(0)
    await asyncio.gather(asyncio.create_task(work(B, 3)), *many)
    places = [place for place, caller in enumerate(order) if caller == B]
    assert len(places) == 3
    assert places[0] <= 4
    assert places[2] - places[0] <= 6


async def test_a_cancelled_turn_is_given_to_the_next_caller():
    turns = Turns(1, 1)
    first = turns.turn(A)
    await first.__aenter__()
    entered = asyncio.Event()

    async def take(caller: Caller) -> None:
        async with turns.turn(caller):
            entered.set()

    waiting, next_one = asyncio.create_task(take(B)), asyncio.create_task(take(C))
    await asyncio.sleep(0)
    # The place is given to b in the same step in which b is cancelled.
    await first.__aexit__(None, None, None)
    waiting.cancel()
    await asyncio.wait_for(next_one, 60)
    assert entered.is_set()
    async with turns.turn(A):
        assert not turns._waiting


async def test_who_waits_no_longer_leaves_nothing_behind():
    turns = Turns(1, 1)
    await turns.acquire(A)
    waiting = [asyncio.create_task(turns.acquire(caller)) for caller in [B, B, C]]
    await asyncio.sleep(0)
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    assert not turns._waiting
    turns.release(A)
    assert turns.used == 0


async def test_no_more_than_the_allowed_number_goes_on_in_a_second(monkeypatch):
    monkeypatch.setattr(places, "PER_SECOND", 100.0)
    turns, done = PacedTurns(), list[float]()

    async def ask() -> None:
        await turns.turn(A)
        done.append(time.monotonic())

    started = time.monotonic()
    await asyncio.gather(*[ask() for _ in range(38)])
    assert len([at for at in done if at - started < 0.005]) <= 9
    assert time.monotonic() - started >= 0.29


async def test_networks_alternate_and_probes_do_not_wait_for_others(monkeypatch):
    monkeypatch.setattr(places, "PER_SECOND", 1000.0)
    budgets, order = Budgets(Settings()), list[str]()

    async def ask(name: str, address: str, is_probe: bool = False) -> None:
        await budgets.wait_without_key(address, is_probe=is_probe)
        order.append(name)

    flood = [asyncio.create_task(ask("flood", "203.0.113.9")) for _ in range(100)]
    await asyncio.sleep(0)
    await asyncio.gather(ask("other", "203.0.113.10"), ask("probe", "203.0.113.9", True))
    assert order.count("flood") < 60
    for task in flood[::2]:
        task.cancel()
    await asyncio.gather(*flood, return_exceptions=True)
    assert not budgets.keyless_turns._waiting


async def test_turns_that_were_given_up_delay_their_network_only(monkeypatch):
    monkeypatch.setattr(places, "PER_SECOND", 1000.0)
    monkeypatch.setattr(places, "_MOST_GIVEN_UP", 20)
    budgets, order = Budgets(Settings()), list[str]()

    async def ask(name: str, address: str) -> None:
        await budgets.wait_without_key(address)
        order.append(name)

    for _ in range(100):
        budgets.give_up_without_key("203.0.113.9")
    same = asyncio.create_task(ask("same", "203.0.113.9"))
    await asyncio.sleep(0)
    for _ in range(18):
        await ask("other", "203.0.113.10")
    assert "same" not in order
    await same
    # No more count than the greatest number, and later ones count again.
    assert not budgets.keyless_turns._given_up
    started = time.monotonic()
    for _ in range(20):
        budgets.give_up_without_key("203.0.113.9")
    await ask("same", "203.0.113.9")
    assert time.monotonic() - started >= 0.019


async def test_large_responses_delay_the_next_turns():
    turns = PacedTurns()
    turns.charge(0)
    await turns.turn(A)
    turns.charge(20_000_000)
    started = time.monotonic()
    await turns.turn(A)
    assert time.monotonic() - started > 0.2
