"""Heads of requests: httptools parses them, and rules check their sizes and their framing.

httptools checks the syntax strictly but has no limits, and a server needs further checks: a request that a
proxy in front of the server could frame differently is refused (request smuggling, RFC 9112 section 11.2).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import httptools

from app.http.problem import Problem, ProblemError
from app.http.types import Header

HEAD_BYTES: Final = 64 * 1024
"""Longest request line with headers, and the largest total of a body's chunk framing and trailers."""
TARGET_BYTES: Final = 16 * 1024
"""Longest request target."""
MAX_HEADERS: Final = 100
RELAYED_BYTES: Final = 4096
RELAYED_HEADERS: Final = 4
"""How much more a head may have that another process has checked by these rules, and has added headers to."""

_END: Final = b"\r\n\r\n"
_SINGLE: Final = {b"authorization": "Authorization", b"host": "Host", b"x-api-key": "X-API-Key"}
"""Headers that a request may have only once, because two readers could take different ones."""
_CHECKED: Final = frozenset({*_SINGLE, b"transfer-encoding"})


class BadRequest(ProblemError):
    """The request breaks a rule and is answered with ``problem``."""

    @classmethod
    def malformed(cls, message: str = "The input is not a valid HTTP/1.1 request.") -> BadRequest:
        """Create the error for a request that is not valid HTTP/1.1."""
        return cls(Problem(400, "malformed_request", message))


@dataclass(frozen=True, slots=True)
class Head:
    """The contents of a request's head.

    headers: with names in lower case. length: of the body in bytes; None if it is chunked. keeps_alive:
    whether another request may follow on the connection. expects_continue: whether the client sends the body
    only after an interim response.
    """

    method: str
    target: bytes
    version: str
    headers: list[Header]
    length: int | None
    keeps_alive: bool
    expects_continue: bool


class EmptyLine:
    """Finds the first empty line of an input that arrives in pieces."""

    def __init__(self) -> None:
        self._tail = b""

    def end(self, data: bytes, start: int = 0) -> int:
        """The position in ``data`` after the first empty line from ``start`` on; −1 if there is none."""
        if self._tail:
            found = (self._tail + data[start : start + len(_END) - 1]).find(_END)
            if found >= 0:
                position = start + found + len(_END) - len(self._tail)
                self._tail = b""
                return position
        found = data.find(_END, start)
        if found >= 0:
            self._tail = b""
            return found + len(_END)
        self._tail = (self._tail + data[start:])[1 - len(_END) :]
        return -1


class HeadReader:
    """Reads one head, in as many pieces as it arrives in; also the callbacks of its parser.

    relayed: whether it comes from another process of this service, see `app.gate.relay`.
    """

    def __init__(self, *, relayed: bool = False) -> None:
        self._parser: httptools.HttpRequestParser | None = httptools.HttpRequestParser(self)
        self._empty_line = EmptyLine()
        self._size = 0
        self._relayed = relayed
        self._target = b""
        self._headers: list[Header] = []
        self._version = ""
        self._keeps_alive = False

    def feed(self, data: bytes) -> int:
        """Parse the input; returns how many bytes belong to the head, or −1 if more are missing.

        ``data`` must not begin with a line end if it is the first piece. Raises BadRequest.
        """
        if self._parser is None:
            raise ValueError("The head has been read.")
        used = self._empty_line.end(data)
        size = len(data) if used < 0 else used
        room = HEAD_BYTES + RELAYED_BYTES * self._relayed - self._size
        self._size += size
        try:
            # This server never changes the protocol: a request that offers another is framed as if it did not
            # (RFC 9110, section 7.8).
            with suppress(httptools.HttpParserUpgrade):
                self._parser.feed_data(data[: min(size, room)])
        except httptools.HttpParserError as error:
            if self._version:
                # The checks give a more precise error.
                self._check()
            raise BadRequest.malformed() from error
        if size > room:
            raise _head_too_large("The head of the request is too large.")
        if (used >= 0) != bool(self._version):
            raise BadRequest.malformed()
        return used

    def take(self) -> Head:
        """The head, once it is complete. Raises BadRequest if it breaks a rule."""
        if self._parser is None:
            raise ValueError("The head has been taken.")
        method = self._parser.get_method().decode("ascii")
        # The parser refers to its callbacks; without this each request would leave a reference cycle.
        self._parser = None
        if method == "CONNECT":
            raise BadRequest.malformed("This server opens no tunnels.")
        is_chunked = self._check()
        length, expects_continue = 0, False
        for name, value in self._headers:
            if name == b"content-length":
                # The parser has refused more than one, and whatever is no number of 64 bits.
                length = int(value)
            elif name == b"expect":
                expects_continue = value.lower() == b"100-continue"
        return Head(
            method,
            self._target,
            self._version,
            self._headers,
            None if is_chunked else length,
            self._keeps_alive and self._version == "1.1",
            expects_continue,
        )

    def _check(self) -> bool:
        most_headers = MAX_HEADERS + RELAYED_HEADERS * self._relayed
        return check_head(self._target, self._headers, self._version, most_headers)

    def on_url(self, url: bytes) -> None:
        """Take a part of the target."""
        self._target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header."""
        self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """Store what is known only at the end of the headers."""
        if self._parser is not None:
            self._version = self._parser.get_http_version()
            self._keeps_alive = self._parser.should_keep_alive()


def check_head(
    target: bytes, headers: Sequence[Header], version: str, most_headers: int = MAX_HEADERS
) -> bool:
    """Check a complete head, whose header names are in lower case.

    Returns whether the body is chunked. Raises BadRequest.
    """
    is_chunked, seen = False, set[bytes]()
    for name, value in headers:
        if name in _CHECKED:
            if name != b"transfer-encoding":
                if name in seen:
                    raise BadRequest.malformed(f"The request has more than one {_SINGLE[name]} header.")
                seen.add(name)
            elif is_chunked or value.strip().lower() != b"chunked":
                raise BadRequest.malformed("The only supported Transfer-Encoding is chunked, given once.")
            else:
                is_chunked = True
    if len(target) > TARGET_BYTES:
        text = f"The target of the request is longer than {TARGET_BYTES} bytes."
        raise BadRequest(Problem(414, "target_too_long", text))
    if len(headers) > most_headers:
        raise _head_too_large(f"The request has more than {MAX_HEADERS} headers.")
    if b"host" not in seen and version != "1.0":
        raise BadRequest.malformed("The request has no Host header.")
    if version not in ("1.1", "1.0"):
        raise BadRequest.malformed("Only HTTP/1.1 and HTTP/1.0 are supported.")
    return is_chunked


def _head_too_large(message: str) -> BadRequest:
    return BadRequest(Problem(431, "head_too_large", message))
