"""The queries of the other key in `fairness`: their latencies and failures."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

import numpy as np

COLUMNS: Final = 64
_RATE: Final = 200.0
"""Queries in a second."""
_CONNECTIONS: Final = 6
_LIST_EVERY: Final = 25
"""Every so many queries the other key also lists its models, so that the rest of the API must answer it."""
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
    def p99_ms(self) -> float:
        return float(np.percentile(self.seconds, 99)) * 1e3 if self.seconds else _NONE_MS


class Connection:
    """One connection with at most one request in progress, opened when a request is sent."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._socket: socket.socket | None = None

    def send(self, request: bytes) -> None:
        """Send a request. Raises OSError."""
        if self._socket is None:
            self._socket = socket.create_connection(("127.0.0.1", self._port), _TIMEOUT_SECONDS)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.sendall(request)

    def receive(self) -> None:
        """Wait for the response, unless the connection is closed. Raises ValueError if it is not 200."""
        if self._socket is not None:
            response = _read(self._socket)
            if not response.startswith(b"HTTP/1.1 200 "):
                raise ValueError(response.partition(b"\r\n")[0].decode())

    def close(self) -> None:
        """Close it until the next request."""
        if self._socket is not None:
            self._socket.close()
        self._socket = None


class Prober:
    """Queries at a constant rate, in turn over a few connections.

    Lists of models have a connection of their own: no query waits for them.
    """

    def __init__(self, port: int, key: str) -> None:
        body = json.dumps({"x": np.ones(COLUMNS).tolist()}).encode()
        headers = [
            f"Host: 127.0.0.1:{port}",
            f"Authorization: Bearer {key}",
            "Content-Type: application/json",
        ]
        query = ["POST /v1/models/other/classes/0:query HTTP/1.1", *headers, f"Content-Length: {len(body)}"]
        self._query = "\r\n".join([*query, "", ""]).encode() + body
        self._list = "\r\n".join(["GET /v1/models HTTP/1.1", *headers, "", ""]).encode()
        self._queries = [Connection(port) for _ in range(_CONNECTIONS)]
        self._lists = Connection(port)

    def measure(self, seconds: float, latencies: Latencies) -> None:
        """Query for so long over new connections, as other clients would come and go."""
        for connection in [*self._queries, self._lists]:
            connection.close()
        began = time.monotonic()
        for number in range(int(seconds * _RATE)):
            due = began + number / _RATE
            time.sleep(max(0.0, due - time.monotonic()))
            connection = self._queries[number % _CONNECTIONS]
            with _failures_counted(connection, latencies):
                connection.send(self._query)
                connection.receive()
                latencies.seconds.append(time.monotonic() - due)
            if number % _LIST_EVERY == 0:
                with _failures_counted(self._lists, latencies):
                    # The response to the last request has usually come long ago.
                    self._lists.receive()
                    self._lists.send(self._list)
        with _failures_counted(self._lists, latencies):
            self._lists.receive()


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
