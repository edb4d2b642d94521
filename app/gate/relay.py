"""Relays requests to the control process: HTTP/1.1 over kept connections to its Unix socket.

A body is sent on as it arrives, and no faster than the control process reads it; a large one, and one whose
client expects 100 Continue, only once the control process asks for it. The response is sent on as it comes.
If the client leaves, the connection to the control process ends, as if the client had been connected there.

A request is sent once. Only one that changes nothing is sent again, once, if the control process closes the
kept connection that took it and no part of an answer came.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httptools

from app.gate.peer import HEADER, OWN_HEADERS, Peer
from app.http.path_prefix import path_as_sent
from app.http.problem import Problem
from app.http.request_id import HEADER as REQUEST_ID
from app.http.request_id import request_id_for
from app.http.responses import problem_response, send_response
from app.http.types import Header, Receive, Scope, Send
from app.server.context import has_input
from app.server.exchange import CLIENT_GONE

_FINAL: Final = 200
"""Statuses below are of interim responses."""
MAX_KEPT: Final = 8
"""Idle connections that are kept for later requests."""
_SMALL_BODY: Final = 64 * 1024
"""Bodies up to this size are sent behind their head at once."""
_PIECE: Final = 64 * 1024
_STOP_SECONDS: Final = 0.5
"""How often an endless response looks whether the process is about to end."""
_HOP_BY_HOP: Final = frozenset(
    {b"connection", b"keep-alive", b"proxy-connection", b"te", b"trailer", b"transfer-encoding", b"upgrade"}
)
_NOT_RELAYED: Final = _HOP_BY_HOP | {REQUEST_ID, b"expect"}
_NOT_SENT_ON: Final = _HOP_BY_HOP | {b"date"}
_COMMON: Final = frozenset({(b"x-content-type-options", b"nosniff"), (b"referrer-policy", b"no-referrer")})
"""The server of this process adds the date, and these, to every response itself."""
_EVENTS: Final = b"text/event-stream"
_SAFE: Final = frozenset({"GET", "HEAD", "OPTIONS"})
"""Methods of requests that change nothing."""
_STARTING: Final = Problem(503, "starting", "The control process is being started.", retry_after=1)
_CONTROL_LOST: Final = Problem(
    502,
    "control_lost",
    "The control process ended before it answered. The change may have been made: look before you repeat it.",
)


class _Unreachable(Exception):
    """The control process accepts no connection; nothing was sent."""


class _Lost(Exception):
    """A request was sent, and the connection to the control process ended before a response began."""


class _Response:
    """The response of the control process while it arrives, with the callbacks of its parser.

    has_begun: whether any part of it has arrived. status: 0 until its head is there. pieces: parts of its
    body that were not sent on yet. is_kept: whether the connection may be used again. wants_body: set when
    the body of the request is asked for.
    """

    def __init__(self, *, has_body: bool) -> None:
        self._has_body = has_body
        self._parser = httptools.HttpResponseParser(self)
        self.headers: list[Header] = []
        self.pieces: list[bytes] = []
        self.wants_body = asyncio.Event()
        self.status = 0
        self.has_begun = self.is_complete = self.is_kept = False

    def feed(self, data: bytes) -> None:
        """Parse a part. Raises _Lost if it is none of a response."""
        self.has_begun = True
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            if not self.is_complete:
                raise _Lost from error
            self.is_kept = False

    def on_message_begin(self) -> None:
        """Nothing belongs to this request behind its response."""
        if self.is_complete:
            raise _Lost

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header."""
        self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """Take the status; an interim response only asks for the body."""
        status = self._parser.get_status_code()
        if status < _FINAL:
            self.headers = []
            self.wants_body.set()
            return
        self.status = status
        self.is_complete = not self._has_body

    def on_body(self, body: bytes) -> None:
        """Take a part of the body."""
        if self._has_body:
            self.pieces.append(body)

    def on_message_complete(self) -> None:
        """Note the end."""
        if self.status:
            self.is_complete = True
            self.is_kept = self._parser.should_keep_alive()

    @property
    def is_endless(self) -> bool:
        """Whether the response is a stream of events."""
        return any(name == b"content-type" and value.startswith(_EVENTS) for name, value in self.headers)

    async def send_on(self, send: Send, *, is_started: bool) -> None:
        """Send on what has arrived since the last call."""
        if not is_started:
            kept = [
                header for header in self.headers if header[0] not in _NOT_SENT_ON and header not in _COMMON
            ]
            await send({"type": "http.response.start", "status": self.status, "headers": kept})
        body, self.pieces = b"".join(self.pieces), []
        if body or self.is_complete:
            await send({"type": "http.response.body", "body": body, "more_body": not self.is_complete})


