"""The request head, read by the server's parser with its rules and by h11: both must see the same request."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import h11
import httptools

from app.server.request_rules import BadRequest, RequestRules

HEADS: Final = (
    b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    b"POST /v1/a?b=c HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nhi",
    b"POST /a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n2;a=b\r\nhi\r\n0\r\nX: y\r\n\r\n",
    b"POST /a HTTP/1.0\r\nContent-Length: 1\r\nX-Api-Key: k\r\nAuthorization: Bearer k\r\n\r\nx",
    b"GET / HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nConnection: close\r\nAccept: */*\r\n\r\n",
)


class Disagreement(Exception):
    """The two parsers see different requests in the same bytes."""


class _Request:
    """Callbacks of httptools that keep the first request, checked as `app.server.protocol` checks it."""

    def __init__(self) -> None:
        self.target = b""
        self.headers: list[tuple[bytes, bytes]] = []
        self.body = b""
        self.method = b""
        self.is_complete = False
        self.parser = httptools.HttpRequestParser(self)

    def on_url(self, url: bytes) -> None:
        if not self.is_complete:
            self.target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self.is_complete:
            self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        if not self.is_complete:
            self.method = self.parser.get_method()
            RequestRules().check_head(self.target, self.headers, self.parser.get_http_version())

    def on_body(self, body: bytes) -> None:
        if not self.is_complete:
            self.body += body

    def on_message_complete(self) -> None:
        self.is_complete = True


def compare_heads(data: bytes, _folder: Path) -> None:
    """Raise Disagreement if the server accepts a complete request in which h11 sees another one.

    h11 may refuse what the server accepts: it is the server's framing that a proxy could see differently.
    """
    ours = _Request()
    try:
        ours.parser.feed_data(data)
    except httptools.HttpParserUpgrade:
        return
    except (httptools.HttpParserError, BadRequest):
        # An error in a later request does not change the first one.
        if not ours.is_complete:
            return
    if not ours.is_complete:
        return
    theirs = _read_by_h11(data)
    if theirs is not None and theirs != (ours.method, ours.target, ours.body):
        raise Disagreement(f"{(ours.method, ours.target, ours.body)!r:.300} and {theirs!r:.300}")


def _read_by_h11(data: bytes) -> tuple[bytes, bytes, bytes | None] | None:
    """Method, target and body of the first request; the body is None if unfinished.

    None if h11 refuses the request.
    """
    connection = h11.Connection(h11.SERVER)
    method = target = body = b""
    try:
        connection.receive_data(data)
        while True:
            event = connection.next_event()
            if event is h11.NEED_DATA or event is h11.PAUSED:
                return method, target, None
            if isinstance(event, h11.Request):
                method, target = event.method, event.target
            elif isinstance(event, h11.Data):
                body += bytes(event.data)
            elif isinstance(event, h11.EndOfMessage):
                return method, target, body
    except h11.RemoteProtocolError:
        return None
