"""Timeouts, without a socket and without waiting."""

from __future__ import annotations

from app.server.progress import (
    BODY_SECONDS,
    HEAD_SECONDS,
    MIN_RATE,
    READ_SECONDS,
    UNREAD_SECONDS,
    WHOLE_BODY_RATE,
    WHOLE_BODY_SECONDS,
    ProgressClock,
    WaitingFor,
)


def test_a_body_just_above_the_minimum_rate_has_a_deadline():
    """A megabyte at 620 bytes/s would hold its place for half an hour."""
    clock, request = ProgressClock(), object()
    ended = next(
        second for second in range(3600) if clock.is_too_slow(WaitingFor.BODY, request, 620 * second, second)
    )
    assert WHOLE_BODY_SECONDS < ended < WHOLE_BODY_SECONDS + 3


def test_a_large_body_may_take_long_and_time_in_which_the_server_does_not_read_is_not_counted():
    clock, request = ProgressClock(), object()
    for second in range(3600):
        assert not clock.is_too_slow(WaitingFor.BODY, request, 2 * WHOLE_BODY_RATE * second, second)
    size = 2 * WHOLE_BODY_RATE * 3600
    assert not clock.is_too_slow(None, request, size, 3600)
    assert not clock.is_too_slow(WaitingFor.BODY, request, size, 10_000)
    assert not clock.is_too_slow(WaitingFor.BODY, request, size + MIN_RATE * 5, 10_005)


def test_the_rest_of_a_body_has_a_fixed_time_after_its_response():
    clock, request = ProgressClock(), object()
    assert not clock.is_too_slow(WaitingFor.UNREAD, request, 0, 0.0)
    assert not clock.is_too_slow(WaitingFor.UNREAD, request, 10**9, UNREAD_SECONDS - 0.1)
    assert clock.is_too_slow(WaitingFor.UNREAD, request, 10**10, UNREAD_SECONDS)


def test_a_head_has_a_fixed_time_however_fast_its_bytes_arrive():
    clock, request = ProgressClock(), object()
    assert not clock.is_too_slow(WaitingFor.HEAD, request, 0, 100.0)
    assert not clock.is_too_slow(WaitingFor.HEAD, request, 10**6, 100.0 + HEAD_SECONDS - 0.1)
    assert clock.is_too_slow(WaitingFor.HEAD, request, 10**9, 100.0 + HEAD_SECONDS)


def test_a_body_must_arrive_at_the_minimum_rate_in_every_period():
    clock, request = ProgressClock(), object()
    enough = int(MIN_RATE * BODY_SECONDS)
    assert not clock.is_too_slow(WaitingFor.BODY, request, 70, 0.0)
    assert not clock.is_too_slow(WaitingFor.BODY, request, 70 + enough, BODY_SECONDS)
    # The next period starts with the next check.
    assert not clock.is_too_slow(WaitingFor.BODY, request, 70 + enough, BODY_SECONDS + 1)
    assert clock.is_too_slow(WaitingFor.BODY, request, 70 + 2 * enough - 1, 2 * BODY_SECONDS + 1)


def test_a_waiting_response_must_be_read_at_the_minimum_rate_on_average():
    enough = MIN_RATE
    for read, ended in ((enough, None), (enough // 2, 2 * READ_SECONDS), (0, READ_SECONDS)):
        clock, request = ProgressClock(), object()
        at = (
            second
            for second in range(3600)
            if clock.is_too_slow(WaitingFor.READ, request, 10**6 + read * second, second)
        )
        assert next(at, None) == ended


def test_a_client_whose_kernel_acknowledges_a_megabyte_at_a_time_is_not_too_slow():
    clock, request = ProgressClock(), object()
    lump, pause = 10**6, int(READ_SECONDS) - 1
    for second in range(3600):
        assert not clock.is_too_slow(WaitingFor.READ, request, lump * (second // pause), second)
    last = 3600 // pause * pause
    ended = next(
        second
        for second in range(3600, 7200)
        if clock.is_too_slow(WaitingFor.READ, request, lump * (3600 // pause), second)
    )
    assert ended == last + READ_SECONDS, "what was read before lets it pause no longer"


def test_another_request_another_phase_and_a_pause_start_a_new_period():
    clock, first, second = ProgressClock(), object(), object()
    late = 100 * HEAD_SECONDS
    assert not clock.is_too_slow(WaitingFor.HEAD, first, 0, 0.0)
    assert not clock.is_too_slow(WaitingFor.HEAD, second, 0, late)
    assert not clock.is_too_slow(WaitingFor.BODY, second, 0, 2 * late)
    assert not clock.is_too_slow(None, second, 0, 2 * late + 1)
    assert not clock.is_too_slow(WaitingFor.BODY, second, 0, 4 * late)
    assert clock.is_too_slow(WaitingFor.BODY, second, 0, 4 * late + BODY_SECONDS)
