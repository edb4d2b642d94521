"""The HTTP server of one process: uvicorn with fair sharing of connections and a graceful drain.

uvicorn closes idle connections as soon as it is asked to stop, even if a client is just sending on one, and
the process that wakes up first takes all waiting connections. Here a process accepts connections only while
it has no more than its share. It shuts down in this order: report that it is draining; continue to accept for
a while, because load balancers notice its end late; accept the connections in the socket's queue and close
the socket; exit with the last connection. From the beginning of the shutdown every response has ``Connection:
close``, so that clients reconnect elsewhere, and connections that stay idle for a while are closed.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import math
import os
import signal
import socket
import time
from collections.abc import Callable, Coroutine, Iterator
from functools import partial
from types import FrameType
from typing import Any, Final

import uvicorn

from app.http.client_address import TrustedProxies
from app.processes.listener import ProcessContext
from app.processes.open_files import HARD_LIMIT
from app.processes.periodic import PeriodicWork, until_beat
from app.processes.scoreboard import Scoreboard, Slot, State
from app.processes.tuning import leave_out_of_collections
from app.server.connection import HttpConnection
from app.server.context import ServerContext
from app.server.fast_path import FastPath
from app.server.tls import CLOSING_SECONDS, HANDSHAKE_SECONDS, Certificate

logger = logging.getLogger("uvicorn.error")
"""The log that uvicorn sets up."""

QUIET_SECONDS: Final = 1.0
"""After this time without a new connection, a draining server accepts no more."""
IDLE_SECONDS: Final = 2.0
"""How long a draining server keeps an idle connection open for its next request."""
TIMEOUT_CHECK_SECONDS: Final = 1.0
"""How often the connections are checked for slow clients."""

KEEP_ALIVE_SECONDS: Final = 75.0
"""How long a connection may be open without a request."""

_SECURITY_HEADERS: Final = [("X-Content-Type-Options", "nosniff"), ("Referrer-Policy", "no-referrer")]
"""Headers of every response."""
TICK_SECONDS: Final = 0.5
"""Interval of the periodic work while the server serves."""
_POLL_SECONDS: Final = 0.02
_POLLS_PER_TICK: Final = 5
_YIELD_SECONDS: Final = 0.001
_RETRY_SECONDS: Final = 0.5
_LOG_SECONDS: Final = 60.0
"""How often it is logged that no connection can be accepted."""
_ENDING_SECONDS: Final = 1.0
"""Time within which a connection that gives way has ended."""
_MARGIN_SECONDS: Final = 0.2
"""Other listeners are cancelled this many seconds earlier than requests."""
_PARTS: Final = ("connections", "certificate")


class Server(uvicorn.Server):
    """Serves an application on a listening socket that other processes may share.

    grace: seconds that a shutdown may take after SIGTERM. listen_seconds: for how many of them the server
    continues to accept connections at most; after other signals it does not. tick: called twice a second, and
    ten times a second during the shutdown; must not raise.
    max_connections: further open connections get 429; max_connections_per_address: the same for
    one address other than loopback and ``proxies``; 0 means no limit. key_share: the share of connections
    that one API key keeps when the server is full. fast_path: responds to some requests
    before they reach the application. periodic: runs the part "connections", the timeouts of clients, and
    "certificate", which checks for a new one. certificate: for TLS; without one connections are not
    encrypted.
    beside: stops other listeners within the seconds that it is called with, once the server accepts no more
    connections.
    context: counts refused connections and requests.
    """

    def __init__(
        self,
        app: Any,
        process: ProcessContext,
        *,
        grace: float,
        max_connections: int,
        log_level: str,
        tick: Callable[[], None],
        listen_seconds: float = 0.0,
        fast_path: FastPath | None = None,
        max_connections_per_address: int = 0,
        key_share: float = 1.0,
        proxies: TrustedProxies | None = None,
        periodic: PeriodicWork | None = None,
        certificate: Certificate | None = None,
        beside: Callable[[float], Coroutine[Any, Any, None]] | None = None,
    ) -> None:
        slot = process.slot
        self.context = ServerContext(
            slot,
            max_connections,
            max_connections_per_address,
            max(1, int(max_connections * key_share)),
            proxies or TrustedProxies(),
            fast_path,
        )

        config = uvicorn.Config(
            app,
            # uvicorn creates no connections here, and imports none of its own protocols.
            http=HttpConnection,
            ws="none",
            interface="asgi3",
            # X-Forwarded-For is handled by TrustedProxies.
            proxy_headers=False,
            headers=_SECURITY_HEADERS,
            access_log=False,
            server_header=False,
            log_level=log_level.lower(),
        )
        super().__init__(config)
        self._slot, self._grace, self._tick, self._parent = slot, grace, tick, os.getppid()
        self._listen_seconds, self._goes_on_listening = min(listen_seconds, grace), False
        self._connections: set[HttpConnection] = self.server_state.connections  # type: ignore[assignment]
        self._periodic = periodic or PeriodicWork(_PARTS)
        self._certificate, self._beside = certificate, beside
        self._timeouts_checked_at = time.monotonic()
        self._exiting = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        hard_limit = int(max_connections * HARD_LIMIT)
        self._acceptor = Acceptor(
            process.listener,
            self._connect,
            process.scoreboard,
            slot,
            has_capacity=lambda: len(self._connections) + self.context.handshakes.total() < hard_limit,
            make_room=lambda: self._acceptor.give_up_oldest() or self.context.evict(),
        )

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:  # noqa: ARG002
        """Start the application, then accept connections."""
        self._loop = asyncio.get_running_loop()
        await super().startup(sockets=[])
        leave_out_of_collections()
        self._acceptor.start()
        self._slot.heartbeat()
        self._slot.state = State.SERVING
        logger.info("Process %d listens at %s port %d.", os.getpid(), *self._acceptor.address)

    async def main_loop(self) -> None:
        """Run the periodic work until the server shall end; then return immediately."""
        # With 0 uvicorn brings the header Date up to date.
        while not await self.on_tick(0):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(until_beat(TICK_SECONDS)):
                    await self._exiting.wait()

    async def on_tick(self, counter: int) -> bool:
        """Run the periodic work."""
        self._slot.heartbeat()
        self._tick()
        now = time.monotonic()
        if now - self._timeouts_checked_at >= TIMEOUT_CHECK_SECONDS:
            self._timeouts_checked_at = now
            for connection in list(self._connections):
                check = partial(connection.check_timeouts, now, KEEP_ALIVE_SECONDS)
                if not self._periodic.run("connections", check):
                    connection.evict()
            if self._certificate is not None:
                self._periodic.run("certificate", self._certificate.refresh)
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:  # noqa: ARG002
        """Drain as described above, within ``grace`` seconds."""
        self._slot.state = State.DRAINING
        for connection in self._connections:
            connection.drain()
        began = time.monotonic()
        listens_until = began + (self._listen_seconds if self._goes_on_listening else 0.0)
        for count in itertools.count(1):
            now = time.monotonic()
            # Other listeners do not report when they have accepted a connection.
            is_quiet = self._beside is None and now - max(began, self._acceptor.accepted_at) >= QUIET_SECONDS
            if self._acceptor.is_open and (now >= listens_until or is_quiet or self.force_exit):
                await self._acceptor.stop()
                self._stop_beside(began + self._grace - now)
            if self.force_exit or not (
                self._acceptor.is_open or self._connections or self.server_state.tasks
            ):
                break
            if now > began + self._grace:
                self._abort_remaining()
                break
            for connection in list(self._connections):
                connection.close_if_idle_for(IDLE_SECONDS)
            if count % _POLLS_PER_TICK == 0:
                await self.on_tick(count // _POLLS_PER_TICK)
            await asyncio.sleep(_POLL_SECONDS)
        if not self.force_exit:
            await self.lifespan.shutdown()
        self._slot.release()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begin the shutdown; only a manager that sends SIGTERM has others that may still send clients.

        After its death the next one could not listen for as long as this process does.
        """
        if not self.should_exit:
            self._goes_on_listening = sig == signal.SIGTERM and os.getppid() == self._parent
        super().handle_exit(sig, frame)
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._exiting.set)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """The first signal starts the shutdown; a second SIGINT ends it without delay."""
        # SIGHUP too, because the parent of several processes replaces one of them without losing requests.
        numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
        before = {number: signal.signal(number, self.handle_exit) for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    async def _connect(self, accepted: socket.socket, address: str) -> bool:
        """Set a connection up; returns whether its client has agreed on keys, without TLS always True."""
        loop = asyncio.get_running_loop()

        def protocol() -> HttpConnection:
            state = self.lifespan.state
            return HttpConnection(self.config.loaded_app, self.context, self.server_state, state, loop)

        if self._certificate is None:
            await loop.connect_accepted_socket(protocol, accepted)
            return True
        with self.context.handshake(address) as is_permitted:
            if not is_permitted:
                accepted.close()
                return False
            try:
                await loop.connect_accepted_socket(
                    protocol,
                    accepted,
                    ssl=self._certificate.context,
                    ssl_handshake_timeout=HANDSHAKE_SECONDS,
                    ssl_shutdown_timeout=CLOSING_SECONDS,
                )
            except OSError:
                # The client does not use TLS, refuses the certificate, leaves, or is too slow.
                self.context.refused["tls_handshake"] += 1
                return False
        return True

    def _stop_beside(self, seconds: float) -> None:
        """Stop other listeners; the shutdown waits for this as for a request."""
        if self._beside is None or self.force_exit:
            return
        task = asyncio.get_running_loop().create_task(self._beside(max(0.0, seconds - _MARGIN_SECONDS)))
        self.server_state.tasks.add(task)
        task.add_done_callback(self.server_state.tasks.discard)

    def _abort_remaining(self) -> None:
        logger.error(
            "%d requests and %d connections are aborted after %g s of grace",
            len(self.server_state.tasks),
            len(self._connections),
            self._grace,
        )
        for task in self.server_state.tasks:
            task.cancel()
        for connection in list(self._connections):
            connection.transport.abort()


class Acceptor:
    """Accepts connections from a shared socket; a process with more than its share lets others go first.

    accepted_at: when the last one was accepted, on the monotonic clock. is_open: whether it may accept more.
    has_capacity: whether another connection is possible at all. make_room: closes a connection to make room
    for a new one; returns whether there was one. Without capacity and room, and without file
    descriptors, connections wait in the kernel's queue. connect: sets up a connection, given its socket and
    the address of its client; returns whether it could.
    """

    def __init__(
        self,
        listener: socket.socket,
        connect: Callable[[socket.socket, str], Coroutine[Any, Any, bool]],
        scoreboard: Scoreboard,
        slot: Slot,
        *,
        has_capacity: Callable[[], bool],
        make_room: Callable[[], bool],
    ) -> None:
        self._listener = listener
        self._connect = connect
        self._scoreboard, self._slot = scoreboard, slot
        self._has_capacity, self._make_room = has_capacity, make_room
        self._failure_logged_at = -math.inf
        self._room_made_at = -math.inf
        self.accepted_at = -math.inf
        self.is_open = True
        self._connecting: dict[asyncio.Task[bool], float] = {}
        """Times at which they were accepted, in rising order."""
        self._pause: asyncio.TimerHandle | None = None

    @property
    def address(self) -> tuple[str, int]:
        """Host and port of the listening socket; its path and 0 of a Unix socket."""
        name = self._listener.getsockname()
        return (name, 0) if isinstance(name, str) else name[:2]

    def give_up_oldest(self) -> bool:
        """Close the oldest connection that is being set up, unless it is new; returns whether one was."""
        task, accepted_at = next(iter(self._connecting.items()), (None, math.inf))
        if task is None or time.monotonic() - accepted_at < _ENDING_SECONDS:
            return False
        return task.cancel()

    def start(self) -> None:
        """Start to accept connections."""
        self._listener.setblocking(False)
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._listener.fileno(), self._on_readable)

    async def stop(self) -> None:
        """Accept the connections that wait already, close the socket, and wait until they are set up."""
        self.is_open = False
        self._loop.remove_reader(self._listener.fileno())
        while self._has_capacity() and self._accept():
            await asyncio.sleep(0)
        if self._pause is not None:
            self._pause.cancel()
        self._listener.close()
        if self._connecting:
            await asyncio.wait(self._connecting)

    def _on_readable(self) -> None:
        if not self._has_capacity():
            self._wait_for_room()
        elif self._has_more_than_its_share():
            # The other processes are awake, too. If all of them are busy, this one accepts after the pause.
            self._pause_for(_YIELD_SECONDS)
        else:
            self._accept()

    def _wait_for_room(self) -> None:
        """Accept again as soon as a connection that gives way has ended; without one, after a while."""
        now = self._loop.time()
        if self._make_room():
            self._room_made_at = now
        # A connection that gives way ends some iterations of the event loop later.
        is_ending = now - self._room_made_at < _ENDING_SECONDS
        self._pause_for(_YIELD_SECONDS if is_ending else _RETRY_SECONDS)

    def _pause_for(self, seconds: float) -> None:
        self._loop.remove_reader(self._listener.fileno())
        self._pause = self._loop.call_later(seconds, self._resume)

    def _resume(self) -> None:
        self._loop.add_reader(self._listener.fileno(), self._on_readable)
        if self._has_capacity():
            self._accept()

    def _has_more_than_its_share(self) -> bool:
        serving = self._scoreboard.serving()
        return len(serving) > 1 and self._slot.connections > min(slot.connections for slot in serving)

    def _accept(self) -> bool:
        """Accept one connection; returns whether there was one."""
        try:
            accepted, peer = self._listener.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return False
        except OSError as error:
            # Without file descriptors or memory, open connections are served and new ones wait.
            now = time.monotonic()
            if now - self._failure_logged_at >= _LOG_SECONDS:
                self._failure_logged_at = now
                logger.error("no connection can be accepted: %s", error)
            self._wait_for_room()
            return False
        self.accepted_at = time.monotonic()
        accepted.setblocking(False)
        if accepted.family != socket.AF_UNIX:
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._slot.connections += 1
        address = peer[0] if isinstance(peer, tuple) else ""
        task = self._loop.create_task(self._connect(accepted, address))
        self._connecting[task] = self.accepted_at
        task.add_done_callback(self._on_connected)
        return True

    def _on_connected(self, task: asyncio.Task[bool]) -> None:
        del self._connecting[task]
        error = None if task.cancelled() else task.exception()
        if error is not None:
            logger.error("a connection was lost while it was set up: %s", error)
        if task.cancelled() or error is not None or not task.result():
            self._slot.connections -= 1
