"""The HTTP server of one process: uvicorn, with connections shared fairly and an end that loses no request.

uvicorn closes idle connections the moment it is told to end, when a client may just be sending on one, and
lets whichever process wakes up first take all waiting connections. Here a process takes connections only
while it does not hold more than its share, and ends in this order: it takes what is waiting at the door and
closes the door; answers every further request with ``Connection: close``, so that clients go elsewhere by
themselves; closes a connection on which nothing came for a while; and then ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

import uvicorn

from app.http.client_address import TrustedProxies
from app.processes.scoreboard import Scoreboard, Slot, State
from app.server.fast_path import AtOnce
from app.server.protocol import Connection, House

logger = logging.getLogger("uvicorn.error")

IDLE_SECONDS: Final = 2.0
"""How long an idle connection is kept for its next request once the server is told to end."""

LOOK_SECONDS: Final = 1.0
"""How often slow clients are looked for."""

_SECURITY: Final = [("X-Content-Type-Options", "nosniff"), ("Referrer-Policy", "no-referrer")]
"""Headers of every answer."""

_POLL_SECONDS: Final = 0.02
_YIELD_SECONDS: Final = 0.001
_RETRY_SECONDS: Final = 0.5
_KEEP_ALIVE_SECONDS: Final = 75
_CROWD: Final = 1.25
"""Beyond max_connections a connection is told 429 and closed; beyond this multiple it is not even taken."""


class Server(uvicorn.Server):
    """Serves an application on a listening socket that other processes may share.

    slot: of this process on ``scoreboard``. grace: seconds that requests under way get after SIGTERM, in all.
    tick: called ten times a second. max_connections: open ones before new ones get 429, in all and from one
    address (0: any number) that is none of ``proxies``. at_once: answers some of the requests where they
    arrive. house: knows what was refused.
    """

    def __init__(
        self,
        app: Any,
        listener: socket.socket,
        *,
        scoreboard: Scoreboard,
        slot: Slot,
        grace: float,
        max_connections: int,
        log_level: str,
        tick: Callable[[], None],
        at_once: AtOnce | None = None,
        max_connections_per_address: int = 0,
        proxies: TrustedProxies | None = None,
    ) -> None:
        self.house = House(
            slot, max_connections, max_connections_per_address, proxies or TrustedProxies(), at_once
        )

        def protocol(**given: Any) -> Connection:
            return Connection(self.house, **given)

        config = uvicorn.Config(
            app,
            http=protocol,  # type: ignore[arg-type]
            ws="none",
            interface="asgi3",
            # Whoever asks for the client's address knows itself which proxies to believe.
            proxy_headers=False,
            headers=_SECURITY,
            access_log=False,
            server_header=False,
            log_level=log_level.lower(),
            timeout_keep_alive=_KEEP_ALIVE_SECONDS,
        )
        super().__init__(config)
        self._slot, self._grace, self._tick = slot, grace, tick
        self._connections: set[Connection] = self.server_state.connections  # type: ignore[assignment]
        self._looked = time.monotonic()
        room = int(max_connections * _CROWD)
        self._door = Door(listener, self._connect, scoreboard, slot, lambda: len(self._connections) < room)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:  # noqa: ARG002
        """Open the application, then the door."""
        await super().startup(sockets=[])
        self._door.open()
        self._slot.heartbeat()
        self._slot.state = State.SERVING

    async def on_tick(self, counter: int) -> bool:
        """Ten times a second."""
        self._slot.heartbeat()
        self._tick()
        now = time.monotonic()
        if now - self._looked >= LOOK_SECONDS:
            self._looked = now
            for connection in list(self._connections):
                connection.look(now)
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:  # noqa: ARG002
        """End as told above, within ``grace`` seconds."""
        self._slot.state = State.DRAINING
        await self._door.close()
        for connection in self._connections:
            connection.drain()
        deadline = time.monotonic() + self._grace
        while (self._connections or self.server_state.tasks) and not self.force_exit:
            if time.monotonic() > deadline:
                self._break_off()
                break
            for connection in list(self._connections):
                connection.close_if_idle_for(IDLE_SECONDS)
            self._slot.heartbeat()
            await asyncio.sleep(_POLL_SECONDS)
        if not self.force_exit:
            await self.lifespan.shutdown()
        self._slot.release()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """The first signal asks for the end, a second SIGINT for an immediate one."""
        # SIGHUP, too: whoever has a parent is replaced by it, and nobody shall lose requests.
        numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
        before = {number: signal.signal(number, self.handle_exit) for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    async def _connect(self, accepted: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        # As uvicorn's own `startup` makes them.
        await loop.connect_accepted_socket(
            lambda: self.config.http_protocol_class(  # type: ignore[call-arg]
                config=self.config, server_state=self.server_state, app_state=self.lifespan.state, _loop=loop
            ),
            accepted,
        )

    def _break_off(self) -> None:
        logger.error(
            "%d requests and %d connections are broken off after %g s of grace",
            len(self.server_state.tasks),
            len(self._connections),
            self._grace,
        )
        for task in self.server_state.tasks:
            task.cancel()
        for connection in list(self._connections):
            connection.transport.abort()


class Door:
    """Takes connections from a listening socket, fairly: a process with more than its share waits a moment.

    room: whether another connection may be held at all; if not, it waits in the kernel's bounded queue.
    """

    def __init__(
        self,
        listener: socket.socket,
        connect: Callable[[socket.socket], Any],
        scoreboard: Scoreboard,
        slot: Slot,
        room: Callable[[], bool],
    ) -> None:
        self._listener = listener
        self._connect = connect
        self._scoreboard, self._slot, self._room = scoreboard, slot, room
        self._arriving: set[asyncio.Task[None]] = set()
        self._pause: asyncio.TimerHandle | None = None

    def open(self) -> None:
        """Begin."""
        self._listener.setblocking(False)
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._listener.fileno(), self._on_visitors)

    async def close(self) -> None:
        """Take those who wait already, then no more; over when all have come in."""
        self._loop.remove_reader(self._listener.fileno())
        while self._room() and self._take_one():
            await asyncio.sleep(0)
        if self._pause is not None:
            self._pause.cancel()
        self._listener.close()
        if self._arriving:
            await asyncio.wait(self._arriving)

    def _on_visitors(self) -> None:
        if not self._room():
            self._wait(_RETRY_SECONDS)
        elif self._has_more_than_its_share():
            # The others are awake, too. Should they all be busy, this process takes them in the end.
            self._wait(_YIELD_SECONDS)
        else:
            self._take_one()

    def _wait(self, seconds: float) -> None:
        self._loop.remove_reader(self._listener.fileno())
        self._pause = self._loop.call_later(seconds, self._go_on)

    def _go_on(self) -> None:
        self._loop.add_reader(self._listener.fileno(), self._on_visitors)
        if self._room():
            self._take_one()

    def _has_more_than_its_share(self) -> bool:
        serving = self._scoreboard.serving()
        return len(serving) > 1 and self._slot.connections > min(slot.connections for slot in serving)

    def _take_one(self) -> bool:
        """Whether there was one."""
        try:
            accepted, _ = self._listener.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return False
        except OSError as error:
            # No file or memory left: those who are served go on, the others wait.
            logger.error("no connection can be taken: %s", error)
            self._wait(_RETRY_SECONDS)
            return False
        accepted.setblocking(False)
        accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._slot.connections += 1
        task = self._loop.create_task(self._connect(accepted))
        self._arriving.add(task)
        task.add_done_callback(self._arrived)
        return True

    def _arrived(self, task: asyncio.Task[None]) -> None:
        self._arriving.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self._slot.connections -= 1
            logger.error("a connection was lost on arrival: %s", task.exception())
