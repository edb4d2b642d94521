"""Requests answered where they arrive: the same on the wire as those that pass the application."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
import uvloop

from app.processes.scoreboard import Scoreboard, State
from app.server import server
from app.server.server import Server

BODY = b'{"x":[1,2]}'
QUICK = b"POST /v1/models/pets/classes/cat:query HTTP/1.1\r\nhost: x\r\ncontent-length: 11\r\n\r\n" + BODY
SLOW = QUICK.replace(b"cat", b"dog")


class Both:
    """Answers at once about cats; everything else passes the application."""

    def __init__(self) -> None:
        self.passed: list[tuple[str, bytes]] = []
        self.offered: list[bytes] = []
        self.let_go = asyncio.Event()
        self.let_go.set()

    def at_once(
        self, target: bytes, headers: list[tuple[bytes, bytes]], body: bytes, client: Any = None
    ) -> Any:
        self.offered.append(target)
        if b"cat" not in target:
            return None
        assert dict(headers)[b"content-length"] == b"%d" % len(body)
        return [(b"content-length", b"5"), (b"x-way", b"short")], b"short"

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            for answer in ("lifespan.startup.complete", "lifespan.shutdown.complete"):
                await receive()
                await send({"type": answer})
            return
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message.get("body", b""), message.get("more_body", False)
        self.passed.append((scope["path"], body))
        await self.let_go.wait()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"4")]})
        await send({"type": "http.response.body", "body": b"long"})


class Up:
    """A server under way, and one connection to it."""

    def __init__(self, server: Server, both: Both, reader: asyncio.StreamReader, writer: Any) -> None:
        self.server, self.both, self.reader, self.writer = server, both, reader, writer

    @property
    def connection(self) -> Any:
        [found] = self.server._connections
        return found

    async def ask(self, *pieces: bytes) -> tuple[dict[str, str], bytes]:
        for piece in pieces:
            self.writer.write(piece)
            await asyncio.sleep(0.02)
        return await self.answer()

    async def answer(self) -> tuple[dict[str, str], bytes]:
        head = (await asyncio.wait_for(self.reader.readuntil(b"\r\n\r\n"), 5)).decode()
        assert head.startswith("HTTP/1.1 200 OK\r\n")
        headers = dict(line.split(": ", 1) for line in head.split("\r\n")[1:-2])
        return headers, await self.reader.readexactly(int(headers["content-length"]))

    async def closed(self) -> bool:
        return await asyncio.wait_for(self.reader.read(), 5) == b""


@contextlib.asynccontextmanager
async def running(max_connections: int = 10) -> AsyncIterator[Up]:
    scoreboard, both = Scoreboard.private(), Both()
    scoreboard.slots[0].claim(State.STARTING)
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    server = Server(
        both,
        listener,
        scoreboard=scoreboard,
        slot=scoreboard.slots[0],
        grace=5.0,
        max_connections=max_connections,
        log_level="critical",
        tick=lambda: None,
        at_once=both.at_once,
    )
    task = asyncio.create_task(server.serve())
    while scoreboard.slots[0].state is not State.SERVING:
        await asyncio.sleep(0.005)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        yield Up(server, both, reader, writer)
    finally:
        server.should_exit = True
        both.let_go.set()
        writer.close()
        await asyncio.wait_for(task, 20)


def run(story: Any) -> None:
    uvloop.run(story())


def test_an_answer_at_once_passes_no_application_and_looks_like_any_other():
    async def story() -> None:
        async with running() as up:
            headers, body = await up.ask(QUICK)
            assert (body, headers["x-way"]) == (b"short", "short")
            common = {"date", "x-content-type-options", "referrer-policy"}
            assert set(headers) == {*common, "content-length", "x-way"}
            assert set((await up.ask(SLOW))[0]) == {*common, "content-length"}
            assert up.both.passed == [("/v1/models/pets/classes/dog:query", BODY)]
            assert (await up.ask(QUICK))[1] == b"short"
            assert (up.connection.answered, up.server.server_state.total_requests) == (2, 3)

    run(story)


@pytest.mark.parametrize(
    "request_bytes",
    [
        QUICK.replace(b"POST", b"GET"),
        QUICK.replace(b":query", b":query?explain=true"),
        QUICK.replace(b"HTTP/1.1", b"HTTP/1.0"),
        QUICK.replace(b"host: x", b"host: x\r\nconnection: close"),
        QUICK.replace(b"host: x", b"host: x\r\nconnection: upgrade\r\nupgrade: h2c"),
    ],
)
def test_requests_out_of_the_ordinary_are_not_even_offered(request_bytes):
    async def story() -> None:
        async with running() as up:
            assert (await up.ask(request_bytes))[1] == b"long"
            assert up.both.offered == []

    run(story)


def test_a_client_that_waits_for_100_continue_gets_it():
    async def story() -> None:
        async with running() as up:
            up.writer.write(QUICK.replace(b"host: x", b"host: x\r\nexpect: 100-continue"))
            assert (await up.reader.readuntil(b"\r\n\r\n")) == b"HTTP/1.1 100 Continue\r\n\r\n"
            assert (await up.answer())[1] == b"long"

    run(story)


@pytest.mark.parametrize("cut", [10, len(QUICK) - len(BODY), len(QUICK) - 4])
def test_a_request_that_comes_in_pieces_is_answered(cut):
    async def story() -> None:
        async with running() as up:
            # Whoever has the head only waits for the body like everybody else.
            assert (await up.ask(QUICK[:cut], QUICK[cut:]))[1] == (b"short" if cut == 10 else b"long")
            assert up.both.passed == ([] if cut == 10 else [("/v1/models/pets/classes/cat:query", BODY)])
            assert (await up.ask(QUICK))[1] == b"short"

    run(story)


def test_requests_in_a_row_are_answered_in_their_order():
    async def story() -> None:
        async with running() as up:
            up.both.let_go.clear()
            up.writer.write(QUICK + QUICK + SLOW + QUICK + SLOW)
            assert [(await up.answer())[1] for _ in range(2)] == [b"short", b"short"]
            await asyncio.sleep(0.05)
            up.both.let_go.set()
            # What comes behind one that takes its time takes the same way.
            assert [(await up.answer())[1] for _ in range(3)] == [b"long", b"long", b"long"]
            assert (await up.ask(QUICK))[1] == b"short"

    run(story)


def test_who_does_not_read_is_not_answered_at_once():
    async def story() -> None:
        async with running() as up:
            await up.ask(QUICK)
            up.connection.flow.pause_writing()
            up.writer.write(QUICK)
            await asyncio.sleep(0.05)
            assert len(up.both.offered) == 1
            up.connection.flow.resume_writing()
            assert (await up.answer())[1] == b"long"

    run(story)


def test_nonsense_behind_an_answer_is_refused():
    async def story() -> None:
        async with running() as up:
            assert (await up.ask(QUICK + b"what is this\r\n\r\n"))[1] == b"short"
            assert (await asyncio.wait_for(up.reader.read(), 5)).startswith(b"HTTP/1.1 400")

    run(story)


def test_nothing_is_begun_for_a_client_that_is_sent_away():
    async def story() -> None:
        async with running() as up:
            await up.ask(QUICK)
            up.connection._body = []
            up.connection.transport.close()
            up.connection._take_the_long_way()
            assert await up.closed()
            assert up.both.passed == []

    run(story)


def test_a_draining_server_says_good_bye_with_the_next_answer():
    async def story() -> None:
        async with running() as up:
            await up.ask(QUICK)
            up.server.should_exit = True
            while not up.connection._drains:
                await asyncio.sleep(0.005)
            headers, body = await up.ask(QUICK)
            assert (headers["connection"], body) == ("close", b"long")
            assert await up.closed()

    run(story)


def test_an_idle_connection_is_closed_when_the_server_ends(monkeypatch):
    monkeypatch.setattr(server, "IDLE_SECONDS", 0.05)

    async def story() -> None:
        async with running() as up:
            await up.ask(QUICK)
            up.server.should_exit = True
            assert await up.closed()

    run(story)


def test_who_was_answered_may_fall_silent_and_who_began_another_request_may_not():
    async def story() -> None:
        async with running() as up:
            await up.ask(QUICK)
            now = time.monotonic()
            for later in range(3):
                up.connection.look(now + 60 * later)
            assert (await up.ask(QUICK))[1] == b"short"
            up.writer.write(QUICK[:10])
            await asyncio.sleep(0.02)
            for later in range(3):
                up.connection.look(now + 60 * later)
            assert (await asyncio.wait_for(up.reader.read(), 5)).startswith(b"HTTP/1.1 408 ")

    run(story)


def test_idle_connections_end_after_the_usual_time():
    async def story() -> None:
        async with running() as up:
            await up.ask(SLOW)
            up.connection.timeout_keep_alive = 0.1
            await up.ask(QUICK + QUICK)
            assert (await up.answer())[1] == b"short"
            assert await up.closed()

    run(story)


def test_too_many_connections_are_refused_all_the_same():
    async def story() -> None:
        async with running(max_connections=4) as up:
            port = up.writer.get_extra_info("peername")[1]
            others = [await asyncio.open_connection("127.0.0.1", port) for _ in range(4)]
            assert (await up.ask(QUICK))[1] == b"short"
            reader, writer = others[-1]
            writer.write(QUICK)
            assert (await asyncio.wait_for(reader.read(), 5)).startswith(b"HTTP/1.1 429")
            for _, writer in others:
                writer.close()
                await writer.wait_closed()

    run(story)
