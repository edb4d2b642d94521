"""A server over real sockets, and what comes back when bytes are sent to it."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass
from typing import Any

import uvloop

from app.processes.scoreboard import Scoreboard, State
from app.server.server import Server

ASK = b"POST /x HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nhi"


class Echo:
    """An application that answers with the body it got; at /slow when it is let go, at /large with much."""

    def __init__(self) -> None:
        self.let_go = asyncio.Event()
        self.scopes: list[Any] = []
        self.bodies: list[bytes] = []
        self.gone = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            for answer in ("lifespan.startup.complete", "lifespan.shutdown.complete"):
                await receive()
                await send({"type": answer})
            return None
        self.scopes.append(scope)
        if scope["path"] == "/early":
            # Answered before the body is there.
            return await self._say(send, b"no")
        body, more = b"", True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                self.gone += 1
                return None
            body, more = body + message.get("body", b""), message.get("more_body", False)
        self.bodies.append(body)
        if scope["path"] == "/slow":
            await self.let_go.wait()
        return await self._say(send, b"x" * 30_000_000 if scope["path"] == "/large" else body)

    async def _say(self, send: Any, body: bytes) -> None:
        headers = [(b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes


class Wire:
    """A server under way."""

    def __init__(self, server: Server, echo: Echo, port: int) -> None:
        self.server, self.echo, self.port = server, echo, port
        self.writers: list[asyncio.StreamWriter] = []

    @property
    def refused(self) -> dict[str, int]:
        return {reason: count for reason, count in self.server.house.refused.items() if count}

    async def connect(self, **options: Any) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, **options)
        self.writers.append(writer)
        return reader, writer

    async def say(self, *pieces: bytes, pause: float = 0.02) -> list[Answer]:
        """All answers to what is said on a connection of its own, which the server is to close."""
        reader, writer = await self.connect()
        for piece in pieces:
            writer.write(piece)
            await asyncio.sleep(pause)
        return answers_in(await asyncio.wait_for(reader.read(), 30))

    async def is_well(self) -> bool:
        """Whether a good request is answered."""
        reader, writer = await self.connect()
        writer.write(ASK)
        return (await asyncio.wait_for(reader.readuntil(b"hi"), 10)).startswith(b"HTTP/1.1 200 ")


def answers_in(data: bytes) -> list[Answer]:
    found = []
    while data:
        head, _, data = data.partition(b"\r\n\r\n")
        lines = head.decode("latin-1").split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in lines[1:])
        size = int(headers["content-length"])
        found.append(Answer(int(lines[0].split()[1]), headers, data[:size]))
        data = data[size:]
    return found


@contextlib.asynccontextmanager
async def wired(**changed: Any) -> AsyncIterator[Wire]:
    scoreboard = Scoreboard.private()
    scoreboard.slots[0].claim(State.STARTING)
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    echo = Echo()
    options: dict[str, Any] = {"grace": 5.0, "max_connections": 100, "log_level": "warning"} | changed
    server = Server(
        echo, listener, scoreboard=scoreboard, slot=scoreboard.slots[0], tick=lambda: None, **options
    )
    task = asyncio.create_task(server.serve())
    while scoreboard.slots[0].state is not State.SERVING:
        assert not task.done(), task.exception()
        await asyncio.sleep(0.005)
    wire = Wire(server, echo, port)
    try:
        yield wire
    finally:
        server.should_exit = True
        echo.let_go.set()
        for writer in wire.writers:
            writer.transport.abort()
        await asyncio.wait_for(task, 20)


def run(story: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """On the event loop that the program uses."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(story())
