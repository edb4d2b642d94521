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
import select
import signal
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

import uvicorn
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from app.api.problem import Problem
from app.api.request_id import HEADER, new_request_id
from app.serving.at_once import AtOnce, AtOnceProtocol
from app.serving.board import Board, Seat, State
from app.serving.body import Message, Receive, Scope, Send

logger = logging.getLogger("uvicorn.error")

IDLE_SECONDS: Final = 2.0
"""How long an idle connection is kept for its next request once the server is told to end."""

QUERY: Final = b":query"
"""The end of a target that may be answered at once."""

HEAD_BYTES: Final = 64 * 1024
"""Largest request line with headers."""

SILENT_SECONDS: Final = 30.0
"""How long a client may fall silent in the middle of a request, or before its first."""

_POLL_SECONDS: Final = 0.02
_YIELD_SECONDS: Final = 0.001
_RETRY_SECONDS: Final = 0.5
_KEEP_ALIVE_SECONDS: Final = 75
_CROWD: Final = 1.25
"""Beyond max_connections a connection is told 429 and closed; beyond this multiple it is not even taken."""


class Server(uvicorn.Server):
    """Serves an application on a listening socket that other processes may share.

    seat: of this process on ``board``. grace: seconds that requests under way get after SIGTERM, in all.
    tick: called ten times a second. max_connections: open ones before new ones get 429.
    at_once: answers some of the requests where they arrive.
    """

    def __init__(
        self,
        app: Any,
        listener: socket.socket,
        *,
        board: Board,
        seat: Seat,
        grace: float,
        max_connections: int,
        log_level: str,
        tick: Callable[[], None],
        at_once: AtOnce | None = None,
    ) -> None:
        def protocol(**given: Any) -> Connection:
            return Connection(seat, max_connections, at_once, **given)

        config = uvicorn.Config(
            app,
            http=protocol,  # type: ignore[arg-type]
            ws="none",
            interface="asgi3",
            # Nothing here asks for the client's address, and the headers would be read once more.
            proxy_headers=False,
            access_log=False,
            server_header=False,
            log_level=log_level.lower(),
            timeout_keep_alive=_KEEP_ALIVE_SECONDS,
        )
        super().__init__(config)
        self._seat, self._grace, self._tick = seat, grace, tick
        self._connections: set[Connection] = self.server_state.connections  # type: ignore[assignment]
        self._swept = time.monotonic()
        room = int(max_connections * _CROWD)
        self._door = Door(listener, self._connect, board, seat, lambda: len(self._connections) < room)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:  # noqa: ARG002
        """Open the application, then the door."""
        await super().startup(sockets=[])
        self._door.open()
        self._seat.beat()
        self._seat.state = State.SERVING

    async def on_tick(self, counter: int) -> bool:
        """Ten times a second."""
        self._seat.beat()
        self._tick()
        if time.monotonic() - self._swept >= SILENT_SECONDS:
            self._swept = time.monotonic()
            for connection in list(self._connections):
                connection.close_if_silent()
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:  # noqa: ARG002
        """End as told above, within ``grace`` seconds."""
        self._seat.state = State.DRAINING
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
            self._seat.beat()
            await asyncio.sleep(_POLL_SECONDS)
        if not self.force_exit:
            await self.lifespan.shutdown()
        self._seat.leave()

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
        board: Board,
        seat: Seat,
        room: Callable[[], bool],
    ) -> None:
        self._listener = listener
        self._connect = connect
        self._board, self._seat, self._room = board, seat, room
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
        serving = self._board.serving()
        return len(serving) > 1 and self._seat.connections > min(seat.connections for seat in serving)

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
        self._seat.connections += 1
        task = self._loop.create_task(self._connect(accepted))
        self._arriving.add(task)
        task.add_done_callback(self._arrived)
        return True

    def _arrived(self, task: asyncio.Task[None]) -> None:
        self._arriving.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self._seat.connections -= 1
            logger.error("a connection was lost on arrival: %s", task.exception())


