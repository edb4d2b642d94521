"""How often a caller may ask: one number a caller, in memory that all server processes of a machine share.

The number is the theoretical arrival time of the generic cell rate algorithm (ITU-T I.371): the moment at
which the caller will have used up nothing. A request moves it on by 1 / rate; it is refused when it is more
than the burst ahead of the clock already. So a budget needs no clean-up, and works without a lock: a number
is read and written as a whole. Of two processes that do so at once the later one undoes what the other wrote:
what passed in the fraction of a microsecond in between is then not counted.

Places: a key has its own, by its rank among all keys, which are never deleted and whose ids sort by time.
Addresses, of which there may be any number, share theirs by a keyed hash that nobody outside can aim with.
"""

from __future__ import annotations

import ipaddress
import math
from collections.abc import Iterable, Sequence
from functools import lru_cache
from hashlib import blake2b
from time import monotonic
from typing import Final

from app.domain.entities import ApiKey
from app.domain.errors import RateLimited
from app.processes.scoreboard import RATE_LIMIT_CELLS, Scoreboard
from app.settings import Settings

KEYS: Final = 1 << 16
"""Keys with a place of their own; those beyond share one with another."""
_ADDRESSES: Final = (RATE_LIMIT_CELLS - KEYS) // 2
_REMEMBERED: Final = 4096


class Budget:
    """``rate`` requests a second, ``burst`` of them at once, for whoever has this place of ``times``."""

    __slots__ = ("_ahead", "_interval", "_place", "_times", "quota")

    def __init__(self, times: memoryview[float], place: int, rate: float, burst: int) -> None:
        self._times = times
        self._place = place
        self._interval = 1.0 / rate
        # The last of a burst must not fail for a rounding.
        self._ahead = (burst - 1) / rate + 1e-9
        self.quota = burst

    @property
    def window(self) -> float:
        """Seconds in which a budget that was used up is whole again."""
        return self.quota * self._interval

    def take(self) -> float:
        """Take one request out: 0 if there was one, else the seconds until there is."""
        times, place, now = self._times, self._place, monotonic()
        due: float = times[place]
        if due <= now:
            times[place] = now + self._interval
            return 0.0
        wait = due - now - self._ahead
        if wait <= 0.0:
            times[place] = due + self._interval
            return 0.0
        if wait > self._interval:
            # Nobody who asks at this rate gets that far: the place was another's, or the rate is new.
            times[place] = now + self._ahead + self._interval
            return self._interval
        return wait

    def give_back(self) -> None:
        """One request was not made after all."""
        self._times[self._place] -= self._interval

    def refusal(self, wait: float, whose: str) -> RateLimited:
        """The error of who has to wait."""
        return RateLimited(
            f"{whose} may ask {1 / self._interval:g} times a second, and {self.quota} times at once.",
            quota=self.quota,
            window=self.window,
            retry_after=wait,
        )


