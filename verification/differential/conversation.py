"""Sends a case on a connection of its own, and reads what comes back."""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from verification.differential.requests import Case

_LAST: Final = b"GET /livez HTTP/1.1\r\nHost: localhost\r\nX-Request-ID: last\r\nConnection: close\r\n\r\n"
"""Sent behind the others; it is answered if the connection is still open, and between two requests."""
_LONGEST: Final = 30.0
_INTERIM: Final = range(100, 200)
_NO_BODY: Final = (204, 304)
_ID: Final = re.compile(rb"[0-9a-f]{12}-[0-9a-f]+")
_DATE: Final = b"date"
_LENGTH: Final = b"content-length"
_PROBLEM: Final = b"application/problem+json"


@dataclass(frozen=True, slots=True)
class Response:
    """A response without what is different each time. headers: sorted, names in lower case."""

    status: int
    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes

    def header(self, name: bytes) -> bytes | None:
        """The first value of a header."""
        return next((value for known, value in self.headers if known == name), None)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came back. is_closed: whether the server has closed the connection. rest: bytes of no response."""

    responses: tuple[Response, ...]
    is_closed: bool
    rest: bytes


async def converse(port: int, case: Case, seconds: float) -> Outcome:
    """Send a case. seconds: without a byte for so long nothing more is expected."""
    data = bytearray()
    # Not a stream: that would lose what has arrived when the server closes while more is sent.
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setblocking(False)
        for pause, piece in case.pieces:
            await asyncio.sleep(pause)
            await _send(connection, piece)
        wanted = len(case.methods)
        await _read(connection, data, seconds, lambda: len(_parse(bytes(data), case.methods)[0]) >= wanted)
        await _send(connection, _LAST)
        is_closed = await _read(connection, data, seconds, lambda: False)
    responses, rest = _parse(bytes(data), (*case.methods, "GET"))
    return Outcome(tuple(responses), is_closed, _ID.sub(b"ID", rest))


async def _send(connection: socket.socket, data: bytes) -> None:
    """Send, as far as the server takes it."""
    with suppress(OSError, TimeoutError):
        async with asyncio.timeout(_LONGEST):
            await asyncio.get_running_loop().sock_sendall(connection, data)


async def _read(
    connection: socket.socket, data: bytearray, seconds: float, is_enough: Callable[[], bool]
) -> bool:
    """Read on; returns whether the connection was closed."""
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(_LONGEST):
        while not is_enough():
            try:
                piece = await asyncio.wait_for(loop.sock_recv(connection, 1 << 16), seconds)
            except TimeoutError:
                return False
            except ConnectionError:
                return True
            if not piece:
                return True
            data += piece
    return False


def _parse(data: bytes, methods: Sequence[str]) -> tuple[list[Response], bytes]:
    """The complete responses at the start of some bytes, and what is behind them."""
    responses: list[Response] = []
    waiting = list(methods)
    while data:
        head, end, behind = data.partition(b"\r\n\r\n")
        if not end or not head.startswith(b"HTTP/1.1 "):
            break
        lines = head.split(b"\r\n")
        status = int(lines[0].split()[1])
        headers = [(name.lower(), value) for name, _, value in (line.partition(b": ") for line in lines[1:])]
        if status in _INTERIM:
            responses.append(Response(status, tuple(headers), b""))
            data = behind
            continue
        method = waiting.pop(0) if waiting else "GET"
        found = _body(dict(headers), behind, has_body=method != "HEAD" and status not in _NO_BODY)
        if found is None:
            break
        body, data = found
        responses.append(Response(status, _comparable(headers), _ID.sub(b"ID", body)))
    return responses, data


def _body(headers: dict[bytes, bytes], data: bytes, *, has_body: bool) -> tuple[bytes, bytes] | None:
    """The body, and what is behind it; None if it is incomplete."""
    if not has_body:
        return b"", data
    if headers.get(b"transfer-encoding") == b"chunked":
        return _chunks(data)
    length = int(headers.get(b"content-length", b"0"))
    return (data[:length], data[length:]) if len(data) >= length else None


def _chunks(data: bytes) -> tuple[bytes, bytes] | None:
    body = bytearray()
    while True:
        size, end, data = data.partition(b"\r\n")
        if not end:
            return None
        length = int(size, 16)
        if len(data) < length + 2:
            return None
        body += data[:length]
        data = data[length + 2 :]
        if not length:
            return bytes(body), data


def _comparable(headers: list[tuple[bytes, bytes]]) -> tuple[tuple[bytes, bytes], ...]:
    """The headers, sorted, without the date, and with the length of the body without an id of its own."""
    by_name = dict(headers)
    request_id = by_name.get(b"x-request-id", b"")
    kept = [(name, _ID.sub(b"ID", value)) for name, value in headers if name not in (_DATE, _LENGTH)]
    if _LENGTH in by_name:
        has_id = by_name.get(b"content-type") == _PROBLEM and _ID.fullmatch(request_id)
        kept.append((_LENGTH, b"%d" % (int(by_name[_LENGTH]) - (len(request_id) if has_id else 0))))
    return tuple(sorted(kept))
