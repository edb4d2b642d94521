"""After SIGTERM a server accepts connections for a while, since balancers learn late that it ends."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import time

import pytest

from app.processes.scoreboard import Scoreboard, State
from app.server import server
from tests.app.server.wire import RunningServer, ask, running
from tests.late_proxy import LateProxy

LATE_SECONDS = 3.0


async def ask_anew(port: int) -> str:
    """Ask over a new connection; returns the status line and what the answer says of the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    response = await ask(reader, writer)
    writer.close()
    return f"{response.status} {response.headers.get('connection')}"


async def refusal_after(up: RunningServer, began: float) -> float:
    """Seconds after which the first connection is refused, when ten a second are tried."""
    while not await up.refuses_connections():
        await asyncio.sleep(0.1)
    return time.monotonic() - began


@pytest.mark.long
async def test_a_balancer_that_notices_three_seconds_late_loses_no_query():
    scoreboard = Scoreboard.private()
    async with running(listen_seconds=8.0, grace=10.0) as old, running(scoreboard) as new:
        proxy, answers, asked_of_both = LateProxy([old.port, new.port]), [], 0
        async with proxy.listening():
            old.server.handle_exit(signal.SIGTERM, None)
            began = time.monotonic()
            while (now := time.monotonic()) < began + LATE_SECONDS + 0.5:
                if now > began + LATE_SECONDS and old.port in proxy.ports:
                    proxy.leave_out(old.port)
                    asked_of_both = proxy.forwarded
                answers.append(await ask_anew(proxy.port))
                await asyncio.sleep(0.01)
        assert old.server._slot.state is State.DRAINING
        assert (proxy.refused, proxy.cut) == (0, 0)
        assert {answer.split()[0] for answer in answers} == {"200"}
        # Every second one, but for those before the server has seen the signal.
        assert answers.count("200 close") > asked_of_both // 3 > 0
        # No client asks any more, so it does not wait for the whole time.
        await asyncio.wait_for(old.task, LATE_SECONDS)
        assert await old.refuses_connections()


async def test_it_is_quiet_for_a_second_before_it_refuses():
    async with running(listen_seconds=10.0, grace=10.0) as up:
        up.server.handle_exit(signal.SIGTERM, None)
        began = time.monotonic()
        await up.draining()
        await asyncio.sleep(0.6)
        assert await ask_anew(up.port) == "200 close"
        await asyncio.sleep(0.6)
        assert await ask_anew(up.port) == "200 close"
        await asyncio.wait_for(up.task, 5)
        assert 2.0 < time.monotonic() - began < 5.0


@pytest.mark.long
@pytest.mark.parametrize(("listen", "grace"), [(1.5, 20.0), (60.0, 1.5)])
async def test_it_listens_no_longer_than_the_settings_say(listen: float, grace: float):
    async with running(listen_seconds=listen, grace=grace) as up:
        up.server.handle_exit(signal.SIGTERM, None)
        assert 1.0 < await refusal_after(up, time.monotonic()) < 4.0


async def test_a_server_whose_manager_has_died_does_not_go_on_listening(monkeypatch):
    async with running(listen_seconds=60.0, grace=60.0) as up:
        _, writer = await up.connect()
        monkeypatch.setattr(server.os, "getppid", lambda: 1)
        up.server.handle_exit(signal.SIGTERM, None)
        assert await refusal_after(up, time.monotonic()) < 30.0
        writer.close()


@pytest.mark.parametrize(
    ("listen", "number"), [(0.0, signal.SIGTERM), (8.0, signal.SIGINT), (8.0, signal.SIGHUP)]
)
async def test_it_refuses_at_once_without_the_setting_and_after_other_signals(listen: float, number: int):
    async with running(listen_seconds=listen) as up:
        up.server.handle_exit(number, None)
        assert await refusal_after(up, time.monotonic()) < 0.9


async def test_a_second_interrupt_ends_it_while_it_listens():
    async with running(listen_seconds=60.0, grace=60.0) as up:
        up.server.handle_exit(signal.SIGTERM, None)
        await up.draining()
        up.server.handle_exit(signal.SIGINT, None)
        await asyncio.wait_for(up.task, 0.9)
        assert await up.refuses_connections()


async def test_processes_with_one_socket_lose_no_query_and_do_their_periodic_work(monkeypatch):
    monkeypatch.setattr(server, "QUIET_SECONDS", 0.5)
    scoreboard, ticks = Scoreboard.shared(2), []
    listener = socket.create_server(("127.0.0.1", 0), backlog=256)
    twin = socket.socket(fileno=os.dup(listener.fileno()))
    options = {"listen_seconds": 5.0, "tick": lambda: ticks.append(time.monotonic())}
    async with (
        running(scoreboard, 0, listener, **options) as one,
        running(scoreboard, 1, twin, **options) as other,
    ):
        for up in (one, other):
            up.server.handle_exit(signal.SIGTERM, None)
        await asyncio.gather(one.draining(), other.draining())
        before = len(ticks)
        for _ in range(40):
            assert await ask_anew(one.port) == "200 close"
            await asyncio.sleep(0.02)
        assert len(ticks) > before + 5
        await asyncio.wait_for(asyncio.gather(one.task, other.task), 5)
    scoreboard.close()
