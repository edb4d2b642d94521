"""The HTTP server over real sockets: an end that loses nothing, fair shares, and its limits."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import signal
import socket
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import pytest
import uvloop

from app.processes.scoreboard import Scoreboard, State
from app.server import protocol, server
from app.server.server import Server

Reader, Writer = asyncio.StreamReader, asyncio.StreamWriter


class Service:
    """An application that answers at once, or at /slow when it is let go."""

    def __init__(self) -> None:
        self.let_go = asyncio.Event()
        self.asked: list[str] = []
        self.cancelled = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            for answer in ("lifespan.startup.complete", "lifespan.shutdown.complete"):
                await receive()
                await send({"type": answer})
            return
        self.asked.append(scope["path"])
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        if scope["path"] == "/slow":
            try:
                await self.let_go.wait()
            except asyncio.CancelledError:
                self.cancelled += 1
                raise
        headers = [(b"content-length", b"%d" % len(body or b"fine"))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body or b"fine"})


class Running:
    """A server under way."""

    def __init__(self, server: Server, service: Service, port: int, task: asyncio.Task[None]) -> None:
        self.server, self.service, self.port, self.task = server, service, port, task
        self.writers: list[Writer] = []

    async def connect(self) -> tuple[Reader, Writer]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        self.writers.append(writer)
        return reader, writer

    async def refuses(self) -> bool:
        """Whether nobody listens any more."""
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


@contextlib.asynccontextmanager
async def running(
    scoreboard: Scoreboard | None = None, slot: int = 0, listener: socket.socket | None = None, **changed: Any
) -> AsyncIterator[Running]:
    scoreboard = scoreboard or Scoreboard.private()
    scoreboard.slots[slot].claim(State.STARTING)
    listener = listener or socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    service = Service()
    options: dict[str, Any] = {"grace": 5.0, "max_connections": 100, "log_level": "warning"} | changed
    options.setdefault("tick", lambda: None)
    server = Server(service, listener, scoreboard=scoreboard, slot=scoreboard.slots[slot], **options)
    task = asyncio.create_task(server.serve())
    while scoreboard.slots[slot].state is not State.SERVING:
        assert not task.done(), task.exception()
        await asyncio.sleep(0.005)
    up = Running(server, service, port, task)
    try:
        yield up
    finally:
        up.stop()
        service.let_go.set()
        await asyncio.wait_for(task, 20)
        for writer in up.writers:
            writer.transport.abort()
            with contextlib.suppress(OSError):
                await writer.wait_closed()


def run(story: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """On the event loop that the program uses."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(story())


