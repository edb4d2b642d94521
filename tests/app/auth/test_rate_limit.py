"""Budgets of callers in shared memory, and whose address it is."""

from __future__ import annotations

import math
import multiprocessing
import time
from dataclasses import replace

import pytest

from app.auth import rate_limit
from app.auth.rate_limit import Budget, Limits, TrustedProxies, network_of
from app.domain.entities import ApiKey
from app.domain.errors import RateLimited
from app.processes.scoreboard import Scoreboard
from app.settings import Settings

KEY = ApiKey("key_1", "one", "0" * 64, frozenset({"query"}), frozenset(), 1.0)


@pytest.fixture
def clock(monkeypatch) -> list[float]:
    now = [1000.0]
    monkeypatch.setattr(rate_limit, "monotonic", lambda: now[0])
    return now


def budget(rate: float, burst: int) -> Budget:
    return Budget(Scoreboard.private().rate_limit_cells, 0, rate, burst)


def test_a_burst_passes_and_then_one_request_each_interval(clock):
    one = budget(10, 5)
    assert [one.take() for _ in range(5)] == [0.0] * 5
    assert one.take() == pytest.approx(0.1)
    clock[0] += 0.05
    assert one.take() == pytest.approx(0.05)
    clock[0] += 0.051
    assert one.take() == 0.0
    assert one.take() > 0
    assert one.window == pytest.approx(0.5)


def test_over_a_long_time_exactly_the_rate_passes(clock):
    one = budget(7, 3)
    passed = 0
    for _ in range(100_000):
        clock[0] += 0.001
        passed += one.take() == 0.0
    assert passed == pytest.approx(7 * 100 + 3, abs=2)


def test_a_rest_fills_the_budget_and_no_more_than_that(clock):
    one = budget(1, 2)
    clock[0] += 1e6
    assert [one.take() > 0 for _ in range(4)] == [False, False, True, True]


def test_what_was_not_used_is_given_back(clock):
    one = budget(1, 1)
    assert one.take() == 0.0
    one.give_back()
    assert one.take() == 0.0
    assert one.take() > 0


def test_a_place_that_was_used_by_a_slower_rate_heals(clock):
    scoreboard = Scoreboard.private()
    slow, fast = (
        Budget(scoreboard.rate_limit_cells, 3, 0.01, 100),
        Budget(scoreboard.rate_limit_cells, 3, 100, 10),
    )
    assert [slow.take() for _ in range(100)] == [0.0] * 100
    assert 0 < fast.take() <= 0.01
    clock[0] += 0.011
    assert fast.take() == 0.0


def test_the_error_tells_the_quota(clock):
    found = Limits(Settings(rate_limit=2, rate_burst=4))
    found.follow([KEY])
    of_key = found.of_key(KEY)
    assert of_key is not None
    for _ in range(4):
        found.charge(of_key, "This key")
    with pytest.raises(RateLimited, match="2 times a second, and 4 times at once") as caught:
        found.charge(of_key, "This key")
    error = caught.value
    assert (error.quota, error.window, error.reason) == (4, 2.0, "rate_limited")
    assert error.retry_after == pytest.approx(0.5)
    assert found.refused == {"rate_limited": 1, "auth_failures": 0}


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
def test_a_key_has_its_own_limit_or_that_of_the_server(settings, key, expected):
    found = Limits(Settings(**settings))
    found.follow([replace(KEY, **key)])
    of_key = found.of_key(KEY)
    if expected is None:
        assert of_key is None
    else:
        assert of_key is not None
        assert (1 / of_key._interval, of_key.quota) == (pytest.approx(expected[0]), expected[1])
    assert found.any == (expected is not None or "rate_limit" in settings)


def test_every_key_has_a_place_of_its_own_and_keeps_it():
    found = Limits(Settings(rate_limit=1))
    keys = [replace(KEY, id=f"key_{number:024x}") for number in range(500)]
    found.follow(keys)
    places = {key.id: found.of_key(key)._place for key in keys}
    assert len(set(places.values())) == 500
    found.follow([*reversed(keys), replace(KEY, id="key_" + "f" * 24)])
    assert places == {key.id: found.of_key(key)._place for key in keys}