class _Request:
    """A request as it is relayed.

    is_repeatable: whether it changes nothing and has no body. is_sent: whether all of its body was sent.
    """

    def __init__(self, scope: Scope, receive: Receive, request_id: bytes) -> None:
        length = _header(scope, b"content-length")
        self._receive = receive
        self._is_chunked = _header(scope, b"transfer-encoding") is not None
        has_body = self._is_chunked or int(length or b"0") > 0
        self._waits = (
            self._is_chunked or _header(scope, b"expect") is not None or int(length or b"0") > _SMALL_BODY
        )
        self._head = _head(scope, request_id, is_chunked=self._is_chunked, waits=self._waits)
        self._has_answer_body = scope["method"] != "HEAD"
        self.is_repeatable = scope["method"] in _SAFE and not has_body
        self._gone: asyncio.Future[None] | None = scope.get(CLIENT_GONE)
        self.is_sent = False

    @property
    def is_gone(self) -> bool:
        """Whether its client has left."""
        return self._gone is not None and self._gone.done()

    @contextlib.contextmanager
    def when_gone(self, act: Callable[[], object]) -> Iterator[None]:
        """Call ``act`` if its client leaves during the block."""

        def leave(_: object) -> None:
            act()

        if self._gone is not None:
            self._gone.add_done_callback(leave)
        try:
            yield
        finally:
            if self._gone is not None:
                self._gone.remove_done_callback(leave)

    def begin(self, writer: asyncio.StreamWriter) -> _Response:
        """Send the head; returns the response, of which nothing has arrived yet."""
        response = _Response(has_body=self._has_answer_body)
        if not self._waits:
            response.wants_body.set()
        writer.write(self._head)
        return response

    async def send_body(self, writer: asyncio.StreamWriter, wanted: asyncio.Event) -> None:
        """Send the body once it is ``wanted``, as it arrives."""
        await wanted.wait()
        while not self.is_sent:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                return
            piece = message.get("body", b"")
            if piece:
                writer.write(b"%x\r\n%s\r\n" % (len(piece), piece) if self._is_chunked else piece)
            if not message.get("more_body", False):
                if self._is_chunked:
                    writer.write(b"0\r\n\r\n")
                self.is_sent = True
            try:
                await writer.drain()
            except ConnectionError:
                # It may have answered before all of the body was there.
                return


