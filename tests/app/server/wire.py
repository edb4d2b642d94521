"""A server on a real socket, an application behind it, and clients that send bytes to it."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from app.processes.listener import ProcessContext
from app.processes.scoreboard import Scoreboard, State
from app.server.connection import HttpConnection
from app.server.server import Server

Reader, Writer = asyncio.StreamReader, asyncio.StreamWriter

POST = b"POST /x HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nhi"
SLOW = POST.replace(b"/x", b"/slow")


class Echo:
    """An application that responds with the request body.

    At paths that begin with /slow it waits for `proceed`, at /large it responds with 30 MB, and at /early it
    responds before it has read the body. All requests have the same API key, except those to paths that end
    with stranger. aborted: requests whose body ended early. cancelled: requests that were cancelled.
    """

    def __init__(self) -> None:
        self.proceed = asyncio.Event()
        self.scopes: list[Any] = []
        self.bodies: list[bytes] = []
        self.aborted = 0
        self.cancelled = 0

    @property
    def paths(self) -> list[str]:
        return [scope["path"] for scope in self.scopes]

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            for message in ("lifespan.startup.complete", "lifespan.shutdown.complete"):
                await receive()
                await send({"type": message})
            return None
        self.scopes.append(scope)
        if not scope["path"].endswith("stranger"):
            scope["state"]["caller"] = SimpleNamespace(id="key_a", tenant="default")
        if scope["path"] == "/early":
            return await self._respond(send, b"no")
        body, more = b"", True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                self.aborted += 1
                return None
            body, more = body + message.get("body", b""), message.get("more_body", False)
        self.bodies.append(body)
        if scope["path"].startswith("/slow"):
            try:
                await self.proceed.wait()
            except asyncio.CancelledError:
                self.cancelled += 1
                raise
        return await self._respond(send, b"x" * 30_000_000 if scope["path"] == "/large" else body)

    async def _respond(self, send: Any, body: bytes) -> None:
        headers = [(b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})


@dataclass
class Response:
    """A response with header names and values in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes


class RunningServer:
    """A server in this event loop."""

    def __init__(self, server: Server, echo: Any, port: int, task: asyncio.Task[None]) -> None:
        self.server, self.echo, self.port, self.task = server, echo, port, task
        self.writers: list[Writer] = []

    @property
    def refused(self) -> dict[str, int]:
        return {reason: count for reason, count in self.server.context.refused.items() if count}

    @property
    def connection(self) -> HttpConnection:
        """The only open connection."""
        [connection] = self.server._connections
        return connection

    async def connect(self, *, receive_buffer: int = 0, **options: Any) -> tuple[Reader, Writer]:
        """Connect a client. receive_buffer: bytes that its kernel takes, which do not grow; 0 if they may."""
        if receive_buffer:
            client = socket.socket()
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
            client.connect(("127.0.0.1", self.port))
            reader, writer = await asyncio.open_connection(sock=client, **options)
        else:
            reader, writer = await asyncio.open_connection("127.0.0.1", self.port, **options)
        self.writers.append(writer)
        return reader, writer

    async def send(self, *pieces: bytes, pause: float = 0.02) -> list[Response]:
        """Send on a new connection; returns all responses until the server closes it."""
        reader, writer = await self.connect()
        for piece in pieces:
            writer.write(piece)
            await asyncio.sleep(pause)
        return parse_responses(await asyncio.wait_for(reader.read(), 60))

    async def is_serving(self) -> bool:
        """Whether a valid request is answered on a new connection."""
        reader, writer = await self.connect()
        writer.write(POST)
        return (await asyncio.wait_for(reader.readuntil(b"hi"), 60)).startswith(b"HTTP/1.1 200 ")

    async def refuses_connections(self) -> bool:
        try:
            await self.connect()
        except ConnectionRefusedError:
            return True
        return False

    def stop(self) -> None:
        self.server.should_exit = True

    async def draining(self) -> None:
        while self.server._slot.state is not State.DRAINING:
            await asyncio.sleep(0.005)

    async def until_reached(self, path: str) -> None:
        """Wait until a request has reached the application."""
        while path not in self.echo.paths:
            await asyncio.sleep(0.005)


async def ask(reader: Reader, writer: Writer, path: str = "/") -> Response:
    """Send a request with the body ``hi`` and read the response."""
    writer.write(POST.replace(b"/x", path.encode()))
    return await read_response(reader)


def listener_with_buffer(size: int) -> socket.socket:
    """A listener whose connections have a send buffer of twice ``size`` bytes, which does not grow."""
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, size)
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    return listener


async def read_slowly(reader: Reader, rate: float, size: int) -> int:
    """Read up to ``size`` bytes at ``rate`` bytes a second; returns how many came before the end."""
    loop, received = asyncio.get_running_loop(), 0
    began = loop.time()
    with contextlib.suppress(ConnectionError):
        while received < size and (piece := await asyncio.wait_for(reader.read(1 << 15), 60)):
            received += len(piece)
            await asyncio.sleep(max(0.0, began + received / rate - loop.time()))
    return received


async def read_response(reader: Reader) -> Response:
    head = (await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 60)).decode("latin-1").split("\r\n")
    headers = dict(line.lower().split(": ", 1) for line in head[1:] if line)
    body = await asyncio.wait_for(reader.readexactly(int(headers["content-length"])), 60)
    return Response(int(head[0].split()[1]), headers, body)


def parse_responses(data: bytes) -> list[Response]:
    responses = []
    while data:
        head, _, data = data.partition(b"\r\n\r\n")
        lines = head.decode("latin-1").split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in lines[1:])
        size = int(headers["content-length"])
        responses.append(Response(int(lines[0].split()[1]), headers, data[:size]))
        data = data[size:]
    return responses


@contextlib.asynccontextmanager
async def running(
    scoreboard: Scoreboard | None = None,
    slot: int = 0,
    listener: socket.socket | None = None,
    app: Any = None,
    **options: Any,
) -> AsyncIterator[RunningServer]:
    """A server; by default the only one of its scoreboard. options: of `Server`."""
    scoreboard = scoreboard or Scoreboard.private()
    scoreboard.slots[slot].claim(State.STARTING)
    listener = listener or socket.create_server(("127.0.0.1", 0))
    port, echo = listener.getsockname()[1], app or Echo()
    options = {
        "grace": 5.0,
        "max_connections": 100,
        "log_level": "warning",
        "tick": lambda: None,
        **options,
    }
    server = Server(echo, ProcessContext(listener, scoreboard, scoreboard.slots[slot]), **options)
    task = asyncio.create_task(server.serve())
    while scoreboard.slots[slot].state is not State.SERVING:
        assert not task.done(), task.exception()
        await asyncio.sleep(0.005)
    up = RunningServer(server, echo, port, task)
    try:
        yield up
    finally:
        up.stop()
        if hasattr(echo, "proceed"):
            echo.proceed.set()
        for writer in up.writers:
            writer.transport.abort()
        await asyncio.wait_for(task, 60)