def test_addresses_have_budgets_too_and_their_failures_others(clock):
    found = Limits(Settings(rate_limit=1, auth_failure_rate=2))
    one, other = found.of_anonymous("192.0.2.1"), found.of_anonymous("192.0.2.2")
    assert one.take() == 0.0
    assert one.take() > 0
    assert other.take() == 0.0
    for _ in range(2):
        found.fail("192.0.2.1")
    with pytest.raises(RateLimited) as caught:
        found.fail("192.0.2.1")
    assert caught.value.reason == "too_many_failures"
    found.fail("192.0.2.2")
    clock[0] += 0.6
    found.fail("192.0.2.1")
    assert found.refused["auth_failures"] == 1


def test_without_limits_nobody_is_refused(clock):
    found = Limits(Settings(auth_failure_rate=0))
    assert found.of_anonymous("192.0.2.1") is None
    for _ in range(1000):
        found.fail("192.0.2.1")


def test_processes_of_one_board_agree_on_the_place_of_an_address():
    scoreboard = Scoreboard.shared(2)
    twin = Scoreboard.inherited(scoreboard.file or 0)
    places = [Limits(Settings(), one)._place_of("192.0.2.1") for one in (scoreboard, twin)]
    assert places[0] == places[1]
    assert any(Limits(Settings())._place_of("192.0.2.1") != places[0] for _ in range(3)), "nobody can aim"
    scoreboard.close()


def _spend(file: int, started: float, seconds: float, passed: multiprocessing.Queue) -> None:
    one = Budget(Scoreboard.inherited(file).rate_limit_cells, 5, 200.0, 20)
    while time.monotonic() < started:
        time.sleep(0.001)
    count = 0
    while time.monotonic() < started + seconds:
        count += one.take() == 0.0
        # As much as a request takes besides.
        sum(range(2000))
    passed.put(count)


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


@pytest.mark.parametrize(
    ("address", "network"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("fe80::1%eth0", "fe80::"),
        ("testclient", "testclient"),
        ("", ""),
    ],
)
def test_who_counts_as_one(address, network):
    assert network_of(address) == network


CLIENT = ("10.0.0.9", 5)


@pytest.mark.parametrize(
    ("said", "address"),
    [
        ([], "10.0.0.9"),
        (["192.0.2.1"], "192.0.2.1"),
        (["6.6.6.6, 192.0.2.1"], "192.0.2.1"),
        (["6.6.6.6", "192.0.2.1, 10.1.1.1"], "192.0.2.1"),
        (["192.0.2.1:4711"], "192.0.2.1"),
        (["[2001:db8::1]:4711"], "2001:db8::1"),
        (["2001:db8::1"], "2001:db8::1"),
        (["10.3.3.3, 10.2.2.2"], "10.3.3.3"),
        (["192.0.2.1, nonsense"], "10.0.0.9"),
        (["nonsense, 10.2.2.2"], "10.2.2.2"),
        (["' OR 1=1 --"], "10.0.0.9"),
        (["\xff"], "10.0.0.9"),
    ],
)
def test_a_trusted_proxy_is_believed_as_far_as_it_can_know(said, address):
    headers = [(b"x-forwarded-for", value.encode("latin-1")) for value in said]
    proxies = TrustedProxies(["10.0.0.0/8", "::1"])
    assert proxies.address_of(CLIENT, headers) == address


def test_others_are_not_believed():
    headers = [(b"x-forwarded-for", b"192.0.2.1")]
    assert TrustedProxies().address_of(CLIENT, headers) == "10.0.0.9"
    assert TrustedProxies(["10.9.0.0/16"]).address_of(CLIENT, headers) == "10.0.0.9"
    assert TrustedProxies(["10.0.0.0/8"]).address_of(None, headers) == ""
    assert TrustedProxies(["10.0.0.0/8"]).address_of(("a name", 1), headers) == "a name"
    assert TrustedProxies(["10.0.0.0/8"]).address_of(("::ffff:10.0.0.9", 1), headers) == "192.0.2.1"
    with pytest.raises(ValueError, match=r"10\.0\.0\.0/99"):
        TrustedProxies(["10.0.0.0/99"])


def test_settings_name_networks():
    assert Settings(trusted_proxies=" 10.0.0.0/8, ::1 ,").proxies == ("10.0.0.0/8", "::1")
    with pytest.raises(ValueError, match="trusted_proxies"):
        Settings(trusted_proxies="the proxy")


def test_a_rate_is_finite():
    with pytest.raises(ValueError, match="rate_limit"):
        Settings(rate_limit=math.inf)
