"""The fast path: encoding without a socket; over a socket the same responses as the application's."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar

import pytest

from app.domain.entities import ApiKey
from app.server import connection, server
from app.server.fast_path import FastPath
from tests.app.server.wire import Reader, RunningServer, Writer, read_response, running

BODY = b'{"x":[1,2]}'
QUICK = b"POST /v1/models/pets/classes/cat:query HTTP/1.1\r\nhost: x\r\ncontent-length: 11\r\n\r\n" + BODY
SLOW = QUICK.replace(b"cat", b"dog")
MUCH = 1_000_000
KEY = ApiKey("key_a", "a", "", frozenset({"query"}), frozenset(), 0.0)


class Scored:
    """A body that is worked on while it arrives."""

    status: ClassVar[bytes] = b"200 OK"
    seen: ClassVar[list[int]] = []

    def __init__(self, prepared: Understood, body: memoryview) -> None:
        self._prepared, self._body = prepared, body

    def progress(self, filled: int) -> None:
        self.seen.append(filled)

    def answer(self, body: Any) -> tuple[bytes, bytes] | None:
        assert body is self._body
        return self._prepared.answer(body)


@dataclass
class Understood:
    """A request for a cat."""

    length: int
    caller: str | None
    bodies: ClassVar[list[bytes]] = []
    reserved: ClassVar[list[int]] = []
    is_scored: ClassVar[bool] = False
    status: ClassVar[bytes] = b"200 OK"

    def reserve(self) -> bool:
        if self.length > MUCH:
            return False
        self.reserved.append(self.length)
        return True

    def release(self) -> None:
        self.reserved.remove(self.length)

    def arriving(self, body: memoryview) -> Scored | None:
        return Scored(self, body) if self.is_scored else None

    def answer(self, body: Any) -> tuple[bytes, bytes] | None:
        self.bodies.append(bytes(body))
        return None if bytes(body[:4]) == b"slow" else (b"x-way: short\r\n", b"short")


class Application:
    """Responds to requests for cats on the fast path, and to all others as an ASGI application."""

    def __init__(self) -> None:
        self.received: list[tuple[str, bytes]] = []
        self.offered: list[bytes] = []
        self.proceed = asyncio.Event()
        self.proceed.set()

    def prepare(self, target: bytes, headers: Any, _client: Any) -> Understood | None:
        self.offered.append(target)
        if b"cat" not in target:
            return None
        return Understood(int(dict(headers)[b"content-length"]), None if b"shared" in target else KEY.id)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            for message in ("lifespan.startup.complete", "lifespan.shutdown.complete"):
                await receive()
                await send({"type": message})
            return
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message.get("body", b""), message.get("more_body", False)
        self.received.append((scope["path"], body))
        await self.proceed.wait()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"4")]})
        await send({"type": "http.response.body", "body": b"long"})


class Client:
    """One connection to a running server."""

    def __init__(self, up: RunningServer, reader: Reader, writer: Writer) -> None:
        self.server, self.app, self.reader, self.writer = up.server, up.echo, reader, writer
        self._up = up

    @property
    def connection(self) -> Any:
        return self._up.connection

    async def ask(self, *pieces: bytes) -> tuple[dict[str, str], bytes]:
        for piece in pieces:
            self.writer.write(piece)
            await asyncio.sleep(0.02)
        return await self.response()

    async def response(self) -> tuple[dict[str, str], bytes]:
        response = await read_response(self.reader)
        assert response.status == 200
        return response.headers, response.body

    async def closed(self) -> bool:
        return await asyncio.wait_for(self.reader.read(), 60) == b""


@contextlib.asynccontextmanager
async def connected(max_connections: int = 10) -> AsyncIterator[Client]:
    app = Application()
    fast_path = FastPath(app.prepare)
    fast_path.caller_of = lambda _headers: KEY
    async with running(app=app, max_connections=max_connections, fast_path=fast_path) as up:
        yield Client(up, *await up.connect())


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    async with connected() as opened:
        yield opened


def test_a_response_is_encoded_with_the_common_headers_of_the_moment():
    fast_path = FastPath(lambda _target, _headers, _client: Understood(2, KEY.id))
    common = [(b"date", b"today")]
    for _ in range(2):
        assert fast_path(b"/a:query", [], b"hi", None, common) == (
            b"HTTP/1.1 200 OK\r\ndate: today\r\ncontent-length: 5\r\nx-way: short\r\n\r\nshort"
        )
    response = fast_path(b"/a:query", [], b"hi", None, [(b"date", b"tomorrow")])
    assert response is not None
    assert b"\r\ndate: tomorrow\r\n" in response


def test_without_a_response_the_request_is_left_to_the_application():
    assert FastPath(lambda *_: None)(b"/a:query", [], b"", None, []) is None
    assert FastPath()(b"/a:query", [], b"", None, []) is None
    assert FastPath(lambda *_: Understood(3, "a"))(b"/a:query", [], b"hi", None, []) is None


def test_heads_are_kept_from_their_second_appearance_within_bounds():
    fast_path = FastPath(lambda target, _headers, _client: Understood(0, target.decode() or None))

    def ask(head: bytes, caller: bytes = b"a") -> int:
        fast_path(caller, [], b"", None, [], head)
        return len(fast_path.known)

    assert [ask(b"one\r\n"), ask(b"one\r\n"), ask(b"one\r\n")] == [0, 1, 1]
    assert [ask(b"x" * 2100), ask(b"x" * 2100)] == [1, 1], "too large"
    assert [ask(b"two\r\n", b""), ask(b"two\r\n", b"")] == [1, 1], "no caller"
    for number in range(100):
        for _ in range(2):
            ask(b"%d\r\n" % number)
    assert len(fast_path.known) == 64
    assert [ask(b"other\r\n", b"b"), ask(b"other\r\n", b"b")] == [64, 65], "another key has its own"
    fast_path.forget()
    assert fast_path.known == {}
    assert [ask(b"one\r\n"), ask(b"one\r\n")] == [0, 1]


async def test_a_fast_response_does_not_reach_the_application_and_has_the_common_headers(client: Client):
    headers, body = await client.ask(QUICK)
    assert (body, headers["x-way"]) == (b"short", "short")
    common = {"date", "x-content-type-options", "referrer-policy"}
    assert set(headers) == {*common, "content-length", "x-way"}
    assert set((await client.ask(SLOW))[0]) == {*common, "content-length"}
    assert client.app.received == [("/v1/models/pets/classes/dog:query", BODY)]
    assert (await client.ask(QUICK))[1] == b"short"
    assert (client.connection.fast_responses, client.server.server_state.total_requests) == (2, 3)


@pytest.mark.parametrize(
    "request_bytes",
    [
        QUICK.replace(b"POST", b"GET"),
        QUICK.replace(b":query", b":query?explain=true"),
        QUICK.replace(b"HTTP/1.1", b"HTTP/1.0"),
        QUICK.replace(b"host: x", b"host: x\r\nconnection: close"),
    ],
)
async def test_ineligible_requests_are_not_offered(client, request_bytes):
    assert (await client.ask(request_bytes))[1] == b"long"
    assert client.app.offered == []


async def test_a_client_that_waits_for_100_continue_gets_it(client: Client):
    client.writer.write(QUICK.replace(b"host: x", b"host: x\r\nexpect: 100-continue"))
    assert (await client.reader.readuntil(b"\r\n\r\n")) == b"HTTP/1.1 100 Continue\r\n\r\n"
    assert (await client.response())[1] == b"long"


HEAD_END = len(QUICK) - len(BODY)


@pytest.mark.parametrize("cuts", [[10], [HEAD_END], [HEAD_END + 4], [10, HEAD_END, HEAD_END + 4]])
async def test_a_request_in_pieces_is_answered(client, cuts):
    pieces = [QUICK[a:b] for a, b in pairwise([0, *cuts, len(QUICK)])]
    assert (await client.ask(*pieces))[1] == b"short"
    assert client.app.received == []
    assert (await client.ask(QUICK))[1] == b"short"


async def test_a_head_in_pieces_makes_no_other_head_known(client: Client):
    """The bytes of its first piece would be the beginning of the heads of all requests."""
    for _ in range(3):
        assert (await client.ask(QUICK[:40], QUICK[40:]))[1] == b"short"
    assert client.server.context.fast_path.known == {}
    # Long enough for a body behind the first bytes.
    assert (await client.ask(SLOW[:40], SLOW[40:]))[1] == b"long"
    assert Understood.bodies[-1] == BODY


async def left_late(client: Client, first: bytes) -> None:
    """Send the first part of a request, and check the timeouts until the rest is late."""
    client.writer.write(first)
    while not client.connection._input:
        await asyncio.sleep(0.005)
    for _ in range(2):
        client.connection.check_timeouts(time.monotonic(), 75.0)


async def test_a_late_body_is_left_to_the_application(client: Client):
    await left_late(client, QUICK[:-4])
    assert (await client.ask(QUICK[-4:]))[1] == b"long"
    assert client.app.received == [("/v1/models/pets/classes/cat:query", BODY)]
    assert (await client.ask(QUICK))[1] == b"short"


async def test_a_large_body_in_pieces_is_left_to_the_application(client: Client):
    body = b" " * (connection.FAST_BODY_BYTES + 2)
    request = QUICK[:HEAD_END].replace(b": 11", b": %d" % len(body)) + body
    assert (await client.ask(request[:-1], request[-1:]))[1] == b"long"
    assert client.app.received == [("/v1/models/pets/classes/cat:query", body)]


async def test_a_client_that_leaves_before_its_body_leaves_nothing_behind(client: Client):
    client.writer.write(QUICK[:HEAD_END])
    await asyncio.sleep(0.02)
    connection = client.connection
    assert connection._request is not None
    client.writer.close()
    while connection in client.server._connections:
        await asyncio.sleep(0.005)
    assert client.app.received == []


async def test_a_body_that_comes_while_the_server_drains_is_answered(client: Client):
    await client.ask(QUICK)
    client.writer.write(QUICK[:HEAD_END])
    await asyncio.sleep(0.02)
    client.server.should_exit = True
    while not client.connection._draining:
        await asyncio.sleep(0.005)
    headers, body = await client.ask(BODY)
    assert (headers["connection"], body) == ("close", b"long")
    assert await client.closed()


async def test_pipelined_requests_are_answered_in_order(client: Client):
    client.app.proceed.clear()
    client.writer.write(QUICK + QUICK + SLOW + QUICK + SLOW)
    assert [(await client.response())[1] for _ in range(2)] == [b"short", b"short"]
    await asyncio.sleep(0.05)
    client.app.proceed.set()
    assert [(await client.response())[1] for _ in range(3)] == [b"long", b"short", b"long"]
    assert (await client.ask(QUICK))[1] == b"short"


async def test_a_client_that_does_not_read_gets_no_fast_response(client: Client):
    await client.ask(QUICK)
    client.connection.pause_writing()
    client.writer.write(QUICK)
    await asyncio.sleep(0.05)
    assert len(client.app.offered) == 1
    client.connection.resume_writing()
    assert (await client.response())[1] == b"long"


async def test_malformed_input_after_a_fast_response_is_refused(client: Client):
    assert (await client.ask(QUICK + b"what is this\r\n\r\n"))[1] == b"short"
    assert (await asyncio.wait_for(client.reader.read(), 60)).startswith(b"HTTP/1.1 400")


async def test_a_draining_server_closes_with_the_next_response(client: Client):
    await client.ask(QUICK)
    client.server.should_exit = True
    while not client.connection._draining:
        await asyncio.sleep(0.005)
    headers, body = await client.ask(QUICK)
    assert (headers["connection"], body) == ("close", b"long")
    assert await client.closed()


async def test_an_idle_connection_is_closed_on_shutdown(monkeypatch):
    monkeypatch.setattr(server, "IDLE_SECONDS", 0.05)
    async with connected() as client:
        await client.ask(QUICK)
        client.server.should_exit = True
        assert await client.closed()


async def test_after_a_fast_response_a_connection_may_be_idle_but_a_new_head_is_timed(client: Client):
    await client.ask(QUICK)
    now = time.monotonic()
    for later in range(3):
        client.connection.check_timeouts(now + 60 * later, 75.0)
    assert (await client.ask(QUICK))[1] == b"short"
    client.writer.write(QUICK[:10])
    await asyncio.sleep(0.02)
    for later in range(3):
        client.connection.check_timeouts(now + 60 * later, 75.0)
    assert (await asyncio.wait_for(client.reader.read(), 60)).startswith(b"HTTP/1.1 408 ")


async def test_the_keep_alive_timeout_applies_after_a_fast_response(client: Client):
    await client.ask(SLOW)
    await client.ask(QUICK + QUICK)
    assert (await client.response())[1] == b"short"
    client.connection.check_timeouts(time.monotonic(), 0.0)
    assert await client.closed()


async def test_connection_limits_apply_to_the_fast_path():
    async with connected(max_connections=4) as client:
        port = client.writer.get_extra_info("peername")[1]
        assert (await client.ask(QUICK))[1] == b"short"
        others = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]
        for reader, writer in others:
            writer.write(QUICK)
            assert (await read_response(reader)).body == b"short"
        others.append(await asyncio.open_connection("127.0.0.1", port))
        assert (await client.ask(QUICK))[1] == b"short"
        reader, writer = others[-1]
        writer.write(QUICK)
        assert (await asyncio.wait_for(reader.read(), 60)).startswith(b"HTTP/1.1 429")
        for _, writer in others:
            writer.close()
            await writer.wait_closed()


async def known(client: Client, request: bytes = QUICK) -> None:
    """Let the server learn the head of a request."""
    for _ in range(2):
        assert (await client.ask(request))[1] == b"short"
    offered = len(client.app.offered)
    assert (await client.ask(request))[1] == b"short"
    assert len(client.app.offered) == offered, "it was not looked at again"


async def test_a_request_with_a_known_head_is_answered_without_looking_at_it(client: Client):
    await known(client)
    headers, body = await client.ask(QUICK)
    assert (body, headers["x-way"], "date" in headers) == (b"short", "short", True)
    assert Understood.bodies[-1] == BODY
    client.server.context.fast_path.forget()
    offered = len(client.app.offered)
    assert (await client.ask(QUICK))[1] == b"short"
    assert len(client.app.offered) == offered + 1


async def test_a_head_with_another_meaning_on_each_connection_is_not_kept(client: Client):
    for number in range(4):
        assert (await client.ask(QUICK.replace(b"cat", b"shared-cat")))[1] == b"short"
        assert len(client.app.offered) == number + 1


@pytest.mark.parametrize("cuts", [[10], [HEAD_END], [HEAD_END + 4], [10, HEAD_END, HEAD_END + 4]])
async def test_a_known_head_is_answered_in_pieces_too(client, cuts):
    await known(client)
    pieces = [QUICK[a:b] for a, b in pairwise([0, *cuts, len(QUICK)])]
    assert (await client.ask(*pieces))[1] == b"short"
    assert Understood.bodies[-1] == BODY
    assert (client.app.received, client.connection._input) == ([], b"")
    assert (await client.ask(QUICK))[1] == b"short"


async def test_a_late_body_behind_a_known_head_goes_to_the_application_once(client: Client):
    await known(client)
    await left_late(client, QUICK[:-4])
    assert (await client.ask(QUICK[-4:]))[1] == b"long"
    assert client.app.received == [("/v1/models/pets/classes/cat:query", BODY)]
    assert (await client.ask(QUICK))[1] == b"short"


async def test_known_and_other_requests_are_pipelined_in_order(client: Client):
    await known(client)
    client.writer.write(QUICK + QUICK + SLOW + QUICK)
    assert [(await client.response())[1] for _ in range(4)] == [b"short", b"short", b"long", b"short"]
    assert (await client.ask(QUICK))[1] == b"short"


async def test_a_known_request_that_takes_long_goes_to_the_application(client: Client):
    await known(client)
    slow = QUICK[:HEAD_END] + b"slow567890a"
    assert (await client.ask(slow))[1] == b"long"
    assert client.app.received == [("/v1/models/pets/classes/cat:query", b"slow567890a")]


async def test_a_body_that_is_held_while_the_server_drains_is_answered(client: Client):
    await known(client)
    client.writer.write(QUICK[:HEAD_END])
    await asyncio.sleep(0.02)
    assert client.connection._input
    client.server.should_exit = True
    while not client.connection._draining:
        await asyncio.sleep(0.005)
    headers, body = await client.ask(BODY)
    assert (headers["connection"], body) == ("close", b"long")
    assert await client.closed()


async def test_the_keep_alive_timeout_counts_from_the_last_request_with_a_known_head(client: Client):
    await known(client)
    began = time.monotonic()
    while time.monotonic() - began < 0.3:
        client.connection.check_timeouts(time.monotonic(), 0.2)
        assert (await client.ask(QUICK))[1] == b"short"
    await asyncio.sleep(0.2)
    client.connection.check_timeouts(time.monotonic(), 0.2)
    assert await client.closed()


def large(size: int, start: bytes = b"") -> tuple[bytes, bytes]:
    """Head and body of a large request."""
    body = (start + b"".join(b"%09d," % number for number in range(size // 10 + 1)))[:size]
    return QUICK[:HEAD_END].replace(b": 11", b": %d" % size), body


async def known_large(client: Client, size: int) -> tuple[bytes, bytes]:
    """Let the server learn the head of a large request."""
    head, body = large(size)
    for _ in range(3):
        await client.ask(head, body)
    client.app.received.clear()
    return head, body


@pytest.mark.parametrize("size", [40_000, 900_000])
async def test_a_large_body_behind_a_known_head_is_received_in_place(client, size):
    await known(client)
    head, body = await known_large(client, size)
    for _ in range(2):
        client.writer.write(head + body[:10_000])
        await asyncio.sleep(0.05)
        assert client.connection._receiver.filled == 10_000
        assert Understood.reserved == [size]
        client.writer.write(body[10_000:] + QUICK)
        assert (await client.response())[1] == b"short"
        assert (await client.response())[1] == b"short", "the next one, pipelined"
        assert Understood.bodies[-2:] == [body, BODY]
    assert (client.app.received, Understood.reserved) == ([], [])
    assert client.connection._receiver is None


async def test_a_large_body_is_worked_on_while_it_arrives(monkeypatch):
    monkeypatch.setattr(Understood, "is_scored", True)
    async with connected() as client:
        await known(client)
        head, body = await known_large(client, 900_000)
        Scored.seen.clear()
        assert (await client.ask(head + body[:10], body[10:]))[1] == b"short"
        assert Understood.bodies[-1] == body
        assert (Scored.seen[0] > 10, Scored.seen[-1]) == (True, len(body))


async def test_a_large_body_that_takes_long_goes_to_the_application_whole(client: Client):
    await known(client)
    await known_large(client, 300_000)
    head, body = large(300_000, b"slow")
    assert (await client.ask(head, body))[1] == b"long"
    assert client.app.received == [("/v1/models/pets/classes/cat:query", body)]
    assert (await client.ask(QUICK))[1] == b"short"


async def test_a_large_body_without_room_goes_to_the_application_as_it_arrives(client: Client):
    await known(client)
    head, body = await known_large(client, MUCH + 1)
    client.writer.write(head + body[:10])
    await asyncio.sleep(0.02)
    assert client.connection._receiver is None
    client.writer.write(body[10:])
    assert (await client.response())[1] == b"long"
    assert client.app.received[-1][1] == body


async def test_a_client_that_leaves_within_a_large_body_gives_its_room_back(client: Client):
    await known(client)
    head, body = await known_large(client, 300_000)
    client.writer.write(head + body[:1000])
    await asyncio.sleep(0.02)
    assert Understood.reserved
    client.writer.close()
    while Understood.reserved or client.server._connections:
        await asyncio.sleep(0.005)
    assert client.app.received == []


async def test_a_large_body_that_comes_too_slowly_is_refused(client: Client):
    await known(client)
    head, body = await known_large(client, 300_000)
    client.writer.write(head + body[:1000])
    await asyncio.sleep(0.02)
    now = time.monotonic()
    for later in range(3):
        client.connection.check_timeouts(now + 60 * later, 75.0)
    answer = await asyncio.wait_for(client.reader.read(), 60)
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert Understood.reserved == []
    assert client.server.context.refused["slow_body"] == 1


async def test_a_large_body_that_comes_while_the_server_drains_is_answered(client: Client):
    await known(client)
    head, body = await known_large(client, 300_000)
    client.writer.write(head + body[:1000])
    await asyncio.sleep(0.02)
    client.server.should_exit = True
    while not client.connection._draining:
        await asyncio.sleep(0.005)
    await asyncio.sleep(0.05)
    headers, answer = await client.ask(body[1000:])
    assert (headers["connection"], answer) == ("close", b"long")
    assert client.app.received[-1][1] == body
    assert await client.closed()
    assert Understood.reserved == []


async def test_the_caller_of_a_connection_is_known_by_its_last_head(client: Client):
    await known(client)
    asked: list[Any] = []
    client.server.context.fast_path.caller_of = asked.append
    client.connection.caller()
    assert asked == [[(b"host", b"x"), (b"content-length", b"11")]]
