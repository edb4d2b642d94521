"""The HTTP server over real sockets: lossless drain, fair sharing of connections, and limits."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import signal
import socket
import time
from typing import Any

import pytest

from app.processes.scoreboard import Scoreboard, State
from app.server import progress, server
from tests.app.server.wire import POST, SLOW, RunningServer, ask, read_response, running


async def test_a_draining_server_completes_requests_and_closes_their_connections(up: RunningServer):
    slow, idle = await up.connect(), await up.connect()
    assert (await ask(*idle)).headers.get("connection") is None
    slow_request = asyncio.create_task(ask(*slow, "/slow"))
    await up.until_reached("/slow")
    up.stop()
    await up.draining()
    while not await up.refuses_connections():
        await asyncio.sleep(0.01)
    response = await ask(*idle)
    assert (response.status, response.headers["connection"]) == (200, "close")
    assert await idle[0].read() == b""
    up.echo.proceed.set()
    response = await slow_request
    assert (response.status, response.headers["connection"], response.body) == (200, "close", b"hi")
    await asyncio.wait_for(up.task, 60)
    assert up.server._slot.state is State.FREE


async def test_a_draining_server_closes_idle_connections_after_a_while(monkeypatch):
    monkeypatch.setattr(server, "IDLE_SECONDS", 0.6)
    async with running(grace=600.0) as up:
        silent, talking = await up.connect(), await up.connect()
        await ask(*talking)
        await asyncio.sleep(0.1)
        started = time.monotonic()
        up.stop()
        assert await silent[0].read() == b""
        assert time.monotonic() - started > 0.5
        assert await talking[0].read() == b""
        await asyncio.wait_for(up.task, 60)


async def test_a_draining_server_waits_for_the_rest_of_a_request(monkeypatch):
    monkeypatch.setattr(server, "IDLE_SECONDS", 0.1)
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
            response = await read_response(reader)
            assert (response.status, response.headers["connection"], response.body) == (
                200,
                "close",
                b"hi",
            )


async def test_pipelined_requests_are_all_answered_and_only_the_last_closes(up: RunningServer):
    reader, writer = await up.connect()
    writer.write(SLOW)
    await up.until_reached("/slow")
    up.stop()
    await up.draining()
    writer.write(POST * 3)
    await asyncio.sleep(0.1)
    up.echo.proceed.set()
    responses = [await read_response(reader) for _ in range(4)]
    assert [response.headers.get("connection") for response in responses] == [
        None,
        None,
        None,
        "close",
    ]


async def test_connections_in_the_socket_queue_are_served_before_the_shutdown(up: RunningServer):
    up.server._acceptor._loop.remove_reader(up.server._acceptor._listener.fileno())
    waiting = [await up.connect() for _ in range(5)]
    up.stop()
    for reader, writer in waiting:
        response = await ask(reader, writer)
        assert (response.status, response.headers["connection"]) == (200, "close")


async def test_requests_are_cancelled_after_the_grace_period(caplog):
    async with running(grace=0.3) as up:
        reader, writer = await up.connect()
        writer.write(b"GET /slow HTTP/1.1\r\nHost: x\r\n\r\n")
        await up.until_reached("/slow")
        up.stop()
        with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
            await reader.readexactly(1)
        await asyncio.wait_for(up.task, 60)
        assert up.echo.cancelled == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
async def test_a_signal_stops_the_server_and_the_handlers_are_restored(number):
    before = signal.getsignal(number)
    async with running() as up:
        os.kill(os.getpid(), number)
        await asyncio.wait_for(up.task, 60)
    assert signal.getsignal(number) is before


async def test_a_second_interrupt_stops_it_without_delay():
    async with running(grace=60.0) as up:
        _, writer = await up.connect()
        writer.write(b"GET /slow HTTP/1.1\r\nHost: x\r\n\r\n")
        await up.until_reached("/slow")
        os.kill(os.getpid(), signal.SIGINT)
        await up.draining()
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.wait_for(up.task, 60)
        writer.close()


async def test_connections_are_shared_fairly():
    scoreboard = Scoreboard.shared(2)
    listener = socket.create_server(("127.0.0.1", 0), backlog=256)
    twin = socket.socket(fileno=os.dup(listener.fileno()))
    async with running(scoreboard, 0, listener) as one, running(scoreboard, 1, twin) as other:
        connections = [await one.connect() for _ in range(40)]
        for reader, writer in connections:
            assert (await ask(reader, writer)).status == 200
        held = [up.server._slot.connections for up in (one, other)]
        assert sum(held) == 40
        assert min(held) >= 15, held
        # One of them is stopped: the other accepts all new connections.
        one.stop()
        await one.draining()
        for _ in range(10):
            assert (await ask(*await other.connect())).headers.get("connection") is None
        assert other.server._slot.connections == held[1] + 10
        for _, writer in connections:
            writer.close()
    scoreboard.close()


async def test_a_hung_process_does_not_delay_new_connections():
    scoreboard = Scoreboard.shared(2)
    scoreboard.slots[1].claim(State.SERVING)
    async with running(scoreboard) as up:
        for _ in range(20):
            assert (await ask(*await up.connect())).status == 200
        assert up.server._slot.connections == 20
    scoreboard.close()


async def test_too_many_connections_get_429_and_beyond_the_hard_limit_they_give_way(monkeypatch):
    monkeypatch.setattr(server, "_RETRY_SECONDS", 3600.0)
    async with running(max_connections=4) as up:
        held = [await up.connect() for _ in range(4)]
        for reader, writer in held:
            assert (await ask(reader, writer)).status == 200
        crowded = await up.connect()
        response = await ask(*crowded)
        assert response.status == 429
        assert (response.headers["retry-after"], response.headers["connection"]) == ("1", "close")
        assert response.headers["content-type"] == "application/problem+json"
        assert b'"code":"too_many_connections"' in response.body
        assert response.headers["x-request-id"].encode() in response.body
        assert await crowded[0].read() == b""
        assert (await ask(*held[0])).status == 200

        fifth = await up.connect()
        await asyncio.sleep(0.1)
        assert (await ask(*await up.connect())).status == 429
        assert await fifth[0].read() == b"", "a refused connection that stays gives way"
        for connection in held:
            assert (await ask(*connection)).status == 200


async def test_a_full_server_closes_connections_without_a_key_for_new_ones():
    async with running(max_connections=4) as up:
        known = [await up.connect() for _ in range(2)]
        silent = await up.connect()
        asking = await up.connect()
        for reader, writer in known:
            assert (await ask(reader, writer)).status == 200
        assert (await ask(*asking, "/stranger")).status == 200
        for gone in (silent, asking):
            known.append(await up.connect())
            assert (await ask(*known[-1])).status == 200
            assert await gone[0].read() == b"", "the oldest without a key is closed"
        assert (await ask(*await up.connect())).status == 429, "all have keys"
        for reader, writer in known:
            assert (await ask(reader, writer)).status == 200
        assert up.refused == {"connections_evicted": 2, "connections": 1}


async def test_one_key_keeps_no_more_than_its_share_of_the_connections_of_a_full_server():
    async with running(max_connections=4, key_share=0.5) as up:
        held = [await up.connect() for _ in range(4)]
        for reader, writer in held:
            assert (await ask(reader, writer)).status == 200
        for number in (2, 3):
            assert (await ask(*await up.connect())).status == 200
            assert await held[number][0].read() == b""
        for reader, writer in held[:2]:
            assert (await ask(reader, writer)).status == 200


async def test_an_endless_head_is_refused(up: RunningServer):
    reader, writer = await up.connect()
    writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n")
    with contextlib.suppress(ConnectionError):
        for number in range(200):
            writer.write(b"X-%d: %s\r\n" % (number, b"a" * 1000))
            await writer.drain()
            await asyncio.sleep(0.001)
    with contextlib.suppress(ConnectionError):
        assert (await reader.read()).startswith(b"HTTP/1.1 431")
    assert up.echo.paths == []
    assert (await ask(*await up.connect())).status == 200


@pytest.mark.long
async def test_a_client_that_stops_in_the_middle_is_disconnected(monkeypatch):
    monkeypatch.setattr(server, "TIMEOUT_CHECK_SECONDS", 0.1)
    monkeypatch.setattr(progress, "HEAD_SECONDS", 1.0)
    monkeypatch.setattr(progress, "BODY_SECONDS", 1.0)
    async with running() as up:
        mute, head, body, slow, idle = [await up.connect() for _ in range(5)]
        head[1].write(b"GET / HTTP/1.1\r\nHos")
        body[1].write(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nabc")
        asked = asyncio.create_task(ask(*slow, "/slow"))
        await ask(*idle)
        assert await asyncio.wait_for(mute[0].read(), 60) == b""
        for reader, _ in (head, body):
            assert (await asyncio.wait_for(reader.read(), 60)).startswith(b"HTTP/1.1 408 ")
        await asyncio.sleep(1.2)
        assert (await ask(*idle)).status == 200
        up.echo.proceed.set()
        assert (await asked).status == 200


async def test_running_out_of_file_descriptors_does_not_affect_open_connections(monkeypatch):
    monkeypatch.setattr(server, "_RETRY_SECONDS", 0.05)
    async with running() as up:
        served = await up.connect()
        assert (await ask(*served)).status == 200
        acceptor = up.server._acceptor
        real, failures = acceptor._listener, []

        class Full:
            def accept(self) -> Any:
                failures.append(1)
                raise OSError(errno.EMFILE, "Too many open files")

            def __getattr__(self, name: str) -> Any:
                return getattr(real, name)

        acceptor._listener = Full()  # type: ignore[assignment]
        waiting = await up.connect()
        asked = asyncio.create_task(ask(*waiting))
        while len(failures) < 2:
            await asyncio.sleep(0.01)
        assert (await ask(*served)).status == 200
        assert not asked.done()
        acceptor._listener = real
        assert (await asked).status == 200


async def test_a_want_of_file_descriptors_is_logged_once_a_minute_however_often_it_ends(monkeypatch):
    monkeypatch.setattr(server, "_RETRY_SECONDS", 0.01)
    async with running() as up:
        logged: list[str] = []
        monkeypatch.setattr(server.logger, "error", lambda text, *_: logged.append(text))
        acceptor = up.server._acceptor
        real, failures = acceptor._listener, []

        class OftenFull:
            """Has a descriptor at every second attempt."""

            def accept(self) -> Any:
                if len(failures) % 2:
                    failures.append(False)
                    return real.accept()
                failures.append(True)
                raise OSError(errno.EMFILE, "Too many open files")

            def __getattr__(self, name: str) -> Any:
                return getattr(real, name)

        acceptor._listener = OftenFull()  # type: ignore[assignment]

        for _ in range(3):
            assert (await ask(*await up.connect())).status == 200
        assert sum(failures) >= 3
        assert logged == ["no connection can be accepted: %s"]
        monkeypatch.setattr(server, "_LOG_SECONDS", 0.0)
        assert (await ask(*await up.connect())).status == 200
        assert len(logged) == 2
        acceptor._listener = real


async def test_without_file_descriptors_a_connection_without_a_key_gives_way_at_once(monkeypatch):
    monkeypatch.setattr(server, "_RETRY_SECONDS", 3600.0)
    async with running() as up:
        served, silent = await up.connect(), await up.connect()
        assert (await ask(*served)).status == 200
        acceptor = up.server._acceptor
        real = acceptor._listener

        class Full:
            """Has a descriptor only after the silent connection has ended."""

            def accept(self) -> Any:
                if len(up.server._connections) > 1:
                    raise OSError(errno.EMFILE, "Too many open files")
                return real.accept()

            def __getattr__(self, name: str) -> Any:
                return getattr(real, name)

        acceptor._listener = Full()  # type: ignore[assignment]
        newcomer = await up.connect()
        assert (await asyncio.wait_for(ask(*newcomer), 60)).status == 200
        assert await silent[0].read() == b""
        assert (await ask(*served)).status == 200
        acceptor._listener = real


async def test_a_complete_request_of_a_stranger_is_answered_before_its_connection_gives_way():
    async with running(max_connections=3) as up:
        stranger, first, second = [await up.connect() for _ in range(3)]
        stranger[1].write(b"GET /stranger HTTP/1.1\r\nHost: x\r\n\r\n")
        assert (await read_response(stranger[0])).status == 200
        stranger[1].write(SLOW.replace(b"/slow", b"/slow-stranger"))
        await up.until_reached("/slow-stranger")
        third = await up.connect()
        assert await first[0].read() == b"", "the oldest that the server waits for"
        up.echo.proceed.set()
        assert (await read_response(stranger[0])).status == 200
        for connection in (second, third):
            assert (await ask(*connection)).status == 200


async def test_a_connection_whose_timeouts_cannot_be_checked_ends_alone(monkeypatch):
    monkeypatch.setattr(server, "TIMEOUT_CHECK_SECONDS", 0.0)
    async with running() as up:
        broken = await up.connect()
        await ask(*broken)

        def fail(_now: float, _keep_alive_seconds: float) -> None:
            raise OSError(errno.EMFILE, "Too many open files")

        monkeypatch.setattr(up.connection, "check_timeouts", fail)
        healthy = await up.connect()
        assert await asyncio.wait_for(broken[0].read(), 60) == b""
        assert (await ask(*healthy)).status == 200
        assert up.server._periodic.failures == {"connections": 1, "certificate": 0}


async def test_a_connection_that_fails_during_setup_is_not_counted(up: RunningServer):
    acceptor, connect = up.server._acceptor, up.server._acceptor._connect

    async def lose(accepted: socket.socket, _address: str) -> bool:
        accepted.close()
        raise OSError("gone")

    acceptor._connect = lose
    reader, _ = await up.connect()
    with contextlib.suppress(ConnectionError):
        assert await reader.read() == b""
    acceptor._connect = connect
    assert up.server._slot.connections == 0
    assert (await ask(*await up.connect())).status == 200


async def test_it_calls_tick_and_sends_heartbeats():
    ticks: list[float] = []
    async with running(tick=lambda: ticks.append(time.monotonic())) as up:
        while len(ticks) < 3:
            await asyncio.sleep(0.01)
        before = time.monotonic() - up.server._slot.seconds_since_heartbeat
        while time.monotonic() - up.server._slot.seconds_since_heartbeat < before + 0.01:
            await asyncio.sleep(0.01)


async def test_a_request_that_arrives_at_the_keep_alive_timeout_is_answered(monkeypatch):
    monkeypatch.setattr(server, "KEEP_ALIVE_SECONDS", 1.0)
    monkeypatch.setattr(server, "TIMEOUT_CHECK_SECONDS", 0.0)
    async with running() as up:
        late, never = await up.connect(), await up.connect()
        for connection in (never, late):
            assert (await ask(*connection)).status == 200
        file = late[1].get_extra_info("socket").fileno()
        os.write(file, POST)
        # The loop is blocked until the request has arrived and the timeout has expired.
        time.sleep(1.1)
        assert (await read_response(late[0])).status == 200
        assert await asyncio.wait_for(never[0].read(), 60) == b""
