"""The queries of the other key in `fairness`: their latencies and failures."""

from __future__ import annotations

import json
import os
import select
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

import numpy as np

COLUMNS: Final = 64
RATE: Final = 200.0
"""Queries in a second."""
_CONNECTIONS: Final = 6
_OTHER_EVERY: Final = 25
"""Every so many queries follows another request, so that the rest of the service must answer, too."""
_NONE_MS: Final = 1e6
"""Stands for the p99 if no query has succeeded."""
_TIMEOUT_SECONDS: Final = 10.0
_PRIORITY: Final = 1


@dataclass
class Latencies:
    """Queries of some windows. seconds: of the ones that succeeded. failures: what happened to the others."""

    seconds: list[float] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    @property
    def p50_ms(self) -> float:
        return self._quantile_ms(50)

    @property
    def p99_ms(self) -> float:
        return self._quantile_ms(99)

    @property
    def longest_ms(self) -> float:
        return self._quantile_ms(100)

    def _quantile_ms(self, percent: float) -> float:
        return float(np.percentile(self.seconds, percent)) * 1e3 if self.seconds else _NONE_MS


class Connection:
    """One connection with at most one request in progress, opened when a request is sent."""

    def __init__(self, port: int, seconds: float = _TIMEOUT_SECONDS) -> None:
        self._port, self._seconds = port, seconds
        self._socket: socket.socket | None = None

    def send(self, request: bytes) -> None:
        """Send a request. Raises OSError."""
        if self._socket is None:
            self._socket = socket.create_connection(("127.0.0.1", self._port), self._seconds)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.sendall(request)

    def is_waiting(self) -> bool:
        """Whether a request is in progress of whose response not a byte has come."""
        return self._socket is not None and not select.select([self._socket], [], [], 0)[0]

    def receive(self) -> int | None:
        """Wait for the response; its status, None without a connection. Raises OSError and ValueError."""
        return None if self._socket is None else int(_read(self._socket).split(b" ", 2)[1])

    def close(self) -> None:
        """Close it until the next request."""
        if self._socket is not None:
            self._socket.close()
        self._socket = None


class Prober:
    """Queries at a constant rate, in turn over a few connections.

    rate: queries in a second. others: requests that follow in turn after some of the queries; by default a
    list of the key's models. They have a connection of their own: no query waits for them. new_connections:
    whether every second query has a new connection.
    """

    def __init__(
        self,
        port: int,
        key: str,
        *,
        rate: float = RATE,
        others: Sequence[bytes] = (),
        new_connections: bool = False,
    ) -> None:
        body = json.dumps({"x": np.ones(COLUMNS).tolist()}).encode()
        authorization = f"Authorization: Bearer {key}"
        self._query = request_bytes(
            "POST", "/v1/models/other/classes/0:query", port, authorization, body=body
        )
        self._others = others or [request_bytes("GET", "/v1/models", port, authorization)]
        self._rate = rate
        self._queries = [Connection(port) for _ in range(_CONNECTIONS)]
        self._new = Connection(port) if new_connections else None
        self._other = Connection(port)

    def measure(self, seconds: float, latencies: Latencies) -> None:
        """Query for so long over new connections, as other clients would come and go."""
        self.close()
        began = time.monotonic()
        for number in range(round(seconds * self._rate)):
            due = began + number / self._rate
            time.sleep(max(0.0, due - time.monotonic()))
            self._ask(self._next(number), due, latencies)
            if number % _OTHER_EVERY == 0:
                self._ask_other(number // _OTHER_EVERY, latencies)
        with _failures_counted(self._other, latencies):
            self._receive_other()

    def close(self) -> None:
        """Close all connections."""
        for connection in [*self._queries, self._other, *([self._new] if self._new else [])]:
            connection.close()

    def _next(self, number: int) -> Connection:
        """The connection of a query."""
        if self._new is None:
            return self._queries[number % _CONNECTIONS]
        if number % 2 == 0:
            return self._queries[number // 2 % _CONNECTIONS]
        self._new.close()
        return self._new

    def _ask(self, connection: Connection, due: float, latencies: Latencies) -> None:
        with _failures_counted(connection, latencies):
            connection.send(self._query)
            _check(connection.receive(), 200)
            latencies.seconds.append(time.monotonic() - due)

    def _ask_other(self, number: int, latencies: Latencies) -> None:
        """Read the response to the last of the other requests, if it has come, and send the next one."""
        if self._other.is_waiting():
            return
        with _failures_counted(self._other, latencies):
            self._receive_other()
            self._other.send(self._others[number % len(self._others)])

    def _receive_other(self) -> None:
        # Signing in leads to a page.
        _check(self._other.receive(), None, 200, 204, 303)


def request_bytes(
    method: str,
    path: str,
    port: int,
    *headers: str,
    body: bytes = b"",
    content_type: str = "application/json",
) -> bytes:
    """A request with a body or none."""
    lines = [f"{method} {path} HTTP/1.1", f"Host: 127.0.0.1:{port}", *headers]
    lines += [f"Content-Type: {content_type}", f"Content-Length: {len(body)}"] if body else []
    return "\r\n".join([*lines, "", ""]).encode() + body


def take_precedence() -> bool:
    """Let this thread run as soon as it can, before all others of its core; returns whether it may.

    Processes that it starts do not inherit the precedence.
    """
    policy = os.SCHED_FIFO | os.SCHED_RESET_ON_FORK
    try:
        os.sched_setscheduler(0, policy, os.sched_param(_PRIORITY))
    except PermissionError:
        return False
    return True


def _check(status: int | None, *expected: int | None) -> None:
    """Raise ValueError for another status of a response."""
    if status not in expected:
        raise ValueError(f"status {status}")


@contextmanager
def _failures_counted(connection: Connection, latencies: Latencies) -> Iterator[None]:
    """Count an error as a failure, and close the connection."""
    try:
        yield
    except (OSError, ValueError) as error:
        latencies.failures.append(f"{type(error).__name__}: {error}")
        connection.close()


def _read(connection: socket.socket) -> bytes:
    """One response with a Content-Length. Raises ValueError if the connection is closed within it."""
    data = b""
    while True:
        piece = connection.recv(65536)
        if not piece:
            raise ValueError("the connection was closed")
        data += piece
        head, end, body = data.partition(b"\r\n\r\n")
        length = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
        if end and len(body) >= int(length or 0):
            return data
