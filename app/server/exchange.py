"""One request that the application answers, and its response, as ASGI 3.0 describes them."""

from __future__ import annotations

import asyncio
import http
import logging
import re
from collections.abc import Callable
from typing import Final
from urllib.parse import unquote

import httptools

from app.http.types import Application, Header, HeaderList, Message, Scope
from app.server.heads import HEAD_BYTES, BadRequest, EmptyLine, Head

logger = logging.getLogger("uvicorn.error")

HIGH_WATER_BYTES: Final = 64 * 1024
"""Input beyond this many bytes is read only on request."""
CLIENT_GONE: Final = "stms.client_gone"
"""Key of a scope whose value is a future that is done as soon as the client can be sent nothing any more."""
_FRAMING_PER_BYTE: Final = 16
"""Bytes of framing allowed for each byte of a chunked body; one chunk per byte needs fewer."""
_BEGINNING_OF_CHUNKED: Final = b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
_NO_NAME: Final = re.compile(rb'[\x00-\x1f\x7f()<>@,;:\[\]={} \t\\"]')
_NO_VALUE: Final = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")
_CLOSE: Final = (b"connection", b"close")
_FAILED: Final = (
    (b"content-type", b"text/plain; charset=utf-8"),
    (b"content-length", b"21"),
    _CLOSE,
)


class Flow:
    """Pauses and resumes the two directions of a connection."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self.transport = transport
        self.is_reading = True
        self.is_writable = True
        self._writable = asyncio.Event()

    def pause_reading(self) -> None:
        """Take no input for now."""
        if self.is_reading:
            self.is_reading = False
            self.transport.pause_reading()

    def resume_reading(self) -> None:
        """Take input again."""
        if not self.is_reading:
            self.is_reading = True
            self.transport.resume_reading()

    def set_writable(self, is_writable: bool) -> None:
        """Note whether the client reads as fast as responses are written."""
        self.is_writable = is_writable
        if is_writable:
            self._writable.set()
        else:
            self._writable.clear()

    async def until_writable(self) -> None:
        """Wait until the client has read most of the output."""
        if not self.is_writable:
            await self._writable.wait()


class ChunkedBody:
    """Decodes a chunked body; trailer fields are dropped, because the application already has the headers."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._received = self._size = 0
        self._empty_line = EmptyLine()
        self._is_complete = False
        self._parser = httptools.HttpRequestParser(self)
        self._parser.feed_data(_BEGINNING_OF_CHUNKED)

    def feed(self, data: bytes) -> tuple[bytes, int]:
        """Decode a part of the body.

        Returns its content, and how many bytes belong to the body, or −1 if more are missing. Raises
        BadRequest.
        """
        start = 0
        try:
            # The end of a body is an empty line, behind the last chunk or its trailers.
            while not self._is_complete and (end := self._empty_line.end(data, start)) >= 0:
                self._parser.feed_data(data[start:end])
                start = end
            if not self._is_complete:
                self._parser.feed_data(data[start:])
        except httptools.HttpParserError as error:
            raise BadRequest.malformed() from error
        used = start if self._is_complete else len(data)
        self._received += used
        content, self._pieces = b"".join(self._pieces), []
        self._size += len(content)
        if self._received - self._size > HEAD_BYTES + _FRAMING_PER_BYTE * self._size:
            # Chunk extensions, tiny chunks and trailers must not be used to send without end.
            raise BadRequest.malformed("The body consists of chunk framing almost entirely.")
        return content, used if self._is_complete else -1

    def close(self) -> None:
        """Break the cycle of the parser and its callbacks."""
        del self._parser

    def on_body(self, body: bytes) -> None:
        """Take a part of the content."""
        self._pieces.append(body)

    def on_message_complete(self) -> None:
        """Note the end."""
        self._is_complete = True