class Connection(AtOnceProtocol):
    """One client's connection: uvicorn's, with a bounded request head, a crowd limit and an end in order."""

    def __init__(self, seat: Seat, max_connections: int, at_once: AtOnce | None, **given: Any) -> None:
        super().__init__(at_once, QUERY, **given)
        self._seat = seat
        self._max_connections = max_connections
        self._head_bytes: int | None = None
        self._idle_since: float | None = None
        self._pieces, self._pieces_seen = 0, -1
        self._drains = False
        self._last: RequestResponseCycle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client came."""
        super().connection_made(transport)
        if len(self.connections) > self._max_connections:
            self.app = too_many_connections
            self.answers_at_once = False
        if self._seat.state is State.DRAINING:
            self.drain()

    def connection_lost(self, exc: Exception | None) -> None:
        """It went."""
        self._seat.connections = max(0, self._seat.connections - 1)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Part of a request came."""
        self._pieces += 1
        super().data_received(data)
        cycle = self.cycle
        if self._last is not None and cycle is not self._last and not self._last.response_started:
            # Another request came behind it.
            self._last.keep_alive = True
        if self.scope is None or (cycle is not None and cycle.scope is self.scope):
            self._head_bytes = None
        elif self._head_bytes is None:
            # Begun in this piece, which may hold the end of another request.
            self._head_bytes = 0
        else:
            # The parser below has no limit of its own.
            self._head_bytes += len(data)
            if self._head_bytes > HEAD_BYTES:
                self.send_400_response("The head of the request is too large.")

    def drain(self) -> None:
        """From now on the last answer says that it is the last."""
        if self._drains:
            return
        self._drains = True
        self.answers_at_once = False
        cycle = self.cycle
        if cycle is not None and cycle.keep_alive and not cycle.response_started:
            cycle.keep_alive = False
            self._last = cycle
        app = self.app

        async def last(scope: Scope, receive: Receive, send: Send) -> None:
            async def say_last(message: Message) -> None:
                if message["type"] == "http.response.start" and not self.pipeline:
                    message = {**message, "headers": [*message.get("headers", ()), (b"connection", b"close")]}
                await send(message)

            await app(scope, receive, say_last)

        self.app = last

    def close_if_idle_for(self, seconds: float) -> None:
        """Hang up when nothing is under way, nothing was for ``seconds``, and nothing has just arrived."""
        if not self._idle():
            self._idle_since = None
        elif self._idle_since is None:
            self._idle_since = time.monotonic()
        elif time.monotonic() - self._idle_since >= seconds and not self._is_readable():
            self.transport.close()

    def close_if_silent(self) -> None:
        """Hang up on who promised more and sent nothing since the last time this was asked."""
        if self._pieces == self._pieces_seen and self._waits_for_client():
            self.transport.abort()
        self._pieces_seen = self._pieces

    def _waits_for_client(self) -> bool:
        if self._head_bytes is not None:
            return True
        if self.cycle is None:
            return not self.answered
        return self.cycle.more_body and not self.cycle.response_complete and not self.flow.read_paused

    def _idle(self) -> bool:
        cycle = self.cycle
        if cycle is None:
            return self.scope is None
        return cycle.response_complete and cycle.scope is self.scope

    def _is_readable(self) -> bool:
        poll = select.poll()
        poll.register(self.transport.get_extra_info("socket").fileno(), select.POLLIN)
        return bool(poll.poll(0))


async def too_many_connections(scope: Scope, _receive: Receive, send: Send) -> None:
    """An application that turns everybody away."""
    problem = Problem(429, "too_many_connections", "Too many connections are open.", retry_after=1.0)
    request_id = new_request_id()
    body = problem.body(request_id, scope["raw_path"].decode("latin-1"))
    headers = [
        *problem.headers(),
        (b"content-length", b"%d" % len(body)),
        (b"connection", b"close"),
        (HEADER, request_id.encode()),
    ]
    await send({"type": "http.response.start", "status": 429, "headers": headers})
    await send({"type": "http.response.body", "body": body})
