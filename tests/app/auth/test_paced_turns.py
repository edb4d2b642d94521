"""Requests without a valid key, and refusals, take turns: a bounded number a second, and lanes alternate."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from app.auth import paced_turns
from app.auth.paced_turns import PacedTurns
from app.auth.rate_limit import RateLimiter
from app.auth.shares import Budgets
from app.domain.errors import RateLimited
from app.settings import Settings


async def test_no_more_than_the_allowed_number_goes_on_in_a_second(monkeypatch):
    monkeypatch.setattr(paced_turns, "PER_SECOND", 100.0)
    turns, done = PacedTurns(), list[float]()

    async def ask() -> None:
        await turns.turn("127.0.0.1")
        done.append(time.monotonic())

    started = time.monotonic()
    await asyncio.gather(*[ask() for _ in range(38)])
    assert len([at for at in done if at - started < 0.005]) <= 9
    assert time.monotonic() - started >= 0.29


async def test_networks_alternate_and_probes_do_not_wait_for_others(monkeypatch):
    monkeypatch.setattr(paced_turns, "PER_SECOND", 1000.0)
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


async def test_large_responses_delay_the_next_turns():
    turns = PacedTurns()
    turns.charge(0)
    await turns.turn("127.0.0.1")
    turns.charge(20_000_000)
    started = time.monotonic()
    await turns.turn("127.0.0.1")
    assert time.monotonic() - started > 0.2


@pytest.mark.parametrize(("address", "rate", "limited"), [
    ("203.0.113.9", 5.0, True), ("127.0.0.1", 5.0, False), ("::1", 5.0, False), ("203.0.113.9", 0.0, False),
])  # fmt: skip
def test_an_address_without_a_key_has_a_rate_limit_except_loopback(address: str, rate: float, limited: bool):
    limiter = RateLimiter(Settings(keyless_rate_limit=rate))

    def ask(count: int) -> Any:
        for _ in range(count):
            limiter.check_keyless(address)

    ask(10)
    if limited:
        with pytest.raises(RateLimited, match="without an API key"):
            ask(3)
        limiter.check_keyless("203.0.113.10")
        assert limiter.refused["keyless"] == 1
    else:
        ask(100)
