"""The relay on real sockets: a server on TCP in front of one on a Unix socket."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from app.gate.peer import Peer, RelayedRequests
from app.gate.relay import Relay, _Response
from app.processes.listener import listen_locally
from app.query_process import _wait_for_turn
from app.server import progress, server
from app.server.heads import HEAD_BYTES, MAX_HEADERS
from tests.app.server.wire import (
    Reader,
    Response,
    RunningServer,
    Writer,
    listener_with_buffer,
    read_response,
    read_slowly,
    running,
)

LARGE = 4_000_000


class Control:
    """The application behind the relay: it answers by path, and remembers what it has seen."""

    def __init__(self) -> None:
        self.scopes: list[Any] = []
        self.bodies: list[bytes] = []
        self.left = 0
        self.proceed = asyncio.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            for message in ("lifespan.startup.complete", "lifespan.shutdown.complete"):
                await receive()
                await send({"type": message})
            return
        self.scopes.append(scope)
        status = int(scope["path"].strip("/").partition("/")[0] or 200)
        if scope["path"] == "/200/events":
            await self._events(receive, send)
            return
        if "waiting" in scope["path"]:
            await self.proceed.wait()
        body = b""
        if "unread" not in scope["path"]:
            body = await self._read(receive)
            self.bodies.append(body)
        content = b"" if status in (204, 304) else scope["method"].encode() + b" " + body
        if "large" in scope["path"]:
            content = bytes(LARGE)
        headers = [(b"x-own", b"1"), (b"etag", b'"a"')]
        if "page" in scope["path"]:
            headers.append((b"referrer-policy", b"same-origin"))
        if status not in (204, 304) and "chunked" not in scope["path"]:
            headers.append((b"content-length", b"%d" % len(content)))
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else content})

    async def _read(self, receive: Any) -> bytes:
        body, more = b"", True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                self.left += 1
                break
            body, more = body + message.get("body", b""), message.get("more_body", False)
        return body

    async def _events(self, receive: Any, send: Any) -> None:
        headers = [(b"content-type", b"text/event-stream")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"data: 1\n\n", "more_body": True})
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                self.left += 1
                return


@contextlib.asynccontextmanager
async def relayed(folder: Path, **options: Any) -> AsyncIterator[tuple[RunningServer, RunningServer, Relay]]:
    """(server of clients, control server, relay)."""
    path = folder / "control.sock"
    async with _control(path) as control:
        stopping = [False]
        relay = Relay(path, lambda: stopping[0])
        async with running(app=_Front(relay), **options) as front:
            front.stopping = stopping  # type: ignore[attr-defined]
            yield front, control, relay
        relay.close()


def _control(path: Path) -> Any:
    return running(listener=listen_locally(path), app=_WithEcho(Control()))


class _WithEcho(RelayedRequests):
    """As in the control process. proceed: for `running`."""

    def __init__(self, control: Control) -> None:
        super().__init__(control)
        self.control, self.proceed = control, control.proceed


class _Front:
    """The relay with a lifespan."""

    def __init__(self, relay: Relay) -> None:
        self._relay = relay

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            for message in ("lifespan.startup.complete", "lifespan.shutdown.complete"):
                await receive()
                await send({"type": message})
            return
        await self._relay(scope, receive, send)


async def ask(reader: Reader, writer: Writer, request: bytes) -> Response:
    writer.write(request)
    return await read_response(reader)


def request_of(method: str, path: str, body: bytes = b"", *headers: str) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "Host: x", *headers]
    if body:
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode() + body


@pytest.mark.long
async def test_the_largest_head_that_a_client_may_send_passes_with_the_headers_of_the_relay(tmp_path):
    async with relayed(tmp_path) as (front, _, _):
        reader, writer = await front.connect()
        many = [f"X-{number}: a" for number in range(MAX_HEADERS - 2)]
        large = f"X-Large: {'a' * (HEAD_BYTES - 200)}"
        for headers in (many, [large]):
            answer = await ask(reader, writer, request_of("POST", "/200", b"hi", *headers))
            assert (answer.status, answer.body) == (200, b"POST hi")
        answer = await ask(reader, writer, request_of("POST", "/200", b"hi", *many, "X-More: a"))
        assert answer.status == 431


async def test_a_page_keeps_its_own_referrer_policy(tmp_path):
    """Without it browsers would send forms with the origin null, which no page has."""
    async with relayed(tmp_path) as (front, _, _):
        for path, policies in (
            ("/200", [b"no-referrer"]),
            ("/200/page", [b"no-referrer", b"same-origin"]),
        ):
            reader, writer = await front.connect()
            writer.write(request_of("GET", path, b"", "Connection: close"))
            lines = (await asyncio.wait_for(reader.read(), 60)).split(b"\r\n")
            found = [line.partition(b": ")[2] for line in lines if line.startswith(b"referrer-policy")]
            assert found == policies


async def test_nothing_behind_a_response_belongs_to_it():
    messages: list[Any] = []

    async def send(message: Any) -> None:
        messages.append(message)

    ok = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
    response = _Response(has_body=True)
    response.feed(ok + ok.replace(b"200", b"500"))
    await response.send_on(send, is_started=False)
    assert (response.status, response.is_complete, response.is_kept) == (200, True, False)
    assert [message.get("body") for message in messages] == [None, b"ok"]


async def test_requests_and_responses_pass_as_they_are(tmp_path):
    async with relayed(tmp_path) as (front, server, relay):
        control = server.echo.control
        reader, writer = await front.connect()
        for body in (b"", b"small", b"x" * 300_000):
            answer = await ask(reader, writer, request_of("POST", "/201/a%20b?q=1&r", body, "X-Mine: yes"))
            assert (answer.status, answer.body) == (201, b"POST " + body)
            assert answer.headers["x-own"] == "1"
            assert control.bodies[-1] == body
        scope = control.scopes[-1]
        assert (scope["raw_path"], scope["query_string"]) == (b"/201/a%20b", b"q=1&r")
        assert scope["client"] == writer.get_extra_info("sockname")
        assert scope["server"][1] == front.port
        headers = dict(scope["headers"])
        assert headers[b"x-mine"] == b"yes"
        assert b"stms-peer" not in headers
        assert len(relay._kept) == 1, "the same connection carried all three"
        assert len({name for name, _ in scope["headers"]}) == len(scope["headers"])


async def test_a_header_of_the_relay_is_not_taken_from_a_client(tmp_path):
    async with relayed(tmp_path) as (front, server, _relay):
        reader, writer = await front.connect()
        forged = Peer(("192.0.2.1", 1), ("192.0.2.2", 2), "1.1").encode().decode()
        await ask(reader, writer, request_of("GET", "/200", b"", f"stms-peer: {forged}", "STMS-Other: 1"))
        [scope] = server.echo.control.scopes
        assert scope["client"] == writer.get_extra_info("sockname")
        assert not [name for name, _ in scope["headers"] if name.startswith(b"stms-")]


async def test_every_response_has_the_headers_of_the_server_once_and_the_id_of_its_request(tmp_path):
    async with relayed(tmp_path) as (front, server, _relay):
        _reader, writer = await front.connect()
        writer.write(request_of("GET", "/200/chunked", b"", "X-Request-ID: mine", "Connection: close"))
        head = (await _reader.read()).partition(b"\r\n\r\n")[0].lower()
        for name in (b"date:", b"x-content-type-options:", b"referrer-policy:"):
            assert head.count(name) == 1
        assert dict(server.echo.control.scopes[0]["headers"])[b"x-request-id"] == b"mine"
        assert b"transfer-encoding: chunked" in head


@pytest.mark.parametrize(("method", "status"), [("HEAD", 405), ("GET", 204), ("GET", 304), ("HEAD", 200)])
async def test_responses_without_a_body_end_with_their_head(tmp_path, method, status):
    async with relayed(tmp_path) as (front, _server, _relay):
        reader, writer = await front.connect()
        for _ in range(2):
            writer.write(request_of(method, f"/{status}"))
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 60)
            assert head.startswith(b"HTTP/1.1 %d" % status)


async def test_chunked_bodies_pass_in_both_directions(tmp_path):
    async with relayed(tmp_path) as (front, server, _relay):
        reader, writer = await front.connect()
        writer.write(request_of("POST", "/200/chunked", b"", "Transfer-Encoding: chunked"))
        for piece in (b"3\r\nabc\r\n", b"4\r\ndefg\r\n", b"0\r\n\r\n"):
            writer.write(piece)
            await asyncio.sleep(0.01)
        text = await asyncio.wait_for(reader.readuntil(b"\r\n0\r\n\r\n"), 60)
        assert b"POST abcdefg" in text
        assert server.echo.control.bodies == [b"abcdefg"]


async def test_a_body_is_asked_for_only_if_the_application_reads_it(tmp_path):
    async with relayed(tmp_path) as (front, server, _relay):
        reader, writer = await front.connect()
        head = request_of("POST", "/200", b"", "Content-Length: 5", "Expect: 100-continue")
        writer.write(head)
        assert await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 60) == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(b"hello")
        assert (await read_response(reader)).body == b"POST hello"
        writer.write(head.replace(b"/200", b"/401/unread"))
        assert (await read_response(reader)).status == 401, "without a request for the body"
        assert server.echo.control.bodies == [b"hello"]


async def test_a_large_body_that_nobody_reads_is_not_sent_on(tmp_path):
    async with relayed(tmp_path) as (front, server, relay):
        reader, writer = await front.connect()
        writer.write(request_of("POST", "/413/unread", b"x" * 1_000_000))
        assert (await read_response(reader)).status == 413
        assert (server.echo.control.bodies, relay._kept) == ([], [])


async def test_a_client_that_leaves_ends_the_request(tmp_path):
    async with relayed(tmp_path) as (front, server, _relay):
        control = server.echo.control
        _, writer = await front.connect()
        writer.write(request_of("POST", "/200", b"", "Content-Length: 10") + b"part")
        while not control.scopes:
            await asyncio.sleep(0.005)
        writer.close()
        while not control.left:
            await asyncio.sleep(0.005)
        reader, writer = await front.connect()
        writer.write(request_of("GET", "/200/events"))
        await asyncio.wait_for(reader.readuntil(b"data: 1\n\n"), 60)
        writer.close()
        while control.left < 2:
            await asyncio.sleep(0.005)


async def test_endless_responses_end_with_the_process(tmp_path):
    async with relayed(tmp_path) as (front, server, _relay):
        reader, writer = await front.connect()
        writer.write(request_of("GET", "/200/events"))
        await asyncio.wait_for(reader.readuntil(b"data: 1\n\n"), 60)
        front.stopping[0] = True  # type: ignore[attr-defined]
        assert (await asyncio.wait_for(reader.readuntil(b"0\r\n\r\n"), 60)).endswith(b"0\r\n\r\n")
        while not server.echo.control.left:
            await asyncio.sleep(0.005)


async def test_without_the_control_process_requests_are_told_so(tmp_path):
    relay = Relay(tmp_path / "nothing.sock")
    async with running(app=_Front(relay)) as front:
        reader, writer = await front.connect()
        for request in (request_of("GET", "/200"), request_of("POST", "/200", b"hello")):
            answer = await ask(reader, writer, request)
            assert (answer.status, answer.headers["retry-after"]) == (503, "1")
            assert b'"code":"starting"' in answer.body


async def test_a_restarted_control_process_is_found_again(tmp_path):
    path = tmp_path / "control.sock"
    relay = Relay(path)
    async with running(app=_Front(relay)) as front:
        reader, writer = await front.connect()
        for number in range(3):
            async with _control(path):
                assert (await ask(reader, writer, request_of("GET", "/200"))).status == 200, number
                assert len(relay._kept) == 1
            path.unlink()
        assert (await ask(reader, writer, request_of("GET", "/200"))).status == 503
        assert (await ask(reader, writer, request_of("POST", "/200", b"x"))).status == 503


@contextlib.asynccontextmanager
async def _answering(path: Path, response: bytes) -> AsyncIterator[None]:
    """A control process that answers every request with these bytes and closes the connection."""

    async def answer(reader: Reader, writer: Writer) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(response)
        await writer.drain()
        writer.close()

    async with await asyncio.start_unix_server(answer, path):
        yield


async def test_a_response_that_is_cut_off_closes_the_connection(tmp_path):
    path = tmp_path / "control.sock"
    async with (
        _answering(path, b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhalf"),
        running(app=_Front(Relay(path))) as front,
    ):
        reader, writer = await front.connect()
        writer.write(request_of("GET", "/200"))
        text = await asyncio.wait_for(reader.read(), 60)
        assert text.endswith(b"half")


async def test_what_is_no_response_is_an_error(tmp_path):
    path = tmp_path / "control.sock"
    async with _answering(path, b"nonsense\r\n\r\n"), running(app=_Front(Relay(path))) as front:
        reader, writer = await front.connect()
        assert (await ask(reader, writer, request_of("GET", "/200"))).status == 503


@contextlib.asynccontextmanager
async def _losing(path: Path, last: bytes = b"") -> AsyncIterator[list[str]]:
    """A control process that answers requests for /200, and takes each other one, sends ``last`` and closes.

    Yields the first lines of the requests that it has taken.
    """
    taken: list[str] = []

    async def answer(reader: Reader, writer: Writer) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, asyncio.CancelledError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                taken.append(head.partition(b" HTTP")[0].decode())
                if b"content-length" in head.lower():
                    await reader.readexactly(5)
                if b"/200 " not in head:
                    break
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")
        writer.write(last)
        writer.close()

    async with await asyncio.start_unix_server(answer, path):
        yield taken


@pytest.mark.parametrize("is_kept", [True, False])
@pytest.mark.parametrize(("method", "body"), [("POST", b""), ("DELETE", b""), ("PUT", b"hello")])
async def test_a_change_that_was_taken_is_sent_once_and_its_sender_learns_that_it_may_be_made(
    tmp_path, method, body, is_kept
):
    path = tmp_path / "control.sock"
    async with _losing(path) as taken, running(app=_Front(Relay(path))) as front:
        reader, writer = await front.connect()
        if is_kept:
            assert (await ask(reader, writer, request_of("GET", "/200"))).status == 200
            taken.clear()
        answer = await ask(reader, writer, request_of(method, "/lost", body))
        assert taken == [f"{method} /lost"]
        assert answer.status == 502
        assert b'"code":"control_lost"' in answer.body
        assert b"may have been made" in answer.body
        assert "retry-after" not in answer.headers


@pytest.mark.parametrize("method", ["GET", "OPTIONS"])
async def test_a_request_that_changes_nothing_is_sent_again_once(tmp_path, method):
    path = tmp_path / "control.sock"
    relay = Relay(path)
    async with _losing(path) as taken, running(app=_Front(relay)) as front:
        several = [await front.connect() for _ in range(4)]
        await asyncio.gather(*(ask(*connection, request_of("GET", "/200")) for connection in several))
        taken.clear()
        answer = await ask(*several[0], request_of(method, "/lost"))
        assert (answer.status, answer.headers["retry-after"]) == (503, "1")
        assert b'"code":"starting"' in answer.body
        assert taken == [f"{method} /lost"] * 2, "on the kept connection, and on a new one"
        relay.close()


async def test_a_request_of_which_a_part_of_the_answer_came_is_not_sent_again(tmp_path):
    path = tmp_path / "control.sock"
    async with _losing(path, b"HTTP/1.1 2") as taken, running(app=_Front(Relay(path))) as front:
        reader, writer = await front.connect()
        assert (await ask(reader, writer, request_of("GET", "/200"))).status == 200
        assert (await ask(reader, writer, request_of("GET", "/lost"))).status == 503
        assert taken == ["GET /200", "GET /lost"]


async def test_a_kept_connection_that_has_ended_takes_no_request_before_the_event_loop_notices(tmp_path):
    path = tmp_path / "control.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        relay = Relay(path)
        for has_ended in (False, True):
            connection = await relay._connect()
            accepted, _ = listener.accept()
            relay._give_back(connection, is_kept=True)
            if has_ended:
                accepted.close()
            assert (relay._take() is None) is has_ended
            connection.writer.close()
            accepted.close()


async def test_a_client_that_leaves_has_its_request_not_sent_again_and_frees_the_connection(tmp_path):
    """Also before the control process has asked for the body, of which the relay then reads nothing."""
    async with relayed(tmp_path) as (front, control, relay):
        reader, writer = await front.connect()
        assert (await ask(reader, writer, request_of("GET", "/200"))).status == 200
        paths = ["/200"]
        for request in (
            request_of("GET", "/200/waiting"),
            request_of("POST", "/200/waiting", b"", "Content-Length: 1000000"),
        ):
            _, writer = await front.connect()
            writer.write(request)
            paths.append("/200/waiting")
            while len(control.echo.control.scopes) < len(paths):
                await asyncio.sleep(0.005)
            writer.close()
            async with asyncio.timeout(30):
                while control.server._connections:
                    await asyncio.sleep(0.005)
            assert [scope["path"] for scope in control.echo.control.scopes] == paths
        assert relay._kept == []


async def test_a_request_waits_for_its_turn_without_a_connection_and_while_its_client_stays(tmp_path):
    async with relayed(tmp_path) as (front, control, relay):
        turns: list[asyncio.Future[None]] = []

        async def wait_for_turn(scope: Any) -> None:
            assert scope["path"] == "/200"
            turns.append(asyncio.get_running_loop().create_future())
            await turns[-1]

        relay.wait_for_turn = wait_for_turn
        staying, leaving = await front.connect(), await front.connect()
        for number, (_, writer) in enumerate((staying, leaving), start=1):
            writer.write(request_of("GET", "/200"))
            while len(turns) < number:
                await asyncio.sleep(0.005)
        leaving[1].close()
        while not turns[1].cancelled():
            await asyncio.sleep(0.005)
        assert not control.server._connections
        turns[0].set_result(None)
        assert (await read_response(staying[0])).status == 200
        assert len(control.echo.control.scopes) == 1


@pytest.mark.parametrize(
    ("key", "path", "waited"),
    [
        ("known", b"/v1/models", []),
        (None, b"/v1/models", [("192.0.2.1", False)]),
        (None, b"/metrics", [("192.0.2.1", True)]),
    ],
)
async def test_only_requests_without_a_key_wait_for_a_turn_before_they_are_relayed(key, path, waited):
    lanes = []

    async def wait_without_key(address: str, *, is_probe: bool) -> None:
        lanes.append((address, is_probe))

    authenticator = SimpleNamespace(caller_of=lambda _: key, address_of=lambda _: "192.0.2.1")
    parts: Any = SimpleNamespace(
        authenticator=authenticator, budgets=SimpleNamespace(wait_without_key=wait_without_key)
    )
    await _wait_for_turn(parts, {"headers": [], "raw_path": path})
    assert lanes == waited


async def test_a_slow_reader_gets_all_of_a_large_response(tmp_path, monkeypatch):
    """The kernel takes 2 MB of the response at once, and then nothing until a third of that was read."""
    monkeypatch.setattr(server, "TIMEOUT_CHECK_SECONDS", 0.1)
    monkeypatch.setattr(progress, "READ_SECONDS", 0.5)
    async with relayed(tmp_path, listener=listener_with_buffer(1 << 20)) as (front, control, _):
        reader, writer = await front.connect(limit=1 << 14)
        writer.write(request_of("GET", "/200/large"))
        await reader.readuntil(b"\r\n\r\n")
        size = await read_slowly(reader, rate=700_000, size=LARGE)
        assert (size, front.refused, control.refused) == (LARGE, {}, {})


async def test_a_client_that_reads_nothing_ends_the_request_of_the_relay(tmp_path, monkeypatch):
    monkeypatch.setattr(server, "TIMEOUT_CHECK_SECONDS", 0.1)
    monkeypatch.setattr(progress, "READ_SECONDS", 0.5)
    async with relayed(tmp_path, listener=listener_with_buffer(1 << 20)) as (front, control, _):
        _, writer = await front.connect(limit=1 << 14)
        writer.transport.pause_reading()
        writer.write(request_of("GET", "/200/large"))
        async with asyncio.timeout(30):
            while front.refused != {"slow_reader": 1} or control.server._connections:
                await asyncio.sleep(0.05)


async def test_a_body_that_nobody_asks_for_yet_is_not_late(tmp_path, monkeypatch):
    monkeypatch.setattr(server, "TIMEOUT_CHECK_SECONDS", 0.05)
    monkeypatch.setattr(progress, "BODY_SECONDS", 0.2)
    async with relayed(tmp_path) as (front, control, _):
        reader, writer = await front.connect()
        head = request_of("POST", "/200/waiting", b"", "Content-Length: 5", "Expect: 100-continue")
        writer.write(head)
        await asyncio.sleep(1.0)
        control.echo.proceed.set()
        assert await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 60) == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(b"hello")
        assert (await read_response(reader)).body == b"POST hello"
        assert (front.refused, control.refused) == ({}, {})


@pytest.mark.parametrize("scheme", ["http", "https"])
@pytest.mark.parametrize("version", ["1.0", "1.1"])
def test_a_peer_is_written_and_read(version, scheme):
    for client in (("127.0.0.1", 5000), ("::1", 1), ("", 0)):
        peer = Peer(client, ("127.0.0.1", 8000), version, scheme)
        assert Peer.parse(peer.encode()) == peer


async def test_a_request_that_was_not_relayed_is_refused(tmp_path):
    path = tmp_path / "control.sock"
    async with _control(path):
        reader, writer = await asyncio.open_unix_connection(path)
        writer.write(request_of("GET", "/200"))
        assert (await asyncio.wait_for(reader.read(), 60)).startswith(b"HTTP/1.1 500")
        writer.close()
        await writer.wait_closed()
