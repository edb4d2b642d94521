"""Moments as people and programs write them; the zone is that of the machine only if none is written."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress

import pytest

from app.domain.moments import MAX_SECONDS, NotAMoment, moment_of, seconds_of

NOW = 1_767_225_600.0
"""2026-01-01T00:00:00Z."""


@pytest.fixture
def zone(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[None]:
    """The time zone of the machine."""
    monkeypatch.setenv("TZ", request.param)
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


in_zone = pytest.mark.parametrize("zone", ["Asia/Tokyo", "America/New_York", "UTC"], indirect=True)


@in_zone
@pytest.mark.usefixtures("zone")
@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("2026-01-01T00:00:00Z", NOW),
        ("2026-01-01t00:00:00z", NOW),
        ("2026-01-01 00:00Z", NOW),
        ("2026-01-01T09:00:00+09:00", NOW),
        ("2026-01-01T09:00:00+0900", NOW),
        ("2025-12-31T19:00:00.000-05:00", NOW),
        ("2026-01-01T00:00:00.250Z", NOW + 0.25),
        ("2025-12-31T23:59:60Z", NOW),
        ("1960-01-01T00:00:00Z", 0.0),
        ("9999-12-31T23:59:59-09:00", MAX_SECONDS),
    ],
)
def test_a_time_with_its_zone_is_the_same_everywhere(text: str, seconds: float) -> None:
    assert moment_of(text, 0.0) == moment_of(f" {text} ", 0.0)
    assert (moment_of(text, 0.0).seconds, moment_of(text, 0.0).taken_as) == (seconds, None)
    assert seconds_of(text) == seconds


@pytest.mark.parametrize(
    ("zone", "text", "seconds", "shown"),
    [
        ("Asia/Tokyo", "2026-01-01", NOW - 9 * 3600, "2026-01-01 00:00:00 +0900"),
        ("Asia/Tokyo", "2026-01-01T09:00", NOW, "2026-01-01 09:00:00 +0900"),
        ("Asia/Tokyo", "2026-01-01 09:00:01.5", NOW + 1.5, "2026-01-01 09:00:01 +0900"),
        ("America/New_York", "2026-01-01", NOW + 5 * 3600, "2026-01-01 00:00:00 -0500"),
        ("America/New_York", "2026-07-01", 1_782_878_400.0, "2026-07-01 00:00:00 -0400"),
        ("UTC", "2026-01-01", NOW, "2026-01-01 00:00:00 +0000"),
    ],
    indirect=["zone"],
)
@pytest.mark.usefixtures("zone")
def test_a_time_without_a_zone_is_one_of_the_machine(text: str, seconds: float, shown: str) -> None:
    moment = moment_of(text, 0.0)
    assert moment.seconds == seconds
    assert moment.taken_as is not None
    assert moment.taken_as.strftime("%Y-%m-%d %H:%M:%S %z") == shown
    with pytest.raises(NotAMoment):
        seconds_of(text)


@pytest.mark.parametrize(
    ("text", "ago"),
    [("30s", 30), ("30m", 1800), ("2h", 7200), ("1.5h", 5400), ("7d", 604800), ("2w", 1209600), ("0s", 0)],
)
def test_a_duration_is_before_now(text: str, ago: float) -> None:
    assert moment_of(text, NOW).seconds == NOW - ago
    assert moment_of(text, NOW).taken_as is None


def test_a_duration_longer_than_all_times_begins_with_them() -> None:
    assert moment_of("999999d", NOW).seconds == 0.0


@pytest.mark.parametrize(
    "text",
    [
        *("", " ", "yesterday", "2 h", "2H", "-2h", "2y", "h", "1e3h", "20260101", "2026-W01-1", "2026-1-1"),
        *("2026-01-01T9:00", "2026-01-01T09", "2026-01-01+09:00", "2026-01-01Z", "2026-01-01T09:00 JST"),
        *("1767225600", "٢٠٢٦-٠١-٠١", "2026-01-01T00:00:00Z" + " " * 40, "9" * 1000 + "h"),
    ],
)
def test_what_is_no_moment_is_told_the_forms(text: str) -> None:
    with pytest.raises(NotAMoment, match="Write"):
        moment_of(text, NOW)


@pytest.mark.parametrize(
    "text", ["2026-02-30", "2026-13-01", "2026-01-01T25:00", "2026-01-01T00:61Z", "0000-01-01T00:00Z"]
)
def test_days_and_times_that_do_not_exist(text: str) -> None:
    with pytest.raises(NotAMoment, match="There is no such day or time"):
        moment_of(text, NOW)


@pytest.mark.parametrize("zone", ["Asia/Tokyo", "America/New_York"], indirect=True)
@pytest.mark.usefixtures("zone")
@pytest.mark.parametrize("text", ["0001-01-01", "9999-12-31T23:59:59"])
def test_the_first_and_the_last_year_end_no_command_with_a_traceback(text: str) -> None:
    with suppress(NotAMoment):
        assert moment_of(text, NOW).seconds in (0.0, pytest.approx(MAX_SECONDS, abs=86400))
    assert moment_of(f"{text[:10]}T00:00Z", NOW).seconds in (0.0, pytest.approx(MAX_SECONDS, abs=86400))


def test_an_unescaped_plus_of_an_address_is_meant() -> None:
    assert seconds_of("2026-01-01T09:00:00 09:00") == NOW
    with pytest.raises(NotAMoment, match="needs its time zone"):
        seconds_of("2026-01-01 09:00:00")
