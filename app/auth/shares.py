"""Capacity that callers share: places and bytes, of which no API key and no tenant takes more than its share.

All budgets belong to one server process, and only the event loop's thread may use them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from app.auth.authenticator import ANONYMOUS
from app.auth.paced_turns import PacedTurns
from app.domain.entities import ApiKey
from app.domain.errors import Overloaded
from app.http.client_address import network_of
from app.http.types import Message, Receive
from app.processes.fair_turns import FairTurns
from app.settings import Settings

KEYLESS: Final = "keyless"
"""The caller of requests that need no API key."""
_KEYLESS_PART: Final = 8
"""One part of this many of `max_inflight_requests` is for requests that need no API key."""
_TURNS: Final = 32
_TURNS_OF_KEY: Final = 2
"""Requests of one key that are worked on at the same time, so that a query waits for few of them."""


class SharedBudget:
    """``limit`` units, of which one API key takes at most ``share``, a fraction, but always one unit.

    The keys of one tenant together take at most half, unless there is no other: see ``has_tenants``. noun:
    the units in the messages of errors. used: units taken. refused: counts refusals under ``name`` and, if
    the share of a key or tenant was the reason, under ``name_of_key`` or ``name_of_tenant``. A caller that
    holds nothing may take more than its share, and more than the limit if all is free: a single body may be
    larger than the budget. The caller of a server without keys may take all.
    """

    def __init__(
        self,
        limit: int,
        share: float,
        name: str,
        noun: str,
        refused: dict[str, int],
        has_tenants: Callable[[], bool] = lambda: False,
    ) -> None:
        self.limit = limit
        self.share = max(1, int(limit * share))
        self.used = 0
        self._tenant_share = max(1, limit // 2)
        self._has_tenants = has_tenants
        self._name = name
        self._noun = noun
        self._refused = refused
        self._held: dict[str, int] = {}
        self._held_by_tenant: dict[str, int] = {}
        refused |= {name: 0, f"{name}_of_key": 0, f"{name}_of_tenant": 0}

    def take(self, caller: str, amount: int = 1, tenant: str = "") -> None:
        """Take ``amount`` units for the key with the id ``caller``, of ``tenant``. Raises Overloaded."""
        self.check(caller, amount, tenant)
        self.add(caller, amount, tenant)

    def add(self, caller: str, amount: int = 1, tenant: str = "") -> None:
        """As `take`, for what must not be refused any more."""
        self.used += amount
        self._held[caller] = self._held.get(caller, 0) + amount
        self._held_by_tenant[tenant] = self._held_by_tenant.get(tenant, 0) + amount

    def check(self, caller: str, amount: int = 1, tenant: str = "") -> None:
        """Raise Overloaded if `take` would do so."""
        if self.used and self.used + amount > self.limit:
            self._refused[self._name] += 1
            raise Overloaded(f"{self.used} {self._noun} are in progress already.")
        if self._exceeds_share(caller, amount):
            self._refused[f"{self._name}_of_key"] += 1
            message = f"{self._held[caller]} {self._noun} of this API key are in progress already, its share."
            raise Overloaded(message, code="share_exceeded")
        if self._exceeds_tenant_share(caller, amount, tenant):
            self._refused[f"{self._name}_of_tenant"] += 1
            held = self._held_by_tenant[tenant]
            message = f"{held} {self._noun} of this tenant are in progress already, its share."
            raise Overloaded(message, code="share_exceeded")

    def held(self, caller: str) -> int:
        """Units that a key holds."""
        return self._held.get(caller, 0)

    def is_available(self, caller: str, tenant: str = "") -> bool:
        """Whether `take` would give one unit."""
        return not self.used or (
            self.used < self.limit
            and not self._exceeds_share(caller, 1)
            and not self._exceeds_tenant_share(caller, 1, tenant)
        )

    def release(self, caller: str, amount: int = 1, tenant: str = "") -> None:
        """Give back ``amount`` units."""
        self.used -= amount
        for held, holder in ((self._held, caller), (self._held_by_tenant, tenant)):
            left = held.pop(holder) - amount
            if left:
                held[holder] = left

    def _exceeds_share(self, caller: str, amount: int) -> bool:
        held = self._held.get(caller, 0)
        return bool(held) and held + amount > self.share and caller != ANONYMOUS.id

    def _exceeds_tenant_share(self, caller: str, amount: int, tenant: str) -> bool:
        held = self._held_by_tenant.get(tenant, 0)
        is_more = bool(held) and held + amount > self._tenant_share
        return is_more and bool(tenant) and caller != ANONYMOUS.id and self._has_tenants()


@dataclass(slots=True)
class Admission:
    """What one request has taken of the budgets.

    caller, tenant: id of its key, and its tenant. turns: of the requests in progress, if they have turns.
    has_place: whether it counts as in progress. has_turn: whether it is worked on. held_bytes: of its body.
    """

    places: SharedBudget
    body_bytes: SharedBudget
    caller: str = ""
    tenant: str = ""
    turns: FairTurns | None = None
    has_place: bool = field(default=False, init=False)
    has_turn: bool = field(default=False, init=False)
    held_bytes: int = field(default=0, init=False)

    def enter(self) -> None:
        """Take a place. Raises Overloaded."""
        self.places.take(self.caller, 1, self.tenant)
        self.has_place = True

    def reenter(self) -> None:
        """Take a place again, for a request that is not refused any more."""
        self.places.add(self.caller, 1, self.tenant)
        self.has_place = True

    async def start(self) -> None:
        """Wait for the turn of the request, if requests in progress have turns."""
        if self.turns is not None and not self.has_turn:
            await self.turns.acquire(self.caller)
            self.has_turn = True
            # The event loop looks for queries before it goes on with the requests that have a turn.
            await asyncio.sleep(0)

    def pause(self) -> None:
        """End the turn, for a request that only waits for its client."""
        if self.turns is not None and self.has_turn:
            self.has_turn = False
            self.turns.release(self.caller)

    def leave(self) -> None:
        """Give place and turn back, if they were taken."""
        self.pause()
        if self.has_place:
            self.has_place = False
            self.places.release(self.caller, 1, self.tenant)

    def hold(self, amount: int) -> None:
        """Count ``amount`` bytes of the body. Raises Overloaded."""
        if amount:
            self.body_bytes.take(self.caller, amount, self.tenant)
            self.held_bytes += amount

    def close(self) -> None:
        """Give back everything."""
        self.leave()
        if self.held_bytes:
            self.body_bytes.release(self.caller, self.held_bytes, self.tenant)
            self.held_bytes = 0


class Budgets:
    """The budgets of one server process.

    queries: queries being answered. requests: other requests with a key in progress. keyless: requests that
    need no key, and keyless_turns their turns. refused_turns: turns of the requests with a key that are
    refused, by key. uploads, upload_bytes: files being received and checked.
    body_bytes: bytes of other bodies that have arrived or are announced. refused: refusals since the start,
    by budget. has_tenants: returns whether keys of several tenants exist.
    """

    def __init__(self, settings: Settings, has_tenants: Callable[[], bool] = lambda: False) -> None:
        share, places = settings.key_share, settings.max_inflight_requests
        self.refused: dict[str, int] = {}

        def shared(limit: int, name: str, noun: str) -> SharedBudget:
            return SharedBudget(limit, share, name, noun, self.refused, has_tenants)

        self.queries = shared(settings.max_inflight_queries, "queries", "queries")
        self.requests = shared(places, "requests", "requests")
        self.turns = FairTurns(_TURNS, per_caller=_TURNS_OF_KEY)
        self.body_bytes = shared(settings.max_inflight_bytes, "body_bytes", "bytes of request bodies")
        self.uploads = shared(settings.max_uploads, "uploads", "uploads")
        self.upload_bytes = shared(settings.max_inflight_upload_bytes, "upload_bytes", "bytes of uploads")
        self.keyless_turns = PacedTurns()
        self.refused_turns = PacedTurns()
        self.keyless = SharedBudget(
            max(1, places // _KEYLESS_PART), 1.0, "keyless", "requests without an API key", self.refused
        )

    async def wait_without_key(self, address: str, *, is_probe: bool = False) -> None:
        """Wait for the turn of a request from ``address``. Probes do not wait for its other requests."""
        await self.keyless_turns.turn(f"{network_of(address)} {is_probe}")

    def of_upload(self, key: ApiKey) -> Admission:
        """The admission of an upload by ``key``."""
        return Admission(self.uploads, self.upload_bytes, key.id, key.tenant)

    def of_query(self, key: ApiKey) -> Admission:
        """The admission of a query by ``key``. Raises Overloaded if there is no place for it."""
        self.queries.check(key.id, 1, key.tenant)
        return Admission(self.queries, self.body_bytes, key.id, key.tenant)

    def of_request(self, key: ApiKey | None, *, is_long: bool = False) -> Admission:
        """The admission of a request other than a query; ``key`` is None if it needs no key.

        is_long: whether it has limits of its own, and may take so long that others of the key must not wait.
        """
        if key is None:
            return Admission(self.keyless, self.body_bytes, KEYLESS)
        turns = None if is_long or key.id == ANONYMOUS.id else self.turns
        return Admission(self.requests, self.body_bytes, key.id, key.tenant, turns)


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
    is_complete = False

    async def received() -> Message:
        nonlocal is_complete
        if is_complete:
            return await receive()
        admission.leave()
        message = await receive()
        is_complete = not message.get("more_body", False)
        if is_complete and is_upload:
            admission.reenter()
        elif is_complete:
            admission.enter()
            await admission.start()
        return message

    return received