async def ask(reader: Reader, writer: Writer, path: str = "/") -> tuple[int, dict[str, str], bytes]:
    writer.write(f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nhi".encode())
    return await answer(reader)


async def answer(reader: Reader) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body of the next answer."""
    head = (await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 10)).decode().split("\r\n")
    headers = dict(line.lower().split(": ", 1) for line in head[1:] if line)
    return int(head[0].split()[1]), headers, await reader.readexactly(int(headers["content-length"]))


def test_a_draining_server_finishes_what_is_under_way_and_then_says_good_bye():
    async def story() -> None:
        async with running() as up:
            slow, idle = await up.connect(), await up.connect()
            assert (await ask(*idle))[1].get("connection") is None
            under_way = asyncio.create_task(ask(*slow, "/slow"))
            while "/slow" not in up.service.asked:
                await asyncio.sleep(0.005)
            up.stop()
            await up.draining()
            while not await up.refuses():
                await asyncio.sleep(0.01)
            status, headers, _ = await ask(*idle)
            assert (status, headers["connection"]) == (200, "close")
            assert await idle[0].read() == b""
            up.service.let_go.set()
            status, headers, body = await under_way
            assert (status, headers["connection"], body) == (200, "close", b"hi")
            await asyncio.wait_for(up.task, 5)
            assert up.server._slot.state is State.FREE

    run(story)


def test_idle_connections_are_kept_for_a_while_and_then_closed(monkeypatch):
    monkeypatch.setattr(server, "IDLE_SECONDS", 0.6)

    async def story() -> None:
        async with running() as up:
            silent, talking = await up.connect(), await up.connect()
            await ask(*talking)
            await asyncio.sleep(0.1)
            started = time.monotonic()
            up.stop()
            assert await silent[0].read() == b""
            assert time.monotonic() - started > 0.5
            assert await talking[0].read() == b""
            await asyncio.wait_for(up.task, 5)
            assert time.monotonic() - started < 3

    run(story)


def test_a_request_that_is_half_there_is_waited_for(monkeypatch):
    monkeypatch.setattr(server, "IDLE_SECONDS", 0.1)

    async def story() -> None:
        async with running() as up:
            first, second = await up.connect(), await up.connect()
            await ask(*second)
            first[1].write(b"POST / HTTP/1.1\r\nHost: x\r\nConte")
            second[1].write(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nh")
            await asyncio.sleep(0.1)
            up.stop()
            await up.draining()
            await asyncio.sleep(0.5)
            first[1].write(b"nt-Length: 2\r\n\r\nhi")
            second[1].write(b"i")
            for reader, _ in (first, second):
                status, headers, body = await answer(reader)
                assert (status, headers["connection"], body) == (200, "close", b"hi")

    run(story)


def test_requests_in_a_row_are_all_answered_and_only_the_last_says_good_bye():
    async def story() -> None:
        async with running() as up:
            reader, writer = await up.connect()
            request = b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nhi"
            writer.write(request % b"/slow")
            while "/slow" not in up.service.asked:
                await asyncio.sleep(0.005)
            up.stop()
            await up.draining()
            writer.write(request % b"/" + request % b"/" + request % b"/")
            await asyncio.sleep(0.1)
            up.service.let_go.set()
            answers = [await answer(reader) for _ in range(4)]
            assert [headers.get("connection") for _, headers, _ in answers] == [None, None, None, "close"]

    run(story)


def test_who_waits_at_the_door_is_still_served():
    async def story() -> None:
        async with running() as up:
            up.server._door._loop.remove_reader(up.server._door._listener.fileno())
            waiting = [await up.connect() for _ in range(5)]
            up.stop()
            for reader, writer in waiting:
                status, headers, _ = await ask(reader, writer)
                assert (status, headers["connection"]) == (200, "close")

    run(story)


def test_grace_ends(caplog):
    async def story() -> None:
        async with running(grace=0.3) as up:
            reader, writer = await up.connect()
            writer.write(b"GET /slow HTTP/1.1\r\nHost: x\r\n\r\n")
            while not up.service.asked:
                await asyncio.sleep(0.005)
            started = time.monotonic()
            up.stop()
            with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
                await reader.readexactly(1)
            await asyncio.wait_for(up.task, 5)
            assert time.monotonic() - started < 3
            assert up.service.cancelled == 1

    run(story)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_ends_it_and_the_handlers_are_put_back(number):
    before = signal.getsignal(number)

    async def story() -> None:
        async with running() as up:
            os.kill(os.getpid(), number)
            await asyncio.wait_for(up.task, 5)

    run(story)
    assert signal.getsignal(number) is before


def test_a_second_interrupt_ends_it_at_once():
    async def story() -> None:
        async with running(grace=60.0) as up:
            _, writer = await up.connect()
            writer.write(b"GET /slow HTTP/1.1\r\nHost: x\r\n\r\n")
            while not up.service.asked:
                await asyncio.sleep(0.005)
            os.kill(os.getpid(), signal.SIGINT)
            await up.draining()
            os.kill(os.getpid(), signal.SIGINT)
            await asyncio.wait_for(up.task, 5)
            writer.close()

    run(story)


def test_connections_are_shared_fairly():
    async def story() -> None:
        scoreboard = Scoreboard.shared(2)
        listener = socket.create_server(("127.0.0.1", 0), backlog=256)
        twin = socket.socket(fileno=os.dup(listener.fileno()))
        async with running(scoreboard, 0, listener) as one, running(scoreboard, 1, twin) as other:
            connections = [await one.connect() for _ in range(40)]
            for reader, writer in connections:
                assert (await ask(reader, writer))[0] == 200
            held = [up.server._slot.connections for up in (one, other)]
            assert sum(held) == 40
            assert min(held) >= 15, held
            # One of them is told to end: the other takes all that come.
            one.stop()
            await one.draining()
            for _ in range(10):
                assert (await ask(*await other.connect()))[1].get("connection") is None
            assert other.server._slot.connections == held[1] + 10
            for _, writer in connections:
                writer.close()
        scoreboard.close()

    run(story)


def test_a_process_that_hangs_does_not_keep_visitors_waiting():
    async def story() -> None:
        scoreboard = Scoreboard.shared(2)
        scoreboard.slots[1].claim(State.SERVING)
        async with running(scoreboard) as up:
            for _ in range(20):
                assert (await ask(*await up.connect()))[0] == 200
            assert up.server._slot.connections == 20
        scoreboard.close()

    run(story)


def test_too_many_connections_are_told_429_and_far_too_many_wait(monkeypatch):
    monkeypatch.setattr(server, "_RETRY_SECONDS", 0.05)

    async def story() -> None:
        async with running(max_connections=4) as up:
            held = [await up.connect() for _ in range(4)]
            for reader, writer in held:
                assert (await ask(reader, writer))[0] == 200
            crowded = await up.connect()
            status, headers, body = await ask(*crowded)
            assert (status, headers["retry-after"], headers["connection"]) == (429, "1", "close")
            assert headers["content-type"] == "application/problem+json"
            assert b'"code":"too_many_connections"' in body
            assert headers["x-request-id"].encode() in body
            assert await crowded[0].read() == b""
            assert (await ask(*held[0]))[0] == 200

            fifth = await up.connect()
            await asyncio.sleep(0.1)
            beyond = await up.connect()
            asked = asyncio.create_task(ask(*beyond))
            await asyncio.sleep(0.3)
            assert not asked.done()
            for _, writer in [*held, fifth]:
                writer.close()
            assert (await asked)[0] == 200

    run(story)


def test_a_head_without_end_is_refused():
    async def story() -> None:
        async with running() as up:
            reader, writer = await up.connect()
            writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n")
            with contextlib.suppress(ConnectionError):
                for number in range(200):
                    writer.write(b"X-%d: %s\r\n" % (number, b"a" * 1000))
                    await writer.drain()
                    await asyncio.sleep(0.001)
            with contextlib.suppress(ConnectionError):
                assert (await reader.read()).startswith(b"HTTP/1.1 431")
            assert up.service.asked == []
            assert (await ask(*await up.connect()))[0] == 200

    run(story)


def test_who_falls_silent_in_the_middle_is_hung_up_on(monkeypatch):
    monkeypatch.setattr(server, "LOOK_SECONDS", 0.1)
    monkeypatch.setattr(protocol, "HEAD_SECONDS", 0.3)
    monkeypatch.setattr(protocol, "BODY_SECONDS", 0.3)

    async def story() -> None:
        async with running() as up:
            mute, head, body, slow, idle = [await up.connect() for _ in range(5)]
            head[1].write(b"GET / HTTP/1.1\r\nHos")
            body[1].write(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nabc")
            asked = asyncio.create_task(ask(*slow, "/slow"))
            await ask(*idle)
            assert await asyncio.wait_for(mute[0].read(), 5) == b""
            for reader, _ in (head, body):
                assert (await asyncio.wait_for(reader.read(), 5)).startswith(b"HTTP/1.1 408 ")
            await asyncio.sleep(0.7)
            assert (await ask(*idle))[0] == 200
            up.service.let_go.set()
            assert (await asked)[0] == 200

    run(story)


def test_running_out_of_files_stops_nobody_who_is_served(monkeypatch):
    monkeypatch.setattr(server, "_RETRY_SECONDS", 0.05)

    async def story() -> None:
        async with running() as up:
            protocol = await up.connect()
            assert (await ask(*protocol))[0] == 200
            door = up.server._door
            real, failures = door._listener, []

            class Full:
                def accept(self) -> Any:
                    failures.append(1)
                    raise OSError(errno.EMFILE, "Too many open files")

                def __getattr__(self, name: str) -> Any:
                    return getattr(real, name)

            door._listener = Full()  # type: ignore[assignment]
            waiting = await up.connect()
            asked = asyncio.create_task(ask(*waiting))
            while len(failures) < 2:
                await asyncio.sleep(0.01)
            assert (await ask(*protocol))[0] == 200
            assert not asked.done()
            door._listener = real
            assert (await asked)[0] == 200

    run(story)


def test_a_connection_that_is_lost_on_arrival_is_not_counted():
    async def story() -> None:
        async with running() as up:
            door, connect = up.server._door, up.server._door._connect

            async def lose(accepted: socket.socket) -> None:
                accepted.close()
                raise OSError("gone")

            door._connect = lose
            reader, _ = await up.connect()
            with contextlib.suppress(ConnectionError):
                assert await reader.read() == b""
            door._connect = connect
            assert up.server._slot.connections == 0
            assert (await ask(*await up.connect()))[0] == 200

    run(story)


def test_it_ticks_and_beats():
    async def story() -> None:
        ticks: list[float] = []
        async with running(tick=lambda: ticks.append(time.monotonic())) as up:
            await asyncio.sleep(0.5)
            assert len(ticks) >= 3
            assert up.server._slot.seconds_since_heartbeat < 0.5

    run(story)


def test_a_request_that_comes_as_the_idle_time_ends_is_answered(monkeypatch):
    monkeypatch.setattr(server, "_KEEP_ALIVE_SECONDS", 0.3)

    async def story() -> None:
        async with running() as up:
            late, never = await up.connect(), await up.connect()
            for protocol in (late, never):
                assert (await ask(*protocol))[0] == 200
            await asyncio.sleep(0.2)
            file = late[1].get_extra_info("socket").fileno()
            os.write(file, b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nhi")
            # The loop stands still until both have come: the request, and the end of the idle time.
            time.sleep(0.2)
            assert (await answer(late[0]))[0] == 200
            assert await asyncio.wait_for(never[0].read(), 5) == b""

    run(story)