class Exchange:
    """A request in the application.

    scope: of ASGI, with `CLIENT_GONE`. is_received: whether all of its body has arrived. is_started,
    is_complete: state of its response. keeps_alive: whether the connection is open for another request.
    is_last: whether the connection shall end with this response, asked when it begins. on_complete: called
    with the end of the response. expects_continue: whether the client waits for a request to send the body.
    """

    def __init__(
        self,
        scope: Scope,
        head: Head,
        flow: Flow,
        common_headers: HeaderList,
        is_last: Callable[[], bool],
        on_complete: Callable[[], None],
    ) -> None:
        self.scope = scope
        self.is_received = head.length == 0
        self.is_started = self.is_complete = False
        self.keeps_alive = head.keeps_alive
        self._flow = flow
        self._common_headers = common_headers
        self._is_last, self._on_complete = is_last, on_complete
        self.expects_continue = head.expects_continue
        self._missing = head.length or 0
        self._chunks = ChunkedBody() if head.length is None else None
        self._body = bytearray()
        self._gone: asyncio.Future[None] = scope[CLIENT_GONE]
        self._changed = asyncio.Event()
        if self.is_received:
            self._changed.set()
        self._start = b""
        """Start of the response, if it is sent together with the first part of its body."""
        self._unsent: int | None = None
        """Bytes of the body that Content-Length has announced; None for a chunked response."""

    # Request

    def feed(self, data: bytes) -> bytes:
        """Take the body's part of ``data``; returns the input after the body. Raises BadRequest."""
        if self._chunks is None:
            content, rest = data[: self._missing], data[self._missing :]
            self._missing -= len(content)
            self.is_received = not self._missing
        else:
            content, used = self._chunks.feed(data)
            self.is_received = used >= 0
            rest = data[used:] if self.is_received else b""
            if self.is_received:
                self._chunks.close()
        if not self.is_complete:
            self._body += content
            if len(self._body) > HIGH_WATER_BYTES:
                self._flow.pause_reading()
            self._changed.set()
        return rest

    async def receive(self) -> Message:
        """The next part of the body, or the end of the connection."""
        if self.expects_continue and not self._flow.transport.is_closing():
            self.expects_continue = False
            self._flow.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        if not (self._gone.done() or self.is_complete):
            self._flow.resume_reading()
            await self._changed.wait()
            self._changed.clear()
        if self._gone.done() or self.is_complete:
            return {"type": "http.disconnect"}
        body, self._body = bytes(self._body), bytearray()
        return {"type": "http.request", "body": body, "more_body": not self.is_received}

    def disconnect(self) -> None:
        """Tell the application that the client is gone."""
        if not self._gone.done():
            self._gone.set_result(None)
        self._changed.set()

    # Response

    async def run(self, application: Application) -> None:
        """Let the application answer; a client gets 500 if it fails before it has begun to."""
        try:
            await application(self.scope, self.receive, self.send)
        except Exception:
            logger.exception("Exception in ASGI application")
        if self.is_complete or self._gone.done():
            return
        if self.is_started:
            logger.error("The application has not completed its response.")
            self._flow.transport.close()
        else:
            await self.send({"type": "http.response.start", "status": 500, "headers": _FAILED})
            await self.send({"type": "http.response.body", "body": b"Internal Server Error"})

    async def send(self, message: Message) -> None:
        """Send the start or a part of the response. Raises RuntimeError for any other message."""
        if not (self._flow.is_writable or self._gone.done()):
            await self._flow.until_writable()
        if self._gone.done():
            return
        expected = "http.response.body" if self.is_started else "http.response.start"
        if message["type"] != expected or self.is_complete:
            raise RuntimeError(f"The message {message['type']} is not expected now.")
        if self.is_started:
            self._send_body(message.get("body", b""), is_end=not message.get("more_body", False))
        else:
            self._send_start(message["status"], list(message.get("headers", ())))

    def _send_start(self, status: int, headers: list[Header]) -> None:
        if self._is_last():
            headers.append(_CLOSE)
        lines = [b"HTTP/1.1 %d %s\r\n" % (status, _phrase(status))]
        lines += [b"%s: %s\r\n" % header for header in self._common_headers]
        closes = is_chunked = False
        unsent = None
        for name, value in headers:
            if _NO_NAME.search(name) or _NO_VALUE.search(value):
                raise RuntimeError(f"{name!r}: {value!r} is no valid header.")
            name_read = name.lower()
            if name_read == b"content-length":
                unsent = int(value)
            elif name_read == b"transfer-encoding":
                is_chunked = True
            elif name_read == b"connection":
                closes = closes or value.lower() == b"close"
            lines.append(b"%s: %s\r\n" % (name_read, value))
        self.keeps_alive = self.keeps_alive and not closes
        if not (self.keeps_alive or closes):
            lines.append(b"connection: close\r\n")
        if self.scope["method"] == "HEAD" or status in (204, 304):
            unsent = 0
        elif unsent is None and not is_chunked:
            lines.append(b"transfer-encoding: chunked\r\n")
        self._unsent = unsent
        self.is_started, self.expects_continue = True, False
        start = b"".join((*lines, b"\r\n"))
        if unsent is None:
            # The first part may be late.
            self._flow.transport.write(start)
        else:
            self._start = start

    def _send_body(self, body: bytes, *, is_end: bool) -> None:
        if self._unsent is None:
            body = b"%x\r\n%b\r\n" % (len(body), body) if body else b""
            if is_end:
                body += b"0\r\n\r\n"
        elif self.scope["method"] == "HEAD":
            body = b""
        else:
            self._unsent -= len(body)
            if self._unsent < 0 or (is_end and self._unsent):
                raise RuntimeError("The response is not as long as its Content-Length says.")
        start, self._start = self._start, b""
        if start or body:
            self._flow.transport.write(start + body if start else body)
        if is_end:
            self.is_complete = True
            self._changed.set()
            if not self.keeps_alive:
                self._flow.transport.close()
            self._on_complete()


def path_and_query(target: bytes) -> tuple[str, bytes, bytes]:
    """The decoded path, the path as it was sent, and the query of a target. Raises BadRequest."""
    try:
        url = httptools.parse_url(target)
        path = url.path.decode("ascii")
    except (httptools.HttpParserError, AttributeError, UnicodeDecodeError) as error:
        raise BadRequest.malformed() from error
    return unquote(path) if "%" in path else path, url.path, url.query or b""


def _phrase(status: int) -> bytes:
    try:
        return http.HTTPStatus(status).phrase.encode("ascii")
    except ValueError:
        return b""
