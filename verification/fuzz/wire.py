"""A connection without a socket, on an event loop whose time the fuzzer moves."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from types import SimpleNamespace
from typing import Any, Final
from unittest import mock

from uvicorn.server import ServerState

from app.processes.scoreboard import State
from app.server import connection
from app.server.connection import HttpConnection
from app.server.context import ServerContext
from app.server.fast_path import FastPath

LARGE_BODY: Final = 64
"""Bodies beyond so many bytes count as large, so that short inputs reach what is done with them."""
_TURNS: Final = 6
MOST_TURNS: Final = 2000
"""More than any input needs: each request takes a few."""


class Loop(asyncio.SelectorEventLoop):
    """An event loop that never waits. now: its time in seconds."""

    now = 0.0

    def time(self) -> float:
        """The time that was set."""
        return self.now

    def turn(self, number: int = _TURNS) -> None:
        """Run what is due, and what that makes due."""
        for _ in range(number):
            private: Any = self
            if not private._ready and not (private._scheduled and private._scheduled[0].when() <= self.now):
                return
            self.call_soon(self.stop)
            self.run_forever()

    def end_tasks(self) -> None:
        """Cancel what still waits, so that nothing of one execution is left to the next."""
        for _ in range(_TURNS):
            tasks = asyncio.all_tasks(self)
            if not tasks:
                return
            for task in tasks:
                task.cancel()
            self.turn()


class Transport(asyncio.Transport):
    """Keeps what the server writes. written: all of it. is_reading: whether the server wants input."""

    def __init__(self, loop: Loop, connection: asyncio.BaseProtocol) -> None:
        super().__init__()
        self._loop, self._protocol = loop, connection
        self._closing = False
        self.written = bytearray()
        self.is_reading = True

    def write(self, data: Any) -> None:
        """Keep bytes of a response."""
        if not self._closing:
            self.written += data

    def can_write_eof(self) -> bool:
        """As a connection without TLS."""
        return True

    def write_eof(self) -> None:
        """Nothing: the end is seen by `is_closing`."""

    def close(self) -> None:
        """End the connection."""
        if not self._closing:
            self._closing = True
            self._loop.call_soon(self._end)

    abort = close

    def _end(self) -> None:
        lost: Any = self._protocol
        lost.connection_lost(None)

    def is_closing(self) -> bool:
        """Whether the server has ended the connection."""
        return self._closing

    def get_write_buffer_size(self) -> int:
        """The client reads everything at once."""
        return 0

    def pause_reading(self) -> None:
        """Take no input for now."""
        self.is_reading = False

    def resume_reading(self) -> None:
        """Take input again."""
        self.is_reading = True

    def set_protocol(self, connection: asyncio.BaseProtocol) -> None:
        """Input goes there from now on."""
        self._protocol = connection

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """The two ends."""
        return {"peername": ("10.0.0.1", 1), "sockname": ("10.0.0.2", 80)}.get(name, default)


class Connection:
    """A connection to an application; feed it with `send`."""

    def __init__(self, loop: Loop, app: Any, fast_path: FastPath | None) -> None:
        slot: Any = SimpleNamespace(state=State.SERVING, connections=1)
        state = ServerState()
        state.default_headers = [(b"x-common", b"1")]
        self._loop = loop
        context = ServerContext(slot, 100, fast_path=fast_path)
        self.protocol = HttpConnection(app, context, state, {}, loop)
        self.transport = Transport(loop, self.protocol)
        self.protocol.connection_made(self.transport)

    @property
    def output(self) -> tuple[bytes, bool]:
        """What the server has written, and whether it has ended the connection."""
        return bytes(self.transport.written), self.transport.is_closing()

    def send(self, data: bytes) -> None:
        """Let bytes arrive, as far as the server takes input."""
        while data and not self.transport.is_closing():
            if not self.transport.is_reading:
                self._loop.turn(MOST_TURNS)
                if not self.transport.is_reading:
                    return
            receiver: Any = self.transport._protocol
            if isinstance(receiver, asyncio.BufferedProtocol):
                buffer = receiver.get_buffer(-1)
                size = min(len(buffer), len(data))
                buffer[:size] = data[:size]
                receiver.buffer_updated(size)
                data = data[size:]
            else:
                receiver.data_received(data)
                data = b""

    def end(self) -> None:
        """Close from the client's side."""
        self.transport.close()
        self._loop.turn()


@contextmanager
def small_bodies() -> Iterator[None]:
    """Bodies are large from `LARGE_BODY` bytes on, and all requests have one id, while the block lasts."""
    with mock.patch.multiple(connection, FAST_BODY_BYTES=LARGE_BODY, request_id_for=lambda _requested: b"id"):
        yield


@cache
def loop() -> Loop:
    """The event loop of all executions."""
    return Loop()
