"""Goes on with a request that offers another protocol as HTTP/1.1 (RFC 9110, section 7.8).

The parser ends such a request behind its head, since what follows may belong to the other protocol. This
server never changes the protocol, so that the body follows, and further requests.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import httptools

_FRAMING = (b"content-length", b"transfer-encoding")


class Callbacks(Protocol):
    """What a parser calls."""

    def on_message_begin(self) -> None:
        """A request begins."""

    def on_url(self, url: bytes) -> None:
        """A part of the target."""

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header or trailer."""

    def on_headers_complete(self) -> None:
        """The head is complete."""

    def on_body(self, body: bytes) -> None:
        """A part of the body."""

    def on_message_complete(self) -> None:
        """The request is complete."""


def framing_of_body(headers: Sequence[tuple[bytes, bytes]], *, keep_alive: bool) -> bytes:
    """Header lines that tell where the body ends, and whether another request follows; empty without a body.

    headers: with names in lower case.
    """
    lines = [b"%s: %s\r\n" % header for header in headers if header[0] in _FRAMING]
    if lines and not keep_alive:
        lines.append(b"connection: close\r\n")
    return b"".join(lines)


def parser_of_body(protocol: Callbacks, framing: bytes) -> httptools.HttpRequestParser:
    """A parser for the body of a request whose head another parser has read, and for further requests.

    framing: from `framing_of_body`.
    """
    callbacks = _WithoutFirstHead(protocol)
    parser = httptools.HttpRequestParser(callbacks)
    parser.set_dangerous_leniencies(lenient_data_after_close=True)
    parser.feed_data(b"POST / HTTP/1.1\r\nhost: x\r\n%s\r\n" % framing)
    callbacks.is_first_head = False
    return parser


class _WithoutFirstHead:
    """Passes everything on but the head that is repeated for the parser's sake."""

    def __init__(self, protocol: Callbacks) -> None:
        self.is_first_head = True
        self._protocol = protocol
        self.on_body = protocol.on_body
        self.on_message_complete = protocol.on_message_complete

    def on_message_begin(self) -> None:
        if not self.is_first_head:
            self._protocol.on_message_begin()

    def on_url(self, url: bytes) -> None:
        if not self.is_first_head:
            self._protocol.on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self.is_first_head:
            self._protocol.on_header(name, value)

    def on_headers_complete(self) -> None:
        if not self.is_first_head:
            self._protocol.on_headers_complete()
