"""The relay between arbitrary clients and an arbitrary control process.

What comes from the control process is read as h11 reads it, and nothing of a second response is sent on. What
a client sends arrives as one request at a time: with the client's method, target, headers and body, without
headers of one connection, and without headers in the name of the gate but those that it has written.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, Final

import h11
import httptools

from app.gate import relay
from app.gate.peer import HEADER, Peer
from app.gate.relay import Relay
from app.http.request_id import HEADER as REQUEST_ID
from verification.fuzz.heads import HEADS
from verification.fuzz.wire import Connection, loop, small_bodies

_HOP_BY_HOP: Final = frozenset(
    {b"connection", b"keep-alive", b"proxy-connection", b"te", b"trailer", b"transfer-encoding", b"upgrade"}
)
_OK: Final = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
_MOST_STEPS: Final = 20

RESPONSES: Final = (
    _OK,
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nX-A: b\r\n\r\n2\r\nhi\r\n0\r\n\r\n",
    _CONTINUE + b"HTTP/1.1 201 Created\r\nConnection: close\r\nContent-Length: 0\r\n\r\n",
    b"HTTP/1.1 204 No Content\r\n\r\n",
    b"HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata: x\n\n",
    _OK + b"HTTP/1.1 500 Other\r\nContent-Length: 3\r\n\r\nbad",
)


class Disagreement(Exception):
    """The relay has sent on something else than it was given."""


# Responses


def read_response(data: bytes, _folder: Path) -> None:
    """Relay a response that arrives in pieces. The first byte: whether to HEAD, and their size."""
    is_head, size, data = bool(data[0] & 1), 1 + (data[0] >> 1) * 3, data[1:]
    response = relay._Response(has_body=not is_head)
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    try:
        for start in range(0, len(data), size):
            response.feed(data[start : start + size])
            if response.status:
                _finish(response.send_on(send, is_started=bool(sent)))
            if response.is_complete:
                break
    except relay._Lost:
        return
    _check_messages(sent, response)
    if response.is_complete:
        theirs = _read_by_h11(data, is_head=is_head)
        ours = sent[0]["status"], b"".join(message["body"] for message in sent[1:])
        if theirs is not None and theirs != ours:
            raise Disagreement(f"{ours!r:.300} and {theirs!r:.300}")


def _finish(work: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine that waits for nothing."""
    try:
        work.send(None)
    except StopIteration:
        return
    raise Disagreement("Sending on has waited.")


def _check_messages(sent: list[Any], response: Any) -> None:
    kinds = [message["type"] for message in sent]
    if kinds[1:] != ["http.response.body"] * len(kinds[1:]) or kinds[:1] not in ([], ["http.response.start"]):
        raise Disagreement(f"The messages are {kinds}.")
    if any(not message["more_body"] for message in sent[1:-1]):
        raise Disagreement("Something follows the end.")
    for name, value in sent[0]["headers"] if sent else ():
        if name in _HOP_BY_HOP:
            raise Disagreement(f"The header {name!r} is sent on.")
        if b"\r" in value or b"\n" in value or b"\0" in value:
            raise Disagreement(f"The value of {name!r} has line ends.")
    if response.is_complete and sent[-1]["more_body"]:
        raise Disagreement("The end is not sent on.")


def _read_by_h11(data: bytes, *, is_head: bool) -> tuple[int, bytes] | None:
    """Status and body of the first response; None if h11 refuses it or finds it unfinished."""
    connection = h11.Connection(h11.CLIENT)
    method = "HEAD" if is_head else "GET"
    connection.send(h11.Request(method=method, target="/", headers=[("host", "x")]))
    connection.send(h11.EndOfMessage())
    status, body = 0, b""
    try:
        connection.receive_data(data)
        while True:
            event = connection.next_event()
            if isinstance(event, h11.Response):
                status = event.status_code
            elif isinstance(event, h11.Data):
                body += bytes(event.data)
            elif isinstance(event, h11.EndOfMessage):
                return status, body
            elif not isinstance(event, h11.InformationalResponse):
                return None
    except h11.RemoteProtocolError:
        return None


# Requests


class _Upstream:
    """The control process on one connection: it notes the requests, and answers each when it is complete.

    As the writer of the connection it takes what the relay writes.
    """

    def __init__(self, reader: asyncio.StreamReader) -> None:
        self._reader = reader
        self.requests: list[dict[str, Any]] = []
        self.errors: list[str] = []
        self.transport = self
        self.is_closed = False
        self._parser = httptools.HttpRequestParser(self)

    def get_extra_info(self, _name: str) -> None:
        """There is no socket, so nothing can be read before it is asked for."""

    def write(self, data: bytes) -> None:
        if self.is_closed:
            return
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self.errors.append(f"{error!r} at {data!r:.300}")

    async def drain(self) -> None:
        pass

    def is_closing(self) -> bool:
        return self.is_closed

    def close(self) -> None:
        if not self.is_closed:
            self.is_closed = True
            self._reader.feed_eof()

    abort = close

    def on_message_begin(self) -> None:
        self.requests.append({"target": b"", "headers": [], "body": b"", "is_complete": False})

    def on_url(self, url: bytes) -> None:
        self.requests[-1]["target"] += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self.requests[-1]["headers"].append((name, value))

    def on_headers_complete(self) -> None:
        self.requests[-1]["method"] = self._parser.get_method().decode("ascii")
        if dict(self.requests[-1]["headers"]).get(b"expect"):
            self._reader.feed_data(_CONTINUE)

    def on_body(self, body: bytes) -> None:
        self.requests[-1]["body"] += body

    def on_message_complete(self) -> None:
        self.requests[-1]["is_complete"] = True
        self._reader.feed_data(_OK)


