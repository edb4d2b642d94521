"""Rate limits of callers in shared memory."""

from __future__ import annotations

import math
import multiprocessing
import time
from dataclasses import replace
from typing import Any

import pytest

from app.auth import rate_limit
from app.auth.rate_limit import Quota, RateLimiter
from app.domain.entities import ApiKey
from app.domain.errors import RateLimited
from app.processes.scoreboard import Scoreboard
from app.settings import Settings
from app.store.repositories.keys import CELLS
from tests.refusals import refused_as

KEY = ApiKey("key_1", "one", "0" * 64, frozenset({"query"}), frozenset(), 1.0)


@pytest.fixture
def clock(monkeypatch) -> list[float]:
    now = [1000.0]
    monkeypatch.setattr(rate_limit, "monotonic", lambda: now[0])
    return now


def quota_of(rate: float, burst: int) -> Quota:
    return Quota(Scoreboard.private().rate_limit_cells, 0, rate, burst)


def test_a_burst_passes_and_then_one_request_each_interval(clock):
    one = quota_of(10, 5)
    assert [one.take() for _ in range(5)] == [0.0] * 5
    assert one.take() == pytest.approx(0.1)
    clock[0] += 0.05
    assert one.take() == pytest.approx(0.05)
    clock[0] += 0.051
    assert one.take() == 0.0
    assert one.take() > 0
    assert one.window == pytest.approx(0.5)


def test_over_a_long_time_exactly_the_rate_passes(clock):
    one = quota_of(7, 3)
    passed = 0
    for _ in range(100_000):
        clock[0] += 0.001
        passed += one.take() == 0.0
    assert passed == pytest.approx(7 * 100 + 3, abs=2)


def test_a_pause_replenishes_one_burst_and_no_more(clock):
    one = quota_of(1, 2)
    clock[0] += 1e6
    assert [one.take() > 0 for _ in range(4)] == [False, False, True, True]


def test_a_refund_allows_one_more_request(clock):
    one = quota_of(1, 1)
    assert one.take() == 0.0
    one.refund()
    assert one.take() == 0.0
    assert one.take() > 0


def test_a_cell_left_by_a_slower_rate_is_reset(clock):
    scoreboard = Scoreboard.private()
    slow, fast = (
        Quota(scoreboard.rate_limit_cells, 3, 0.01, 100),
        Quota(scoreboard.rate_limit_cells, 3, 100, 10),
    )
    assert [slow.take() for _ in range(100)] == [0.0] * 100
    assert 0 < fast.take() <= 0.01
    clock[0] += 0.011
    assert fast.take() == 0.0


def test_the_error_names_rate_burst_and_wait(clock):
    limiter = RateLimiter(Settings(rate_limit=2, rate_burst=4))
    limiter.replace_keys([KEY])
    of_key = limiter.of_key(KEY)
    assert of_key is not None
    assert [of_key.take() for _ in range(4)] == [0.0] * 4
    error = of_key.refusal(of_key.take(), "This key")
    assert "This key may make 2 requests a second, and 4 at once" in error.message
    assert (error.quota, error.window, error.reason) == (4, 2.0, "rate_limited")
    assert error.retry_after == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("settings", "key", "expected"),
    [
        ({}, {}, None),
        ({}, {"rate_limit": 5.0}, (5.0, 5)),
        ({}, {"rate_limit": 0.5}, (0.5, 1)),
        ({}, {"rate_limit": 5.0, "rate_burst": 2}, (5.0, 2)),
        ({"rate_limit": 10}, {}, (10.0, 10)),
        ({"rate_limit": 10, "rate_burst": 30}, {}, (10.0, 30)),
        ({"rate_limit": 10, "rate_burst": 30}, {"rate_burst": 3}, (10.0, 3)),
        ({"rate_limit": 10, "rate_burst": 30}, {"rate_limit": 5.0}, (5.0, 5)),
        ({"rate_limit": 10}, {"rate_limit": 0.0}, None),
    ],
)
def test_a_key_has_its_own_limit_or_the_default_of_the_server(settings, key, expected):
    limiter = RateLimiter(Settings(**settings))
    limiter.replace_keys([replace(KEY, **key)])
    of_key = limiter.of_key(KEY)
    if expected is None:
        assert of_key is None
    else:
        assert of_key is not None
        assert (1 / of_key._interval, of_key.burst) == (pytest.approx(expected[0]), expected[1])
    assert limiter.enabled == (expected is not None or "rate_limit" in settings)


def test_every_key_has_its_own_cell_and_keeps_it():
    limiter = RateLimiter(Settings(rate_limit=1))
    keys = [replace(KEY, id=f"key_{number:024x}") for number in range(500)]
    limiter.replace_keys(keys)
    cells = {key.id: limiter.of_key(key)._cell for key in keys}
    assert len(set(cells.values())) == 500
    limiter.replace_keys([*reversed(keys), replace(KEY, id="key_" + "f" * 24)])
    assert cells == {key.id: limiter.of_key(key)._cell for key in keys}


def test_changed_keys_get_the_limits_and_cells_of_a_whole_snapshot():
    """Two processes must agree on the cell of a key, however they learned of it."""
    keys = [
        replace(KEY, id=f"key_{number:024x}", rate_limit=float(number), cell=1000 - number)
        for number in range(1, 60)
    ]
    early, late = keys[:40], keys[40:]
    limited = replace(early[3], rate_limit=77.0)
    unlimited = replace(early[5], rate_limit=0.0)
    unknown = replace(KEY, id="key_" + "0" * 24)
    for changed in (late, late[::-1], [limited, unlimited], [unknown, *late], [*late, unknown, limited]):
        whole, following = (RateLimiter(Settings()) for _ in range(2))
        following.replace_keys(early)
        following.update_keys(changed)
        known = {key.id: key for key in [*early, *changed]}
        whole.replace_keys(list(known.values()))
        for key in known.values():
            one, other = whole.of_key(key), following.of_key(key)
            if one is None or other is None:
                assert one is other
            else:
                assert (one._cell, one._interval, one.burst) == (other._cell, other._interval, other.burst)


