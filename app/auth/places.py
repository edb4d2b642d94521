"""What requests share: limited numbers of places, for which a caller is refused or waits, and a rate.

The levels are the same everywhere: tenants first, and within a tenant its API keys; callers without a key
count by network, see `without_key`. Only the thread of the event loop may use any of it, and
`app.fair_queue` is for threads.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final, Generic, TypeAlias, TypeVar

from app.auth.authenticator import ANONYMOUS
from app.domain.entities import Caller
from app.domain.errors import Overloaded
from app.http.client_address import network_of

PER_SECOND: Final = 200.0
"""Requests that `PacedTurns` lets go on in a second."""
_BURST: Final = 8
"""Of them so many at once, such as the files of a page."""
_MOST_GIVEN_UP: Final = 1024
"""Turns of a network that were given up, and still count."""
_BYTES_PER_SECOND: Final = 64e6
"""Bytes of their responses."""

Item = TypeVar("Item")
HasTenants: TypeAlias = Callable[[], bool]
"""Returns whether keys of several tenants exist."""


def without_key(address: str, part: str = "") -> Caller:
    """The caller of a request without an API key. part: such as probes, which alternate with other parts."""
    return Caller(part, network_of(address))


class Lanes(Generic[Item]):
    """What waits, by caller: tenants alternate, and within a tenant its keys.

    So how long a tenant waits depends neither on the number of another one's keys nor on what they ask for.
    """

    def __init__(self) -> None:
        self._tenants: OrderedDict[str, OrderedDict[str, OrderedDict[Item, None]]] = OrderedDict()

    def __bool__(self) -> bool:
        return bool(self._tenants)

    def add(self, caller: Caller, item: Item) -> None:
        """Append an item to the lane of its caller."""
        keys = self._tenants.setdefault(caller.tenant, OrderedDict())
        keys.setdefault(caller.key, OrderedDict())[item] = None

    def discard(self, caller: Caller, item: Item) -> None:
        """Remove an item that waits no longer, if it is still there."""
        keys = self._tenants.get(caller.tenant)
        if keys is not None and item in keys.get(caller.key, ()):
            del keys[caller.key][item]
            self._remove_empty(caller)

    def take(self, may_go: Callable[[Caller], bool] = lambda _: True) -> tuple[Caller, Item] | None:
        """Remove the next item of a caller who ``may_go``; returns both, or None if there is none.

        It is of the tenant whose last one is longest ago, and of the key of this tenant with the same trait.
        """
        callers = (Caller(tenant, key) for tenant, keys in self._tenants.items() for key in keys)
        caller = next(filter(may_go, callers), None)
        if caller is None:
            return None
        keys = self._tenants[caller.tenant]
        item, _ = keys[caller.key].popitem(last=False)
        keys.move_to_end(caller.key)
        self._tenants.move_to_end(caller.tenant)
        self._remove_empty(caller)
        return caller, item

    def _remove_empty(self, caller: Caller) -> None:
        keys = self._tenants[caller.tenant]
        if not keys[caller.key]:
            del keys[caller.key]
        if not keys:
            del self._tenants[caller.tenant]


class Shares:
    """Who holds how many of ``limit`` units, of which a key has at most ``share``, and always one.

    The keys of one tenant together have at most half, unless there is no other tenant. A caller that holds
    nothing may take more than its share, and more than the limit if all is free: a single body may be larger
    than the budget. The caller of a server without keys may take all. used: units that are held.
    """

    def __init__(self, limit: int, share: int, has_tenants: HasTenants) -> None:
        self.limit = limit
        self.share = max(1, share)
        self.used = 0
        self._tenant_share = (limit + 1) // 2
        self._has_tenants = has_tenants
        self._of_keys: Counter[str] = Counter()
        self._of_tenants: Counter[str] = Counter()

    def held(self, caller: Caller) -> int:
        """Units that the key of a caller holds."""
        return self._of_keys[caller.key]

    def is_available(self, caller: Caller) -> bool:
        """Whether the caller may have one more unit."""
        return not self.used or (
            self.used < self.limit
            and not self._exceeds_share(caller, 1)
            and not self._exceeds_tenant_share(caller, 1)
        )

    def add(self, caller: Caller, amount: int = 1) -> None:
        """Count ``amount`` units as held, whatever the limits are."""
        self.used += amount
        self._of_keys[caller.key] += amount
        self._of_tenants[caller.tenant] += amount

    def release(self, caller: Caller, amount: int = 1) -> None:
        """Give back ``amount`` units."""
        self.used -= amount
        for held, holder in ((self._of_keys, caller.key), (self._of_tenants, caller.tenant)):
            held[holder] -= amount
            if not held[holder]:
                del held[holder]

    def _exceeds_share(self, caller: Caller, amount: int) -> bool:
        held = self._of_keys[caller.key]
        return bool(held) and held + amount > self.share and caller.key != ANONYMOUS.id

    def _exceeds_tenant_share(self, caller: Caller, amount: int) -> bool:
        held = self._of_tenants[caller.tenant]
        is_more = bool(held) and held + amount > self._tenant_share
        return is_more and caller.key != ANONYMOUS.id and self._has_tenants()


class SharedBudget(Shares):
    """Units that a caller gets at once or not at all.

    noun: the units in the messages of errors. holder: who has a share of its own there, a key or a network.
    refused: counts refusals under ``name`` and, if the share of a key, network or tenant was the reason,
    under ``name_of_key``, ``name_of_network`` or ``name_of_tenant``.
    """

    def __init__(
        self,
        limit: int,
        share: int,
        name: str,
        noun: str,
        refused: dict[str, int],
        has_tenants: HasTenants = lambda: False,
        holder: str = "API key",
    ) -> None:
        super().__init__(limit, share, has_tenants)
        self._name, self._noun, self._holder = name, noun, holder
        self._name_of_holder = f"{name}_of_{holder.split()[-1]}"
        self._refused = refused
        refused |= {name: 0, self._name_of_holder: 0, f"{name}_of_tenant": 0}

    def take(self, caller: Caller, amount: int = 1) -> None:
        """Take ``amount`` units. Raises Overloaded."""
        self.check(caller, amount)
        self.add(caller, amount)

    def check(self, caller: Caller, amount: int = 1) -> None:
        """Raise Overloaded if `take` would do so."""
        if self.used and self.used + amount > self.limit:
            self._refused[self._name] += 1
            raise Overloaded(f"{self.used} {self._noun} are in progress already.")
        if self._exceeds_share(caller, amount):
            self._refused[self._name_of_holder] += 1
            raise self._share_exceeded(self._of_keys[caller.key], self._holder)
        if self._exceeds_tenant_share(caller, amount):
            self._refused[f"{self._name}_of_tenant"] += 1
            raise self._share_exceeded(self._of_tenants[caller.tenant], "tenant")

    def _share_exceeded(self, held: int, holder: str) -> Overloaded:
        message = f"{held} {self._noun} of this {holder} are in progress already, its share."
        return Overloaded(message, code="share_exceeded")


class Turns(Shares):
    """Places that callers wait for, in the order of `Lanes`.

    Work that is divided into short pieces, each with a turn of its own, therefore delays another tenant by
    about one piece.
    """

    def __init__(self, limit: int, share: int, has_tenants: HasTenants = lambda: False) -> None:
        super().__init__(limit, share, has_tenants)
        self._waiting: Lanes[asyncio.Future[None]] = Lanes()

    @asynccontextmanager
    async def turn(self, caller: Caller) -> AsyncIterator[None]:
        """Wait for a place, and keep it until the end of the block."""
        await self.acquire(caller)
        try:
            yield
        finally:
            self.release(caller)

    async def acquire(self, caller: Caller) -> None:
        """Wait for a place, which must be released."""
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(caller, place)
        self._grant()
        try:
            await place
        except asyncio.CancelledError:
            # A task may be cancelled after it received its place and before it continued.
            if place.done() and not place.cancelled():
                self.release(caller)
            else:
                self._waiting.discard(caller, place)
            raise

    def release(self, caller: Caller, amount: int = 1) -> None:
        super().release(caller, amount)
        self._grant()

    def _grant(self) -> None:
        while self.used < self.limit:
            granted = self._waiting.take(self.is_available)
            if granted is None:
                return
            caller, place = granted
            if not place.cancelled():
                self.add(caller)
                place.set_result(None)


class PacedTurns:
    """`PER_SECOND` turns in a second, in the order of `Lanes`, of requests that need not be fast.

    A request costs the event loop some tenths of a millisecond, so they take a small part of its time, and a
    query never waits for more than a few of them.
    """

    def __init__(self) -> None:
        self._waiting: Lanes[asyncio.Future[None]] = Lanes()
        self._due = 0.0
        """When all turns that were given would be over at the rate of `PER_SECOND`."""
        self._timer: asyncio.TimerHandle | None = None
        self._given_up: Counter[Caller] = Counter()

    async def turn(self, caller: Caller) -> None:
        """Wait for the turn of a request, which comes after the earlier ones of its caller."""
        loop = asyncio.get_running_loop()
        if not self._waiting and self._seconds_to_wait(loop.time()) <= 0.0:
            self._due = max(self._due, loop.time()) + 1 / PER_SECOND
            return
        turn = self._wait(caller)
        try:
            await turn
        finally:
            self._waiting.discard(caller, turn)

    def give_up(self, caller: Caller) -> None:
        """Count the turn of a request whose client left before it; later ones of the caller wait for it."""
        if self._given_up[caller] >= _MOST_GIVEN_UP:
            return
        self._given_up[caller] += 1

        def end(_turn: asyncio.Future[None]) -> None:
            self._given_up[caller] -= 1
            if not self._given_up[caller]:
                del self._given_up[caller]

        self._wait(caller).add_done_callback(end)

    def _wait(self, caller: Caller) -> asyncio.Future[None]:
        """What has a result when it is the turn of the caller."""
        loop = asyncio.get_running_loop()
        turn: asyncio.Future[None] = loop.create_future()
        self._waiting.add(caller, turn)
        if self._timer is None:
            self._timer = loop.call_later(self._seconds_to_wait(loop.time()), self._next)
        return turn

    def charge(self, size: int) -> None:
        """Count ``size`` bytes of a response, which delay the next turns."""
        self._due += size / _BYTES_PER_SECOND

    def _seconds_to_wait(self, now: float) -> float:
        return self._due - now - (_BURST - 1) / PER_SECOND

    def _next(self) -> None:
        """Let the next request that still waits go on."""
        loop = asyncio.get_running_loop()
        self._timer = None
        while (taken := self._waiting.take()) is not None:
            _, turn = taken
            if not turn.done():
                turn.set_result(None)
                # Without a burst: as long as requests wait, one goes on at a time.
                self._due = max(self._due, loop.time()) + 1 / PER_SECOND
                break
        if self._waiting:
            self._timer = loop.call_later(max(1 / PER_SECOND, self._seconds_to_wait(loop.time())), self._next)
