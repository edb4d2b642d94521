"""Slow clients and limits of connections, over real sockets and with short timeouts."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time

import pytest

from app.http.client_address import TrustedProxies
from app.processes.scoreboard import Scoreboard
from app.server import progress, server
from app.server.context import ServerContext
from tests.app.server.wire import POST, SLOW, RunningServer, parse_responses, running

HEAD = b"POST /x HTTP/1.1\r\nHost: x\r\n"


@pytest.fixture(autouse=True)
def _short_timeouts(monkeypatch):
    monkeypatch.setattr(server, "TIMEOUT_CHECK_SECONDS", 0.1)
    for name in ("HEAD_SECONDS", "BODY_SECONDS", "READ_SECONDS", "UNREAD_SECONDS"):
        monkeypatch.setattr(progress, name, 0.5)


async def drip(writer: asyncio.StreamWriter, data: bytes, pause: float = 0.05) -> None:
    """Send byte by byte until the server closes the connection."""
    with contextlib.suppress(ConnectionError):
        for byte in data:
            writer.write(bytes([byte]))
            await writer.drain()
            await asyncio.sleep(pause)


async def test_a_slow_head_is_timed_out_even_if_bytes_arrive_steadily(up: RunningServer):
    reader, writer = await up.connect()
    started = time.monotonic()
    dripping = asyncio.create_task(drip(writer, HEAD + b"X: " + b"a" * 1000))
    [response] = parse_responses(await asyncio.wait_for(reader.read(), 60))
    assert response.status == 408
    assert b'"code":"too_slow"' in response.body
    assert time.monotonic() - started > 0.4
    dripping.cancel()
    assert up.refused == {"slow_head": 1}
    assert await up.is_serving()


async def test_a_silent_client_is_disconnected_and_line_ends_are_not_a_request(
    monkeypatch: pytest.MonkeyPatch, up: RunningServer
):
    silent, lines, answered = [await up.connect() for _ in range(3)]
    answered[1].write(POST)
    await answered[0].readuntil(b"hi")
    chatter = [asyncio.create_task(drip(writer, b"\r\n" * 200)) for _, writer in (lines, answered)]
    for reader, _ in (silent, lines):
        # A client that is just sending gets a reset.
        with contextlib.suppress(ConnectionResetError):
            assert await asyncio.wait_for(reader.read(), 60) == b""
    assert up.refused == {"slow_head": 2}
    monkeypatch.setattr(server, "KEEP_ALIVE_SECONDS", 0.5)
    with contextlib.suppress(ConnectionResetError):
        assert await asyncio.wait_for(answered[0].read(), 60) == b""
    for task in chatter:
        task.cancel()


async def test_a_slow_body_is_timed_out_and_the_application_notified(up: RunningServer):
    reader, writer = await up.connect()
    writer.write(HEAD + b"Content-Length: 100000\r\n\r\n")
    dripping = asyncio.create_task(drip(writer, b"a" * 1000))
    [response] = parse_responses(await asyncio.wait_for(reader.read(), 60))
    assert response.status == 408
    assert up.echo.aborted == 1
    dripping.cancel()
    assert up.refused == {"slow_body": 1}


@pytest.mark.long
async def test_a_body_at_the_minimum_rate_is_accepted(up: RunningServer):
    reader, writer = await up.connect()
    writer.write(HEAD + b"Content-Length: 40000\r\n\r\n")
    for _ in range(20):
        writer.write(b"a" * 2000)
        await asyncio.sleep(0.1)
    response = await asyncio.wait_for(reader.readuntil(b"a" * 40000), 60)
    assert response.startswith(b"HTTP/1.1 200 ")
    assert up.refused == {}


async def test_the_rest_of_a_body_is_timed_out_after_an_early_response(up: RunningServer):
    reader, writer = await up.connect()
    writer.write(HEAD.replace(b"/x", b"/early") + b"Content-Length: 100000\r\n\r\n")
    dripping = asyncio.create_task(drip(writer, b"a" * 1000))
    # Reading to the end could fail: a byte that is sent after the close is answered by a reset.
    received = await asyncio.wait_for(reader.readuntil(b"\r\n\r\nno"), 60)
    [response] = parse_responses(received)
    assert (response.status, response.body) == (200, b"no")
    while up.server._connections:
        await asyncio.sleep(0.05)
    dripping.cancel()
    assert up.refused == {"unread_body": 1}


async def test_a_client_that_does_not_read_the_response_is_disconnected(up: RunningServer):
    quiet = socket.create_connection(("127.0.0.1", up.port))
    quiet.sendall(POST.replace(b"/x", b"/large"))
    while up.refused != {"slow_reader": 1}:
        await asyncio.sleep(0.05)
    while up.server._connections:
        await asyncio.sleep(0.05)
    quiet.close()
    assert await up.is_serving()


async def test_a_client_that_reads_slowly_but_steadily_gets_the_whole_response(up: RunningServer):
    reader, writer = await up.connect(limit=1 << 16)
    writer.write(POST.replace(b"/x", b"/large"))
    size = 0
    while size < 30_000_000:
        piece = await asyncio.wait_for(reader.read(1 << 20), 60)
        assert piece, size
        size += len(piece)
        await asyncio.sleep(0.005)
    assert up.refused == {}


async def test_a_slow_application_is_not_a_slow_client_and_is_answered_first(up: RunningServer):
    reader, writer = await up.connect()
    writer.write(SLOW + POST[:20])
    await asyncio.sleep(0.2)
    assert up.refused == {}
    # The second request is late only once the first has been answered.
    await asyncio.sleep(1.0)
    up.echo.proceed.set()
    responses = parse_responses(await asyncio.wait_for(reader.read(), 60))
    assert [response.status for response in responses] == [200, 408]


async def test_a_client_that_waits_for_the_application_is_not_timed_out(up: RunningServer):
    reader, writer = await up.connect()
    writer.write(SLOW)
    await asyncio.sleep(1.5)
    assert up.refused == {}
    up.echo.proceed.set()
    assert (await reader.readuntil(b"hi")).startswith(b"HTTP/1.1 200 ")


async def test_the_number_of_connections_of_one_address_is_limited(monkeypatch):
    monkeypatch.setattr(ServerContext, "_is_exempt", lambda self, address: address in self.proxies)
    async with running(max_connections_per_address=2) as up:
        held = [await up.connect() for _ in range(2)]
        for reader, writer in held:
            writer.write(POST)
            await reader.readuntil(b"hi")
        [response] = await up.send(POST)
        assert (response.status, response.headers["retry-after"]) == (429, "1")
        crowd = [await up.connect() for _ in range(2)]
        await asyncio.sleep(0.1)
        reader, _ = await up.connect()
        with contextlib.suppress(ConnectionError):
            assert await asyncio.wait_for(reader.read(), 60) == b""
        assert up.refused["connections_of_address"] == 4
        for _, writer in [*held, *crowd]:
            writer.close()
        while up.server.context.connections:
            await asyncio.sleep(0.02)
        assert await up.is_serving()
    async with running(max_connections_per_address=1, proxies=TrustedProxies(["127.0.0.0/8"])) as up:
        held = [await up.connect() for _ in range(3)]
        assert await up.is_serving()


@pytest.mark.parametrize(
    ("address", "is_exempt"),
    [
        ("127.0.0.1", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("10.1.2.3", True),
        ("192.0.2.1", False),
    ],
)
def test_loopback_and_proxies_are_exempt_from_the_limit(address: str, is_exempt: bool):
    context = ServerContext(
        Scoreboard.private().slots[0], 10, max_per_address=5, proxies=TrustedProxies(["10.0.0.0/8"])
    )
    assert (context.add_connection(address) is None) is is_exempt