def test_a_stranger_with_any_number_of_keys_cannot_use_up_the_limit_of_another_key(clock):
    """Keys without a cell in the shared memory do not share one either."""
    limiter = RateLimiter(Settings(rate_limit=1, rate_burst=2))
    victim = replace(KEY, id="key_victim", tenant="v", cell=5)
    late_victim = replace(KEY, id="key_late", tenant="v")
    strangers = [
        replace(KEY, id=f"key_{number:024x}", tenant="b", cell=number if number < CELLS else None)
        for number in range(0, CELLS + 100, 97)
    ]
    limiter.replace_keys([victim, late_victim, *strangers])
    for key in strangers:
        quota = limiter.of_key(key)
        while quota.take() == 0.0:
            pass
    for key in (victim, late_victim):
        assert [limiter.of_key(key).take() for _ in range(2)] == [0.0, 0.0]
        assert limiter.of_key(key).take() > 0.0


def test_the_next_key_of_a_cell_does_not_inherit_what_the_last_one_used(clock):
    limiter = RateLimiter(Settings(rate_limit=1))
    key = replace(KEY, cell=3)
    limiter.replace_keys([key])
    assert limiter.of_key(key).take() == 0.0
    limiter.update_keys([replace(key, revoked_at=2.0)])
    assert limiter.of_key(key) is None
    following = replace(KEY, id="key_2", cell=3)
    limiter.update_keys([following])
    assert limiter.of_key(following).take() == 0.0
    limiter.replace_keys([])
    assert (limiter._of_keys, limiter._own_cells) == ({}, {})


def test_the_last_limit_that_is_removed_switches_limits_off():
    limiter = RateLimiter(Settings())
    limiter.replace_keys([])
    limiter.update_keys([replace(KEY, rate_limit=5.0)])
    assert limiter.enabled
    limiter.update_keys([KEY])
    assert not limiter.enabled


def test_requests_and_failures_of_an_address_have_separate_quotas(clock):
    limiter = RateLimiter(Settings(rate_limit=1, auth_failure_rate=2))
    one, other = limiter.of_address("192.0.2.1"), limiter.of_address("192.0.2.2")
    assert one.take() == 0.0
    assert one.take() > 0
    assert other.take() == 0.0
    for _ in range(2):
        limiter.record_failure("192.0.2.1")
    with refused_as(RateLimited, "too_many_failures"):
        limiter.record_failure("192.0.2.1")
    limiter.record_failure("192.0.2.2")
    clock[0] += 0.6
    limiter.record_failure("192.0.2.1")
    assert limiter.refused["auth_failures"] == 1


def test_a_key_begins_few_sessions_a_minute(clock):
    limiter = RateLimiter(Settings())
    for _ in range(rate_limit._SIGN_INS):
        limiter.record_sign_in(KEY)
    with refused_as(RateLimited, "too_many_sign_ins"):
        limiter.record_sign_in(KEY)
    limiter.record_sign_in(replace(KEY, id="key_2"))


def test_without_limits_no_caller_is_refused(clock):
    limiter = RateLimiter(Settings(auth_failure_rate=0))
    assert limiter.of_address("192.0.2.1") is None
    for _ in range(1000):
        limiter.record_failure("192.0.2.1")


def test_processes_of_one_scoreboard_agree_on_the_cell_of_an_address():
    scoreboard = Scoreboard.shared(2)
    twin = Scoreboard.inherited(scoreboard.file or 0)
    cells = [RateLimiter(Settings(), one)._cell_of("192.0.2.1") for one in (scoreboard, twin)]
    assert cells[0] == cells[1]
    assert any(RateLimiter(Settings())._cell_of("192.0.2.1") != cells[0] for _ in range(3)), (
        "the salt is random"
    )
    scoreboard.close()


def _spend(file: int, started: float, seconds: float, passed: multiprocessing.Queue) -> None:
    one = Quota(Scoreboard.inherited(file).rate_limit_cells, 5, 200.0, 20)
    while time.monotonic() < started:
        time.sleep(0.001)
    count = 0
    while time.monotonic() < started + seconds:
        count += one.take() == 0.0
        # As much as a request takes besides.
        sum(range(2000))
    passed.put(count)


@pytest.mark.long
def test_the_limit_holds_over_all_processes():
    scoreboard, context = Scoreboard.shared(1), multiprocessing.get_context("fork")
    passed: multiprocessing.Queue = context.Queue()
    started, seconds = time.monotonic() + 0.5, 2.0
    workers = [
        context.Process(target=_spend, args=(scoreboard.file, started, seconds, passed)) for _ in range(3)
    ]
    for worker in workers:
        worker.start()
    total = sum(passed.get(timeout=60) for _ in workers)
    for worker in workers:
        worker.join()
    # Now and then a process is interrupted between reading and writing.
    assert 200 * seconds * 0.7 <= total <= (200 * seconds + 20) * 1.1
    scoreboard.close()


def test_trusted_proxies_must_be_networks():
    assert Settings(trusted_proxies=" 10.0.0.0/8, ::1 ,").proxies == ("10.0.0.0/8", "::1")
    with pytest.raises(ValueError, match="trusted_proxies"):
        Settings(trusted_proxies="the proxy")


def test_an_infinite_rate_is_refused():
    with pytest.raises(ValueError, match="rate_limit"):
        Settings(rate_limit=math.inf)


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