class _Relay(Relay):
    """A relay to `_Upstream`; upstreams: all connections."""

    def __init__(self) -> None:
        super().__init__(Path("unused"))
        self.upstreams: list[_Upstream] = []

    async def _connect(self) -> Any:
        reader = asyncio.StreamReader(loop=loop())
        upstream = _Upstream(reader)
        self.upstreams.append(upstream)
        writer: Any = upstream
        return relay._Connection(reader, writer)


def relay_requests(data: bytes, _folder: Path) -> None:
    """Send bytes of a client through a gate that relays everything; the first byte cuts them in two."""
    events, forward = loop(), _Relay()
    given: list[Any] = []
    failures: list[Exception] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen = {"scope": scope, "body": b"", "is_complete": False}
        given.append(seen)

        async def noting() -> Any:
            message = await receive()
            if message["type"] == "http.request":
                seen["body"] += message.get("body", b"")
                seen["is_complete"] = not message.get("more_body", False)
            return message

        try:
            await forward(scope, noting, send)
        except Exception as error:
            failures.append(error)
            raise

    cut = 1 + data[0] * 4
    with small_bodies():
        connection = Connection(events, app, None)
        connection.send(data[1:cut])
        events.turn()
        connection.send(data[cut:])
        for _ in range(_MOST_STEPS):
            events.turn()
            if all(seen["is_complete"] for seen in given):
                break
        events.turn(40)
        try:
            if failures:
                raise Disagreement(f"The relay failed: {failures[0]!r}") from failures[0]
            _check_requests(given, forward.upstreams)
        finally:
            connection.end()
            forward.close()
            events.turn(20)
            events.end_tasks()


def _check_requests(given: list[Any], upstreams: list[_Upstream]) -> None:
    """Every request upstream is one of the client's, in their order."""
    for upstream in upstreams:
        if upstream.errors:
            raise Disagreement(f"The control process cannot read what it is sent: {upstream.errors[0]}")
    arrived = [request for upstream in upstreams for request in upstream.requests]
    if len(arrived) > len(given):
        raise Disagreement(f"{len(given)} requests became {len(arrived)}.")
    found = [
        (request["method"], request["target"], request["body"], dict(request["headers"]).get(HEADER))
        for request in arrived
    ]
    for request in arrived:
        names = [name for name, _ in request["headers"]]
        if names.count(HEADER) != 1 or names.count(REQUEST_ID) != 1:
            raise Disagreement(f"The headers of the gate are not there once: {names}")
        if any(name.startswith(b"stms-") and name != HEADER for name in names):
            raise Disagreement(f"A header of the client is in the name of the gate: {names}")
        if any(name in _HOP_BY_HOP - {b"transfer-encoding"} for name in names):
            raise Disagreement(f"A header of one connection is relayed: {names}")
    for seen in given:
        if seen["is_complete"]:
            _check_request(seen, found)


def _check_request(seen: Any, found: list[Any]) -> None:
    scope = seen["scope"]
    query = scope["query_string"]
    target = scope["raw_path"] + (b"?" + query if query else b"")
    wanted = (scope["method"], target, seen["body"], Peer.of(scope).encode())
    if wanted not in found:
        raise Disagreement(f"{wanted!r:.300} did not arrive; {found!r:.300}")


def response_seeds() -> list[bytes]:
    """Responses in one piece and in small ones, to GET and to HEAD."""
    return [bytes([first]) + response for response in RESPONSES for first in (0xFE, 0xFF, 4)]


def request_seeds() -> list[bytes]:
    """Single requests, a pipeline, and headers that must not pass."""
    odd = (
        b"POST /a?b HTTP/1.1\r\nHost: x\r\nStms-Peer: 1.2.3.4 1 - 0 1.1\r\nX-Request-ID: r\r\n"
        b"TE: trailers\r\nConnection: keep-alive\r\nContent-Length: 3\r\n\r\nabc"
    )
    large = b"POST /b HTTP/1.1\r\nHost: x\r\nContent-Length: 70\r\n\r\n" + b"b" * 70
    return [
        bytes([first]) + head for head in (*HEADS, odd, large, odd + large + HEADS[2]) for first in (9, 255)
    ]
