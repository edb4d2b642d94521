"""Capacity that callers share: places and bytes, of which no API key takes more than its share.

All budgets belong to one server process, and only the event loop's thread may use them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from app.auth.authenticator import ANONYMOUS
from app.domain.entities import ApiKey
from app.domain.errors import Overloaded
from app.http.types import Message, Receive
from app.settings import Settings

KEYLESS: Final = "keyless"
"""The caller of requests that need no API key."""
_KEYLESS_PART: Final = 8
"""One part of this many of `max_inflight_requests` is for requests that need no API key."""


class SharedBudget:
    """``limit`` units, of which one API key takes at most ``share``, a fraction, but always one unit.

    noun: the units in the messages of errors. used: units taken. refused: counts refusals under ``name`` and,
    if the share of a key was the reason, under ``name_of_key``. A caller that holds nothing may take more
    than its share, and more than the limit if all is free: a single body may be larger than the budget. The
    caller of a server without keys may take all.
    """

    def __init__(self, limit: int, share: float, name: str, noun: str, refused: dict[str, int]) -> None:
        self.limit = limit
        self.share = max(1, int(limit * share))
        self.used = 0
        self._name = name
        self._noun = noun
        self._refused = refused
        self._held: dict[str, int] = {}
        refused |= {name: 0, f"{name}_of_key": 0}

    def take(self, caller: str, amount: int = 1) -> None:
        """Take ``amount`` units for the key with the id ``caller``. Raises Overloaded."""
        self.check(caller, amount)
        self.used += amount
        self._held[caller] = self._held.get(caller, 0) + amount

    def check(self, caller: str, amount: int = 1) -> None:
        """Raise Overloaded if `take` would do so."""
        if self.used and self.used + amount > self.limit:
            self._refused[self._name] += 1
            raise Overloaded(f"{self.used} {self._noun} are in progress already.")
        if self._exceeds_share(caller, amount):
            self._refused[f"{self._name}_of_key"] += 1
            message = f"{self._held[caller]} {self._noun} of this API key are in progress already, its share."
            raise Overloaded(message, code="share_exceeded")

    def held(self, caller: str) -> int:
        """Units that a key holds."""
        return self._held.get(caller, 0)

    def is_available(self, caller: str) -> bool:
        """Whether `take` would give one unit."""
        return not self.used or (self.used < self.limit and not self._exceeds_share(caller, 1))

    def release(self, caller: str, amount: int = 1) -> None:
        """Give back ``amount`` units."""
        self.used -= amount
        held = self._held.pop(caller) - amount
        if held:
            self._held[caller] = held

    def _exceeds_share(self, caller: str, amount: int) -> bool:
        held = self._held.get(caller, 0)
        return bool(held) and held + amount > self.share and caller != ANONYMOUS.id


@dataclass(slots=True)
class Admission:
    """What one request has taken of the budgets.

    caller: id of its key. has_place: whether it counts as in progress. held_bytes: of its body.
    """

    places: SharedBudget
    body_bytes: SharedBudget
    caller: str = ""
    has_place: bool = field(default=False, init=False)
    held_bytes: int = field(default=0, init=False)

    def enter(self) -> None:
        """Take a place. Raises Overloaded."""
        self.places.take(self.caller)
        self.has_place = True

    def leave(self) -> None:
        """Give the place back, if it was taken."""
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
    """The budgets of one server process.

    queries: queries being answered. requests: other requests with a key in progress. keyless: requests that
    need no key. uploads, upload_bytes: files being received and checked. body_bytes: bytes of other bodies
    that have arrived or are announced. refused: refusals since the start, by budget.
    """

    def __init__(self, settings: Settings) -> None:
        share, places = settings.key_share, settings.max_inflight_requests
        self.refused: dict[str, int] = {}
        self.queries = SharedBudget(settings.max_inflight_queries, share, "queries", "queries", self.refused)
        self.requests = SharedBudget(places, share, "requests", "requests", self.refused)
        self.body_bytes = SharedBudget(
            settings.max_inflight_bytes, share, "body_bytes", "bytes of request bodies", self.refused
        )
        self.uploads = SharedBudget(settings.max_uploads, share, "uploads", "uploads", self.refused)
        self.upload_bytes = SharedBudget(
            settings.max_inflight_upload_bytes, share, "upload_bytes", "bytes of uploads", self.refused
        )
        self.keyless = SharedBudget(
            max(1, places // _KEYLESS_PART), 1.0, "keyless", "requests without an API key", self.refused
        )

    def of_upload(self, caller: str) -> Admission:
        """The admission of an upload by the key with the id ``caller``."""
        return Admission(self.uploads, self.upload_bytes, caller)

    def of_request(self, key: ApiKey | None) -> Admission:
        """The admission of a request other than a query; ``key`` is None if it needs no key."""
        if key is None:
            return Admission(self.keyless, self.body_bytes, KEYLESS)
        return Admission(self.requests, self.body_bytes, key.id)


def counting(receive: Receive, admission: Admission) -> Receive:
    """``receive`` of ASGI, which counts the bytes of the body in the byte budget; it may raise Overloaded."""

    async def counted() -> Message:
        message = await receive()
        admission.hold(len(message.get("body", b"")))
        return message

    return counted
