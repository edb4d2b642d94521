"""The same bytes to a connection that knows heads and to one that parses each: both must answer the same.

An input is a stream of ASCII bytes in which larger ones stand for something else: 0x80 and up for one of
`REQUESTS` or `HEADS`, 0xc0 and up for the end of a piece, after which the bits of the byte say how much time
passes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from app.server.fast_path import FastPath
from verification.fuzz.wire import MOST_TURNS, Connection, Loop, loop, small_bodies

QUERY: Final = b"POST /v1/models/a/classes/b:query HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b"
REQUESTS: Final = (
    QUERY % (4, b"body"),
    QUERY % (4, b"slow"),
    QUERY % (0, b""),
    QUERY % (100, b"\0" * 100),
    QUERY % (70, b"slow" * 17 + b"12"),
    (QUERY % (4, b"body")).replace(b"Host", b"X-Key: other\r\nhOST"),
    (QUERY % (4, b"body")).replace(b"\r\nHost", b"\nHost"),
    b"POST /v2/models/a:b/infer HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nhi",
    b"GET /v1/whoami HTTP/1.1\r\nHost: x\r\n\r\n",
    b"POST /v1/m:query HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n",
    b"POST /v1/m:query HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\nhi",
    b"POST /v1/m:query HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 2\r\n\r\nhi",
    b"POST /m:query HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: x\r\nContent-Length: 2\r\n\r\nhi",
)
HEADS: Final = tuple(request.partition(b"\r\n\r\n")[0] + b"\r\n\r\n" for request in REQUESTS)
_SHORTHAND: Final = 0x80
_CUT: Final = 0xC0
_SECONDS: Final = (0.0, 0.0, 0.0, 0.02, 0.06, 0.2)
_MOST_BYTES: Final = 32_768
_CLOSING_SECONDS: Final = 2.0
"""After which a connection has ended that the server wants to end."""
_MOST_IDLE: Final = 4.0
"""Seconds without a byte; after five a connection ends, and what comes at that moment may be lost."""


class Disagreement(Exception):
    """The two connections answer differently."""


class _Understood:
    """A request whose head is understood; the answer says what was seen of it."""

    def __init__(self, target: bytes, headers: Any) -> None:
        by_name = dict(headers)
        self._seen = b"%s %s " % (target, by_name.get(b"x-key", b"-"))
        self.length = int(by_name.get(b"content-length", b"0"))
        self.caller: str | None = "key"

    status = b"200 OK"

    def reserve(self) -> bool:
        return self.length < 4096

    def arriving(self, _body: memoryview) -> None:
        return None

    def release(self) -> None:
        pass

    def answer(self, body: Any) -> tuple[bytes, bytes] | None:
        content = bytes(body)
        return None if content.startswith(b"slow") else (b"", self._seen + content)


class _Forgetful(FastPath):
    """Keeps no head."""

    def _keep(self, _head: bytes, _prepared: Any) -> None:
        pass


async def _answer(scope: Any, receive: Any, send: Any) -> None:
    """The application: the same answers as those of `_Understood`."""
    body, more = b"", True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        body, more = body + message.get("body", b""), message.get("more_body", False)
    query = scope["query_string"]
    target = scope["raw_path"] + (b"?" + query if query else b"")
    content = b"%s %s %s" % (target, dict(scope["headers"]).get(b"x-key", b"-"), body)
    headers = [(b"content-length", b"%d" % len(content))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": content})


def _prepare(target: bytes, headers: Any, _client: Any) -> _Understood | None:
    # As queries do; a fragment is no part of a path.
    return (
        None
        if b"?" in target or b"#" in target or not target.startswith(b"/")
        else _Understood(target, headers)
    )


def compare_connections(data: bytes, _folder: Path) -> None:
    """Raise Disagreement if a connection that knows heads answers anything else than one that parses."""
    events = loop()
    knowing = FastPath(_prepare)
    with small_bodies():
        connections = [Connection(events, _answer, path) for path in (knowing, _Forgetful(_prepare))]
        for piece, seconds in _pieces(data):
            for connection in connections:
                connection.send(piece)
            _pass_time(events, seconds)
        # Held bodies are left to the parser, and then to the application.
        for _ in range(2):
            _pass_time(events, 0.06)
        if any(b"connection: close" in connection.output[0] for connection in connections):
            # Refused requests are still read for a while, which may have begun at different moments.
            _pass_time(events, _CLOSING_SECONDS)
        known, parsed = (connection.output for connection in connections)
        for connection in connections:
            connection.end()
    _pass_time(events, 100.0)
    if known != parsed:
        raise Disagreement(f"{known!r:.400} and {parsed!r:.400}")


def _pass_time(events: Loop, seconds: float) -> None:
    events.now += seconds
    events.turn(MOST_TURNS)


def _pieces(data: bytes) -> list[tuple[bytes, float]]:
    """The pieces of an input, and the seconds after each."""
    pieces, piece = list[tuple[bytes, float]](), bytearray()
    written = (*REQUESTS, *HEADS)
    total, idle = 0, 0.0
    for byte in data:
        if byte < _SHORTHAND:
            piece.append(byte)
        elif byte < _CUT:
            piece += written[(byte - _SHORTHAND) % len(written)]
            total += len(piece)
            if total > _MOST_BYTES:
                break
        else:
            seconds = _SECONDS[byte % len(_SECONDS)]
            idle = seconds if piece else idle + seconds
            if idle < _MOST_IDLE:
                pieces.append((bytes(piece), seconds))
            piece.clear()
    return [*pieces, (bytes(piece), 0.0)]


def seeds() -> list[bytes]:
    """Repeated heads in one piece, in several, and between other requests."""
    again = bytes([0x80]) * 4
    parts = [HEADS[0] + b"\xc0" + b"body"] * 3
    cut = REQUESTS[0][:40] + b"\xc0" + REQUESTS[0][40:]
    large = bytes([0x83, 0x83]) + HEADS[3] + b"\xc0" + b"\0" * 50 + b"\xc3" + b"\0" * 50
    return [
        again + b"\xc0" + again,
        b"".join(parts),
        cut * 3,
        (cut + b"\xc0") * 4,
        large,
        bytes(range(0x80, 0x8D)) * 2,
        again + HEADS[0] + b"\xc4" + b"body" + again,
        REQUESTS[1] * 3 + b"\xc0" + bytes([0x85, 0x85, 0x86, 0x85]),
        b"\r\n" + again + b"\r\n\r\n" + again + b"x",
    ]