class Relay:
    """The control process as an ASGI application.

    socket: path of its socket. stopping: whether this process is about to end, so that endless responses end.
    wait_for_turn: awaited before a request takes a connection, for as long as its client stays.
    """

    def __init__(self, socket: Path, stopping: Callable[[], bool] = lambda: False) -> None:
        self._socket = socket
        self._stopping = stopping
        self.wait_for_turn: Callable[[Scope], Coroutine[Any, Any, None]] | None = None
        self._kept: list[_Connection] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Relay one request."""
        request_id = request_id_for(_header(scope, REQUEST_ID))
        request = _Request(scope, receive, request_id)
        if self.wait_for_turn is not None and not await _is_in_time(request, self.wait_for_turn(scope)):
            return
        try:
            await self._relay(request, send)
        except _Unreachable:
            problem = _STARTING
        except _Lost:
            problem = _STARTING if scope["method"] in _SAFE else _CONTROL_LOST
        else:
            return
        await send_response(send, problem_response(problem, request_id, path_as_sent(scope)), request_id)

    def close(self) -> None:
        """Close the connections that are kept."""
        while self._kept:
            self._kept.pop().writer.close()

    async def _relay(self, request: _Request, send: Send) -> None:
        kept = self._take()
        if kept is not None:
            response = request.begin(kept.writer)
            try:
                await self._answer(request, response, kept, send)
            except _Lost:
                # The control process may close a kept connection just when it is used.
                if not request.is_repeatable or request.is_gone or response.has_begun:
                    raise
            else:
                return
        connection = await self._connect()
        await self._answer(request, request.begin(connection.writer), connection, send)

    async def _answer(
        self, request: _Request, response: _Response, connection: _Connection, send: Send
    ) -> None:
        """Send the body of a request whose head was sent, and send its response on. Raises _Lost."""
        writer = connection.writer
        sending = asyncio.ensure_future(request.send_body(writer, response.wants_body))
        is_kept = False
        try:
            with request.when_gone(writer.transport.abort):
                await self._send_response(connection, response, send)
            is_kept = response.is_kept and request.is_sent
        finally:
            sending.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await sending
            self._give_back(connection, is_kept=is_kept)

    async def _send_response(self, connection: _Connection, response: _Response, send: Send) -> None:
        is_started = False
        while not response.is_complete:
            try:
                data = await self._read(connection.reader, response)
            except ConnectionError:
                data = b""
            if not data:
                if not response.status:
                    raise _Lost
                if self._stopping() and response.is_endless:
                    response.is_complete = True
                    await response.send_on(send, is_started=is_started)
                # Otherwise it is cut off, and the server closes the client's connection.
                return
            response.feed(data)
            if response.status:
                await response.send_on(send, is_started=is_started)
                is_started = True

    async def _read(self, reader: asyncio.StreamReader, response: _Response) -> bytes:
        """The next part; none at the end, and none of an endless response once this process is to end."""
        if not response.is_endless:
            return await reader.read(_PIECE)
        while not self._stopping():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_STOP_SECONDS):
                    return await reader.read(_PIECE)
        return b""

    def _take(self) -> _Connection | None:
        while self._kept:
            connection = self._kept.pop()
            # Whatever can be read now, the end of the connection or not, belongs to no request.
            if not connection.writer.is_closing() and not has_input(
                connection.writer.get_extra_info("socket")
            ):
                return connection
            connection.writer.close()
        return None

    async def _connect(self) -> _Connection:
        try:
            return _Connection(*await asyncio.open_unix_connection(self._socket))
        except OSError as error:
            raise _Unreachable from error

    def _give_back(self, connection: _Connection, *, is_kept: bool) -> None:
        if is_kept and len(self._kept) < MAX_KEPT and not connection.writer.is_closing():
            self._kept.append(connection)
        else:
            connection.writer.transport.abort()


@dataclass(slots=True)
class _Connection:
    """A connection to the control process."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter


async def _is_in_time(request: _Request, turn: Coroutine[Any, Any, None]) -> bool:
    """Wait for a turn; returns False as soon as the client of the request has left."""
    waiting = asyncio.ensure_future(turn)
    try:
        with request.when_gone(waiting.cancel):
            await waiting
    except asyncio.CancelledError:
        if not request.is_gone:
            raise
    return not request.is_gone


def _head(scope: Scope, request_id: bytes, *, is_chunked: bool, waits: bool) -> bytes:
    """The head of a request as it is relayed."""
    query: bytes = scope["query_string"]
    target = scope["raw_path"] + (b"?" + query if query else b"")
    lines = [b"%s %s HTTP/1.1" % (scope["method"].encode("ascii"), target)]
    lines += [
        b"%s: %s" % header
        for header in scope["headers"]
        if header[0] not in _NOT_RELAYED and not header[0].startswith(OWN_HEADERS)
    ]
    lines += [b"%s: %s" % (REQUEST_ID, request_id), b"%s: %s" % (HEADER, Peer.of(scope).encode())]
    if is_chunked:
        lines.append(b"transfer-encoding: chunked")
    if waits:
        lines.append(b"expect: 100-continue")
    return b"\r\n".join((*lines, b"", b""))


def _header(scope: Scope, wanted: bytes) -> bytes | None:
    return next((value for name, value in scope["headers"] if name == wanted), None)
