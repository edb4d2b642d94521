"""Clients that are slow, many, or do not read: over real sockets, with less patience than in earnest."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time

import pytest

from app.http.client_address import TrustedProxies
from app.server import protocol, server
from tests.app.server.wire import ASK, answers_in, run, wired

HEAD = b"POST /x HTTP/1.1\r\nHost: x\r\n"


@pytest.fixture(autouse=True)
def _little_patience(monkeypatch):
    monkeypatch.setattr(server, "LOOK_SECONDS", 0.1)
    for name in ("HEAD_SECONDS", "BODY_SECONDS", "READ_SECONDS"):
        monkeypatch.setattr(protocol, name, 0.5)


async def drip(writer: asyncio.StreamWriter, data: bytes, pause: float = 0.05) -> None:
    """Byte by byte, until the server has had enough."""
    with contextlib.suppress(ConnectionError):
        for byte in data:
            writer.write(bytes([byte]))
            await writer.drain()
            await asyncio.sleep(pause)


def test_a_head_that_drips_is_told_so_in_time_however_steadily_it_comes():
    async def story() -> None:
        async with wired() as wire:
            reader, writer = await wire.connect()
            started = time.monotonic()
            dripping = asyncio.create_task(drip(writer, HEAD + b"X: " + b"a" * 1000))
            [answer] = answers_in(await asyncio.wait_for(reader.read(), 10))
            assert answer.status == 408
            assert b'"code":"too_slow"' in answer.body
            assert 0.4 < time.monotonic() - started < 5
            dripping.cancel()
            assert wire.refused == {"slow_head": 1}
            assert await wire.is_well()

    run(story)


def test_who_says_nothing_is_hung_up_on_without_a_word_and_line_ends_are_nothing():
    async def story() -> None:
        async with wired() as wire:
            silent, lines, answered = [await wire.connect() for _ in range(3)]
            answered[1].write(ASK)
            await answered[0].readuntil(b"hi")
            chatter = [asyncio.create_task(drip(writer, b"\r\n" * 200)) for _, writer in (lines, answered)]
            for reader, _ in (silent, lines, answered):
                # To who talks at that very moment the kernel says it by a reset.
                with contextlib.suppress(ConnectionResetError):
                    assert await asyncio.wait_for(reader.read(), 10) == b""
            for task in chatter:
                task.cancel()
            assert wire.refused == {"slow_head": 2, "slow_next": 1}

    run(story)


def test_a_body_that_drips_is_refused_and_the_application_told():
    async def story() -> None:
        async with wired() as wire:
            reader, writer = await wire.connect()
            writer.write(HEAD + b"Content-Length: 100000\r\n\r\n")
            dripping = asyncio.create_task(drip(writer, b"a" * 1000))
            [answer] = answers_in(await asyncio.wait_for(reader.read(), 10))
            assert answer.status == 408
            assert wire.echo.gone == 1
            dripping.cancel()
            assert wire.refused == {"slow_body": 1}

    run(story)


def test_a_body_that_is_not_so_slow_is_taken():
    async def story() -> None:
        async with wired() as wire:
            reader, writer = await wire.connect()
            writer.write(HEAD + b"Content-Length: 40000\r\n\r\n")
            for _ in range(20):
                writer.write(b"a" * 2000)
                await asyncio.sleep(0.1)
            answer = await asyncio.wait_for(reader.readuntil(b"a" * 40000), 10)
            assert answer.startswith(b"HTTP/1.1 200 ")
            assert wire.refused == {}

    run(story)


def test_the_rest_of_a_body_that_was_answered_already_has_its_time_too():
    async def story() -> None:
        async with wired() as wire:
            reader, writer = await wire.connect()
            writer.write(HEAD.replace(b"/x", b"/early") + b"Content-Length: 100000\r\n\r\n")
            dripping = asyncio.create_task(drip(writer, b"a" * 1000))
            [answer] = answers_in(await asyncio.wait_for(reader.read(), 10))
            assert (answer.status, answer.body) == (200, b"no")
            dripping.cancel()
            assert wire.refused == {"slow_body": 1}

    run(story)


def test_who_does_not_read_the_answer_is_hung_up_on():
    async def story() -> None:
        async with wired() as wire:
            quiet = socket.create_connection(("127.0.0.1", wire.port))
            quiet.sendall(ASK.replace(b"/x", b"/large"))
            while wire.refused != {"slow_reader": 1}:
                await asyncio.sleep(0.05)
            while wire.server._connections:
                await asyncio.sleep(0.05)
            quiet.close()
            assert await wire.is_well()

    run(story)


def test_who_reads_slowly_but_steadily_gets_everything():
    async def story() -> None:
        async with wired() as wire:
            reader, writer = await wire.connect(limit=1 << 16)
            writer.write(ASK.replace(b"/x", b"/large"))
            size = 0
            while size < 30_000_000:
                piece = await asyncio.wait_for(reader.read(1 << 20), 10)
                assert piece, size
                size += len(piece)
                await asyncio.sleep(0.005)
            assert wire.refused == {}

    run(story)


def test_a_request_that_takes_the_server_long_is_nobodys_fault():
    async def story() -> None:
        async with wired() as wire:
            reader, writer = await wire.connect()
            writer.write(ASK.replace(b"/x", b"/slow") + ASK[:20])
            await asyncio.sleep(0.2)
            assert wire.refused == {}
            # The next one is late, and yet the first is answered before that is said.
            while wire.refused != {"slow_head": 1}:
                await asyncio.sleep(0.05)
            wire.echo.let_go.set()
            answers = answers_in(await asyncio.wait_for(reader.read(), 10))
            assert [answer.status for answer in answers] == [200, 408]

    run(story)


def test_waiting_for_the_application_is_not_being_slow():
    async def story() -> None:
        async with wired() as wire:
            reader, writer = await wire.connect()
            writer.write(ASK.replace(b"/x", b"/slow"))
            await asyncio.sleep(1.5)
            assert wire.refused == {}
            wire.echo.let_go.set()
            assert (await reader.readuntil(b"hi")).startswith(b"HTTP/1.1 200 ")

    run(story)


def test_one_address_has_so_many_connections_and_no_more(monkeypatch):
    monkeypatch.setattr(protocol, "_is_near", lambda address, proxies: address in proxies)

    async def story() -> None:
        async with wired(max_connections_per_address=2) as wire:
            held = [await wire.connect() for _ in range(2)]
            for reader, writer in held:
                writer.write(ASK)
                await reader.readuntil(b"hi")
            [answer] = await wire.say(ASK)
            assert (answer.status, answer.headers["retry-after"]) == (429, "1")
            crowd = [await wire.connect() for _ in range(2)]
            await asyncio.sleep(0.1)
            reader, _ = await wire.connect()
            with contextlib.suppress(ConnectionError):
                assert await asyncio.wait_for(reader.read(), 5) == b""
            assert wire.refused["connections_of_address"] == 4
            for _, writer in [*held, *crowd]:
                writer.close()
            while wire.server.house.addresses:
                await asyncio.sleep(0.02)
            assert await wire.is_well()
        async with wired(max_connections_per_address=1, proxies=TrustedProxies(["127.0.0.0/8"])) as wire:
            held = [await wire.connect() for _ in range(3)]
            assert await wire.is_well()

    run(story)


@pytest.mark.parametrize(
    ("address", "near"),
    [
        ("127.0.0.1", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("10.1.2.3", True),
        ("192.0.2.1", False),
    ],
)
def test_loopback_and_proxies_are_not_counted(address: str, near: bool):
    assert protocol._is_near(address, TrustedProxies(["10.0.0.0/8"])) is near
