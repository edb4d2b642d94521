"""One client's connection: how many a client may have, how slow it may be, and how it ends.

What is slow is looked for about once a second (`look`), so that a fast request pays nothing for it.
"""

from __future__ import annotations

import asyncio
import fcntl
import select
import struct
import termios
import time
from collections import Counter
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final

from app.http.client_address import TrustedProxies, network_of
from app.http.problem import Problem
from app.http.request_id import HEADER, new_request_id
from app.http.types import Message, Receive, Scope, Send
from app.processes.scoreboard import Slot, State
from app.server.fast_path import AtOnce
from app.server.request_rules import StrictProtocol

QUERY: Final = b":query"
"""The end of a target that may be answered at once."""

HEAD_SECONDS: Final = 10.0
"""From the first byte of a head, or from the connection, to the end of the head."""
BODY_SECONDS: Final = 20.0
"""In so long MIN_RATE bytes a second of a body must come, or all that is left of it."""
READ_SECONDS: Final = 20.0
"""In so long a client must take MIN_RATE bytes a second of the answer that waits for it."""
MIN_RATE: Final = 500


class _Turn(Enum):
    """What the client is to do next. The value: for which reason it is hung up on if it does not."""

    HEAD = "slow_head"
    BODY = "slow_body"
    READ = "slow_reader"
    NEXT = "slow_next"


_REASONS: Final = ("bad_request", "connections", "connections_of_address", *(turn.value for turn in _Turn))


@dataclass(slots=True)
class House:
    """What the connections of one server process share.

    most: open connections before new ones get 429. most_of_one: those of one address; 0: any number; those of
    loopback and trusted proxies are not counted. refused: connections and requests, by reason.
    """

    slot: Slot
    most: int
    most_of_one: int = 0
    proxies: TrustedProxies = field(default_factory=TrustedProxies)
    at_once: AtOnce | None = None
    addresses: Counter[str] = field(default_factory=Counter)
    refused: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_REASONS, 0))


@dataclass(frozen=True, slots=True)
class _Window:
    """A turn under way. of: the request. since: when it was first seen. size: bytes come or waiting then."""

    turn: _Turn
    of: object
    since: float
    size: int


class Connection(StrictProtocol):
    """A connection with a crowd limit, patience that ends, and an end in order."""

    def __init__(self, house: House, **given: Any) -> None:
        super().__init__(house.at_once, QUERY, **given)
        self._house = house
        self._network: str | None = None
        self._idle_since: float | None = None
        self._drains = False
        self._window: _Window | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client came."""
        super().connection_made(transport)
        house = self._house
        if len(self.connections) > house.most:
            self._turn_away("connections")
        if house.most_of_one and self.client is not None and not _is_near(self.client[0], house.proxies):
            self._network = network_of(self.client[0])
            house.addresses[self._network] += 1
            of_one = house.addresses[self._network]
            if of_one > 2 * house.most_of_one:
                self.refused("connections_of_address")
                self.hung_up = True
                transport.abort()
            elif of_one > house.most_of_one:
                self._turn_away("connections_of_address")
        if house.slot.state is State.DRAINING:
            self.drain()

    def connection_lost(self, exc: Exception | None) -> None:
        """It went."""
        slot, addresses = self._house.slot, self._house.addresses
        slot.connections = max(0, slot.connections - 1)
        if self._network is not None:
            addresses[self._network] -= 1
            if not addresses[self._network]:
                del addresses[self._network]
        super().connection_lost(exc)

    def resume_writing(self) -> None:
        """The client has taken most of what waited for it."""
        self._window = None
        super().resume_writing()

    def refused(self, reason: str) -> None:
        """Count what is turned away."""
        self._house.refused[reason] += 1

    def drain(self) -> None:
        """From now on the last answer says that it is the last."""
        if self._drains:
            return
        self._drains = True
        self.answers_at_once = False
        cycle = self.cycle
        if cycle is not None and cycle.keep_alive and not cycle.response_started:
            cycle.keep_alive = False
            self.last_cycle = cycle
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

    def look(self, now: float) -> None:
        """Hang up on a client that is too slow; to be called about once a second. now: `time.monotonic`."""
        turn = self._turn()
        window = self._window
        if turn is None:
            self._window = None
        elif window is None or window.turn is not turn or window.of is not self.scope:
            self._window = _Window(turn, self.scope, now, self._size(turn))
        elif now - window.since >= _patience(turn):
            self._window = None
            moved = self._size(turn) - window.size
            done = -moved if turn is _Turn.READ else moved
            if turn in (_Turn.HEAD, _Turn.NEXT) or done < MIN_RATE * (now - window.since):
                self._lose_patience(turn)

    def _turn(self) -> _Turn | None:
        """The client's, if it is its turn."""
        if self.transport.get_write_buffer_size() > 0:
            return _Turn.READ
        scope, cycle = self.scope, self.cycle
        if self.flow.read_paused or self.hung_up:
            return None
        if scope is None and not self.answered:
            return _Turn.HEAD
        if scope is not None and (cycle is None or cycle.scope is not scope):
            return _Turn.HEAD
        if scope is not None and self._ended is not scope:
            return _Turn.BODY
        if scope is not None and not cycle.response_complete:
            return None
        # The time for the next request runs, unless line ends stopped it, which begin none.
        return _Turn.NEXT if self.timeout_keep_alive_task is None else None

    def _size(self, turn: _Turn) -> int:
        """Bytes that came so far, or that the client has not taken yet."""
        if turn is not _Turn.READ:
            return self._received
        # TCP tells by this what it holds and nobody has acknowledged (tcp(7), SIOCOUTQ).
        file = self.transport.get_extra_info("socket").fileno()
        held = struct.unpack("i", fcntl.ioctl(file, termios.TIOCOUTQ, bytes(4)))[0]
        return self.transport.get_write_buffer_size() + int(held)

    def _lose_patience(self, turn: _Turn) -> None:
        self.refused(turn.value)
        if turn is _Turn.READ:
            self.abort()
        elif turn is _Turn.NEXT or self.scope is None:
            self.hang_up(None)
        else:
            part = "head" if turn is _Turn.HEAD else "body"
            self.fail(Problem(408, "too_slow", f"The {part} of the request came too slowly."))

    def _turn_away(self, reason: str) -> None:
        self.refused(reason)
        self.app = too_many_connections
        self.answers_at_once = False

    def _idle(self) -> bool:
        cycle = self.cycle
        if cycle is None:
            return self.scope is None
        return cycle.response_complete and cycle.scope is self.scope

    def _is_readable(self) -> bool:
        poll = select.poll()
        poll.register(self.transport.get_extra_info("socket").fileno(), select.POLLIN)
        return bool(poll.poll(0))


def _patience(turn: _Turn) -> float:
    """Seconds that a turn may take."""
    if turn is _Turn.BODY:
        return BODY_SECONDS
    return READ_SECONDS if turn is _Turn.READ else HEAD_SECONDS


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


def _is_near(address: str, proxies: TrustedProxies) -> bool:
    """Whether many clients may be behind an address, or none that is a stranger."""
    return address in proxies or address == "::1" or address.startswith(("127.", "::ffff:127."))