class Limits:
    """The budgets of keys, and of addresses: for those without a key, and for keys that are none."""

    def __init__(self, settings: Settings, scoreboard: Scoreboard | None = None) -> None:
        self._scoreboard = scoreboard or Scoreboard.private()
        self._times, self._salt = self._scoreboard.rate_limit_cells, bytes(self._scoreboard.salt)
        self._rate, self._burst = settings.rate_limit, settings.rate_burst
        self._failures = settings.auth_failure_rate
        self._of_keys: dict[str, Budget] = {}
        self.refused: dict[str, int] = {"rate_limited": 0, "auth_failures": 0}
        self.any = self._rate > 0
        """Whether anybody at all has a limit."""
        self._place_of = lru_cache(_REMEMBERED)(self._hashed)

    def follow(self, keys: Sequence[ApiKey]) -> None:
        """From now on the limits are those of these keys, all there are."""
        ranked = enumerate(sorted(key.id for key in keys))
        places = {key_id: rank % KEYS for rank, key_id in ranked}
        self._of_keys = {key.id: found for key in keys if (found := self._budget(key, places[key.id]))}
        self.any = self._rate > 0 or bool(self._of_keys)

    def of_key(self, key: ApiKey) -> Budget | None:
        """The budget of a key; None if it has no limit."""
        return self._of_keys.get(key.id)

    def of_anonymous(self, address: str) -> Budget | None:
        """The budget of those at an address who show no key; None if there is no limit."""
        if self._rate <= 0:
            return None
        place = KEYS + self._place_of(address)
        return Budget(self._times, place, self._rate, self._burst or _second(self._rate))

    def fail(self, address: str) -> None:
        """Somebody at an address showed a key that is none. Raises RateLimited if that happens too often."""
        if self._failures > 0:
            place = KEYS + _ADDRESSES + self._place_of(address)
            budget = Budget(self._times, place, self._failures, _second(self._failures))
            wait = budget.take()
            if wait:
                self.refused["auth_failures"] += 1
                raise RateLimited(
                    "Too many wrong API keys came from this address.",
                    code="too_many_failures",
                    quota=budget.quota,
                    window=budget.window,
                    retry_after=wait,
                )

    def charge(self, budget: Budget, whose: str) -> None:
        """Take a request out of a budget. Raises RateLimited."""
        wait = budget.take()
        if wait:
            self.refused["rate_limited"] += 1
            raise budget.refusal(wait, whose)

    def _budget(self, key: ApiKey, place: int) -> Budget | None:
        rate = self._rate if key.rate_limit is None else key.rate_limit
        if rate <= 0:
            return None
        default = self._burst if key.rate_limit is None else 0
        return Budget(self._times, place, rate, key.rate_burst or default or _second(rate))

    def _hashed(self, address: str) -> int:
        digest = blake2b(network_of(address).encode(), key=self._salt, digest_size=8).digest()
        return int.from_bytes(digest, "little") % _ADDRESSES


def network_of(address: str) -> str:
    """Who is counted as one: an IPv4 address, or the first 64 bits of an IPv6 address, one site's."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(found, ipaddress.IPv6Address):
        if found.ipv4_mapped is not None:
            return str(found.ipv4_mapped)
        return str(ipaddress.IPv6Network((found, 64), strict=False).network_address)
    return str(found)


class TrustedProxies:
    """The reverse proxies whose word on a client's address is taken.

    networks: addresses or networks, such as ``10.0.0.0/8``. Raises ValueError for anything else.
    """

    def __init__(self, networks: Iterable[str] = ()) -> None:
        self._networks = [ipaddress.ip_network(network.strip(), strict=False) for network in networks]
        self._is_trusted = lru_cache(_REMEMBERED)(self._look)

    def __contains__(self, address: str) -> bool:
        return bool(self._networks) and self._is_trusted(address)

    def address_of(self, client: Sequence[object] | None, headers: Iterable[tuple[bytes, bytes]]) -> str:
        """Where a request comes from; empty if nobody knows.

        client: (host, port) of the connection. Behind a trusted proxy the newest address in X-Forwarded-For
        that is not a trusted proxy's: each proxy adds at the end who asked it, and what is before that
        anybody may have written.
        """
        address = str(client[0]) if client else ""
        if address not in self:
            return address
        said = b",".join(value for name, value in headers if name == b"x-forwarded-for")
        for part in reversed(said.decode("latin-1").split(",")):
            found = _address(part)
            if found is None:
                return address
            address = found
            if address not in self:
                return address
        return address

    def _look(self, address: str) -> bool:
        try:
            found = ipaddress.ip_address(address.partition("%")[0])
        except ValueError:
            return False
        mapped = getattr(found, "ipv4_mapped", None)
        return any((mapped or found) in network for network in self._networks)


def _address(text: str) -> str | None:
    """An address as proxies write it, with or without a port; None if it is none."""
    text = text.strip()
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        return str(ipaddress.ip_address(text))
    except ValueError:
        return None


def _second(rate: float) -> int:
    """The requests of one second, at least one."""
    return max(1, math.ceil(rate))
