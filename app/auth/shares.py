"""What one request takes of what all share, and all that they share: see `Budgets`.

All budgets belong to one server process, and only the event loop's thread may use them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final

from app.auth.authenticator import ANONYMOUS
from app.auth.places import HasTenants, PacedTurns, SharedBudget, Turns, without_key
from app.domain.entities import ApiKey, Caller
from app.http.types import Message, Receive
from app.settings import Settings

QUERY_THREADS: Final = 3
PREDICT_THREADS: Final = 2
_TURNS: Final = 32
_TURNS_OF_KEY: Final = 2
"""Requests of one key that are worked on at the same time, so that a query waits for few of them."""
_KEYLESS_PART: Final = 8
"""One part of this many of `max_inflight_requests` is worked on at the same time without an API key."""
_KEYLESS_OF_NETWORK: Final = 2
_BODIES_PART: Final = 4
"""One part of this many of `max_connections` may wait for the bodies of requests without an API key."""
_BODIES_OF_NETWORK: Final = 8
_WATCHES: Final = 64
_WATCHES_OF_NETWORK: Final = 16
_PROBES: Final = "probes"


@dataclass(slots=True)
class Admission:
    """What one request has taken of the budgets.

    turns: of the requests in progress, if they have turns. has_place: whether it counts as in progress.
    has_turn: whether it is worked on. is_answered: whether its response has begun. held_bytes: of its body.
    """

    places: SharedBudget
    body_bytes: SharedBudget
    caller: Caller
    turns: Turns | None = None
    has_place: bool = field(default=False, init=False)
    has_turn: bool = field(default=False, init=False)
    is_answered: bool = field(default=False, init=False)
    held_bytes: int = field(default=0, init=False)

    def enter(self) -> None:
        """Take a place. Raises Overloaded."""
        self.places.take(self.caller)
        self.has_place = True

    def reenter(self) -> None:
        """Take a place again, for a request that is not refused any more."""
        self.places.add(self.caller)
        self.has_place = True

    async def start(self) -> None:
        """Wait for the turn of the request, if requests in progress have turns, unless it is answered."""
        if self.turns is None or self.has_turn or self.is_answered:
            return
        await self.turns.acquire(self.caller)
        if self.is_answered:
            self.turns.release(self.caller)
            return
        self.has_turn = True
        # The event loop looks for queries before it goes on with the requests that have a turn.
        await asyncio.sleep(0)

    def pause(self) -> None:
        """End the turn, for a request that only waits for its client."""
        if self.turns is not None and self.has_turn:
            self.has_turn = False
            self.turns.release(self.caller)

    def respond(self) -> None:
        """End the turn for good, because the response begins."""
        self.pause()
        self.is_answered = True

    def leave(self) -> None:
        """Give place and turn back, if they were taken."""
        self.pause()
        if self.has_place:
            self.has_place = False
            self.places.release(self.caller)

    def hold(self, amount: int) -> None:
        """Count ``amount`` bytes of the body. Raises Overloaded."""
        if amount:
            self.body_bytes.take(self.caller, amount)
            self.held_bytes += amount

    def close(self) -> None:
        """Give back everything."""
        self.leave()
        if self.held_bytes:
            self.body_bytes.release(self.caller, self.held_bytes)
            self.held_bytes = 0


class Budgets:
    """All that the requests of one server process share; docs/threat-model.md has a table of it.

    Requests with a key. queries: those being answered, and query_threads their threads. requests: others in
    progress, and turns those that are worked on; predict_threads, large_bodies: threads of two kinds of them.
    body_bytes: bytes of bodies, but uploads, that have arrived or are announced. uploads, upload_bytes: files
    being received and checked. refused_turns: turns of the requests other than queries that are refused.

    Requests without a key, by network. keyless_turns: turns of all of them. keyless_places: those that are
    worked on. keyless_bodies: those whose bodies are waited for. watches: health checks over gRPC that wait
    for changes.

    refused: refusals since the start, by budget. has_tenants: returns whether keys of several tenants exist.
    """

    def __init__(self, settings: Settings, has_tenants: HasTenants = lambda: False) -> None:
        self.refused: dict[str, int] = {}

        def shared(limit: int, name: str, noun: str) -> SharedBudget:
            share = int(limit * settings.key_share)
            return SharedBudget(limit, share, name, noun, self.refused, has_tenants)

        self.queries = shared(settings.max_inflight_queries, "queries", "queries")
        self.query_threads = Turns(QUERY_THREADS, QUERY_THREADS - 1, has_tenants)
        self.requests = shared(settings.max_inflight_requests, "requests", "requests")
        self.turns = Turns(_TURNS, _TURNS_OF_KEY, has_tenants)
        self.predict_threads = Turns(PREDICT_THREADS, PREDICT_THREADS - 1, has_tenants)
        self.large_bodies = Turns(1, 1, has_tenants)
        self.body_bytes = shared(settings.max_inflight_bytes, "body_bytes", "bytes of request bodies")
        self.uploads = shared(settings.max_uploads, "uploads", "uploads")
        self.upload_bytes = shared(settings.max_inflight_upload_bytes, "upload_bytes", "bytes of uploads")
        self.refused_turns = PacedTurns()
        self.keyless_turns = PacedTurns()
        worked_on = max(1, settings.max_inflight_requests // _KEYLESS_PART)
        self.keyless_places = Turns(worked_on, _KEYLESS_OF_NETWORK)
        bodies = max(1, settings.max_connections // _BODIES_PART)
        noun = "bodies of requests without an API key"
        self.keyless_bodies = self._of_networks(bodies, _BODIES_OF_NETWORK, "keyless", noun)
        noun = "watched health checks"
        self.watches = self._of_networks(_WATCHES, _WATCHES_OF_NETWORK, "watches", noun)

    def _of_networks(self, limit: int, share: int, name: str, noun: str) -> SharedBudget:
        return SharedBudget(limit, share, name, noun, self.refused, holder="network")

    async def wait_without_key(self, address: str, *, is_probe: bool = False) -> None:
        """Wait for the turn of a request from ``address``. Probes do not wait for its other requests."""
        await self.keyless_turns.turn(without_key(address, _PROBES if is_probe else ""))

    def give_up_without_key(self, address: str) -> None:
        """Count the turn of a request from ``address`` whose client has left before it."""
        self.keyless_turns.give_up(without_key(address))

    def of_upload(self, key: ApiKey) -> Admission:
        """The admission of an upload by ``key``."""
        return Admission(self.uploads, self.upload_bytes, Caller.of(key))

    def of_query(self, key: ApiKey) -> Admission:
        """The admission of a query by ``key``. Raises Overloaded if there is no place for it."""
        caller = Caller.of(key)
        self.queries.check(caller)
        return Admission(self.queries, self.body_bytes, caller)

    def of_request(self, key: ApiKey, *, is_long: bool = False) -> Admission:
        """The admission of a request other than a query.

        is_long: whether it has limits of its own, and may take so long that others of the key must not wait.
        """
        turns = None if is_long or key.id == ANONYMOUS.id else self.turns
        return Admission(self.requests, self.body_bytes, Caller.of(key), turns)

    def of_keyless(self, address: str) -> Admission:
        """The admission of a request that needs no key. Its place is that of a body that is waited for."""
        return Admission(self.keyless_bodies, self.body_bytes, without_key(address), self.keyless_places)


def counting(receive: Receive, admission: Admission) -> Receive:
    """``receive`` of ASGI, which counts the bytes of the body in the byte budget; it may raise Overloaded."""

    async def counted() -> Message:
        message = await receive()
        admission.hold(len(message.get("body", b"")))
        return message

    return counted


def without_place(receive: Receive, admission: Admission, *, is_upload: bool) -> Receive:
    """``receive`` of ASGI, which gives the place of the request back while it waits for the body.

    So a body that arrives slowly keeps no request of others out. Once the body is complete it takes a place
    again, and may raise Overloaded, except for an upload, which has a place of its own all the time.
    """

    async def go_on() -> None:
        if admission.is_answered:
            return
        if is_upload:
            admission.reenter()
        else:
            admission.enter()
            await admission.start()

    return _around_body(receive, admission.leave, go_on)


def without_turn(receive: Receive, admission: Admission) -> Receive:
    """``receive`` of ASGI, which ends the turn of a request without a key while it waits for the body.

    Once the body is complete it does not count as one that is waited for any more, and waits for a turn.
    """

    async def go_on() -> None:
        admission.leave()
        await admission.start()

    return _around_body(receive, admission.pause, go_on)


def _around_body(receive: Receive, wait: Callable[[], None], go_on: Callable[[], Awaitable[None]]) -> Receive:
    """``receive`` of ASGI. wait: called before each part of the body. go_on: awaited after the last one."""
    is_complete = False

    async def received() -> Message:
        nonlocal is_complete
        if is_complete:
            return await receive()
        wait()
        message = await receive()
        is_complete = not message.get("more_body", False)
        if is_complete:
            await go_on()
        return message

    return received
