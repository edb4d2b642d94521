"""Retries of the client: shed requests, failed connections, and calls that are not repeatable."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import httpx
import pytest

from stms_client import AsyncClient, Client, Problem, Retry, TooBusy, Unavailable, Unreachable
from stms_client.errors import problem_of, unreachable

QUERY = "/v1/models/m/classes/c:query"
ANSWER = {"match": True, "score": 1.0, "threshold": 0.0, "model": "m", "version": 1}
QUICK = Retry(attempts=4, first=0.01, longest=2.0)


def busy(status: int = 429, retry_after: float | None = None) -> Problem:
    return (TooBusy if status == 429 else Unavailable)(status, {}, retry_after)


def lost() -> Problem:
    return Unavailable(502, {"code": "control_lost"})


def stored() -> Problem:
    return Unavailable(503, {"code": "registry_unavailable"})


def gone(*, connected: bool) -> Unreachable:
    return Unreachable("gone", connected=connected)


def test_a_shed_query_is_retried_after_retry_after(written):
    written.on("POST", QUERY, {"code": "overloaded"}, 429, Retry_After="1")
    written.on("POST", QUERY, ANSWER)
    started = time.monotonic()
    with Client(written.address, retry=QUICK) as client:
        assert client.is_class("m", "c", [1])
    assert time.monotonic() - started >= 1.0
    assert len(written.requests) == 2


def test_the_asynchronous_client_does_not_block_the_event_loop(written):
    written.on("POST", QUERY, {"code": "overloaded"}, 503, Retry_After="1")
    written.on("POST", QUERY, ANSWER)

    async def both() -> tuple[bool, int]:
        ticks = 0
        async with AsyncClient(written.address, retry=QUICK) as client:
            asked = asyncio.create_task(client.is_class("m", "c", [1]))
            while not asked.done():
                await asyncio.sleep(0.05)
                ticks += 1
            return await asked, ticks

    answer, ticks = asyncio.run(both())
    assert answer
    assert ticks > 3


def test_attempts_are_bounded(written):
    written.on("POST", QUERY, {"code": "overloaded"}, 429)
    with Client(written.address, retry=QUICK) as client, pytest.raises(TooBusy):
        client.is_class("m", "c", [1])
    assert len(written.requests) == 4


def test_a_retry_after_beyond_the_limit_is_not_waited_for():
    assert QUICK.pause(1, busy(retry_after=2.5), repeatable=True) is None
    pause = QUICK.pause(1, busy(retry_after=2.0), repeatable=True)
    assert pause is not None
    assert 2.0 < pause <= 2.01


def test_pauses_double_with_jitter_up_to_the_longest():
    retry = Retry(attempts=10, first=0.1, longest=1.0)
    for attempt, most in ((1, 0.1), (2, 0.2), (3, 0.4), (8, 1.0)):
        pauses = [retry.pause(attempt, busy(), repeatable=True) for _ in range(200)]
        assert all(pause is not None and most / 2 <= pause <= most for pause in pauses)
        assert len(set(pauses)) > 100
    assert retry.pause(10, busy(), repeatable=True) is None


@pytest.mark.parametrize(
    ("error", "repeatable", "again"),
    [
        (busy(429), False, True),
        (busy(503), False, True),
        (busy(502), False, False),
        (busy(504), True, True),
        (lost(), False, False),
        (lost(), True, True),
        (stored(), False, False),
        (stored(), True, True),
        (gone(connected=False), False, True),
        (gone(connected=True), False, False),
        (gone(connected=True), True, True),
        (Problem(400, {}), True, False),
    ],
)
def test_only_repeatable_calls_are_retried(error, repeatable, again):
    assert (QUICK.pause(1, error, repeatable=repeatable) is not None) is again


def test_after_a_broken_connection_queries_are_retried_and_alias_moves_are_not():
    """A server that hangs up on the first request of each connection."""
    hits: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"http://127.0.0.1:{listener.getsockname()[1]}"

        def hang_up() -> None:
            while True:
                try:
                    accepted, _ = listener.accept()
                except OSError:
                    return
                hits.append(accepted.recv(10_000))
                accepted.close()

        thread = threading.Thread(target=hang_up)
        thread.start()
        with Client(address, retry=QUICK) as client:
            with pytest.raises(Unreachable, match="broke off") as caught:
                client.query("m", "c", [1])
            assert caught.value.connected
            assert len(hits) == 4
            with pytest.raises(Unreachable):
                client.cancel_job("j1")
            assert len(hits) == 5
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()


def test_a_server_that_starts_late_is_waited_for():
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        port = reserved.getsockname()[1]
        with Client(f"http://127.0.0.1:{port}", retry=QUICK) as client:
            with pytest.raises(Unreachable, match="No server answers") as caught:
                client.job("j1")
            assert not caught.value.connected


def test_retry_after_may_be_a_date_or_nonsense():
    soon = format_datetime(datetime.now(UTC) + timedelta(seconds=30), usegmt=True)
    for value, least, most in ((soon, 1, 31), ("Thu, 01 Jan 1998 00:00:00 GMT", 0, 0)):
        seconds = problem_of(httpx.Response(503, headers={"Retry-After": value})).retry_after
        assert seconds is not None
        assert least <= seconds <= most
    for value in ("soon", "-1", "9" * 20):
        assert problem_of(httpx.Response(503, headers={"Retry-After": value})).retry_after is None


def test_an_exhausted_connection_pool_is_reported():
    error = unreachable("http://host", httpx.PoolTimeout(""))
    assert "busy" in str(error)
    assert not error.connected
