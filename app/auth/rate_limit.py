"""Rate limits of callers: one number per caller, in memory that all server processes of a machine share.

The number is the theoretical arrival time (TAT) of the generic cell rate algorithm (ITU-T I.371): the moment
when the caller's burst is fully replenished, in seconds of the monotonic clock. A request advances it by
1 / rate, and is refused if it is already further ahead of the clock than the burst allows. So a quota needs
no clean-up and no lock: a number is read and written as a whole. If two processes write at once, the later
one overwrites the other, and requests within that fraction of a microsecond are not counted.

A key has a cell of its own. The database gives it to the key and to no other one until two days after the
key ended (see `Keys.add`), so all processes of all machines agree on it, and no key can use up the limit of
another one. Processes set the cell to zero when the key ends. A key that got no cell, because nearly all
were given away, is counted by each process in its own memory. Any number of addresses share the other cells
by a keyed hash, so that no client can choose its cell.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Sequence
from functools import lru_cache
from hashlib import blake2b
from time import monotonic
from typing import Any, Final, Protocol

from app.domain.entities import ApiKey
from app.domain.errors import RateLimited
from app.http.client_address import is_loopback, network_of
from app.processes.scoreboard import RATE_LIMIT_CELLS, Scoreboard
from app.settings import Settings
from app.store.repositories.keys import CELLS

KEYS: Final = CELLS
"""Cells that belong to keys."""
_ADDRESSES: Final = (RATE_LIMIT_CELLS - KEYS) // 2
_CACHE_SIZE: Final = 4096
_SIGN_INS: Final = 20
"""Sessions that one key may begin at once, and within a minute."""
_SIGN_INS_OF_TENANT: Final = 60
"""The same for all keys of a tenant."""
_MAX_DEBT_SECONDS: Final = 60.0
"""Longest wait for the cost of earlier requests, in addition to the burst."""


class Cells(Protocol):
    """Arrival times in seconds, one for each caller."""

    def __getitem__(self, cell: Any, /) -> float: ...

    def __setitem__(self, cell: Any, moment: float, /) -> None: ...


class Quota:
    """``rate`` requests a second, up to ``burst`` of them at once, for the caller with cell ``cell``."""

    __slots__ = ("_ahead", "_cell", "_cells", "_interval", "burst")

    def __init__(self, cells: Cells, cell: int | str, rate: float, burst: int) -> None:
        self._cells = cells
        self._cell = cell
        self._interval = 1.0 / rate
        # The last request of a burst must not be refused because of a rounding error.
        self._ahead = (burst - 1) / rate + 1e-9
        self.burst = burst

    @property
    def window(self) -> float:
        """Seconds until a burst that is used up is fully replenished."""
        return self.burst * self._interval

    def take(self) -> float:
        """Charge one request; returns 0, or without charging the seconds until one is possible."""
        cells, cell, now = self._cells, self._cell, monotonic()
        due: float = cells[cell]
        if due <= now:
            cells[cell] = now + self._interval
            return 0.0
        wait = due - now - self._ahead
        if wait <= 0.0:
            cells[cell] = due + self._interval
            return 0.0
        if wait > self._interval + _MAX_DEBT_SECONDS:
            # Requests at this rate and charges for work cannot get that far ahead: the cell held another
            # rate, so reset it.
            cells[cell] = now + self._ahead + self._interval
            return self._interval
        return wait

    def is_used_up(self) -> bool:
        """Whether `take` would refuse a request."""
        return self._cells[self._cell] - monotonic() > self._ahead

    def clear(self) -> None:
        """Forget all requests."""
        self._cells[self._cell] = 0.0

    def refund(self) -> None:
        """Undo the charge of one request that was not answered."""
        self._cells[self._cell] -= self._interval

    def charge(self, requests: int) -> None:
        """Charge ``requests`` more, even beyond the burst: the caller then waits longer, at most a minute."""
        cells, cell, now = self._cells, self._cell, monotonic()
        charged = max(cells[cell], now) + requests * self._interval
        cells[cell] = min(charged, now + self._ahead + self._interval + _MAX_DEBT_SECONDS)

    def refusal(self, wait: float, subject: str) -> RateLimited:
        """The error of a caller who has to wait ``wait`` seconds. subject: begins its sentence."""
        return RateLimited(
            f"{subject} may make {1 / self._interval:g} requests a second, and {self.burst} at once.",
            quota=self.burst,
            window=self.window,
            retry_after=wait,
        )


class RateLimiter:
    """The quotas of API keys, of addresses without a key, of failures per address, and of new sessions.

    enabled: whether any caller has a limit. refused: requests refused since the start, by reason.
    """

    def __init__(self, settings: Settings, scoreboard: Scoreboard | None = None) -> None:
        self._scoreboard = scoreboard or Scoreboard.private()
        self._cells, self._salt = self._scoreboard.rate_limit_cells, bytes(self._scoreboard.salt)
        self._rate, self._burst = settings.rate_limit, settings.rate_burst
        self._failures = settings.auth_failure_rate
        self._keyless = settings.keyless_rate_limit
        self._of_keys: dict[str, Quota] = {}
        self._own_cells: defaultdict[str, float] = defaultdict(float)
        self.refused = dict.fromkeys(("rate_limited", "auth_failures", "keyless", "sign_ins"), 0)
        self.enabled = self._rate > 0
        self._cell_of = lru_cache(_CACHE_SIZE)(self._hash)

    def replace_keys(self, keys: Sequence[ApiKey]) -> None:
        """Take the limits of these keys, which are all that exist."""
        given = {key.id for key in keys}
        for key_id in [key_id for key_id in self._of_keys if key_id not in given]:
            self.forget(key_id)
        self.update_keys(keys)

    def update_keys(self, keys: Sequence[ApiKey]) -> None:
        """Take the limits of keys that are new or changed; costs the number of these keys."""
        now = time.time()
        for key in keys:
            quota = self._quota(key) if key.ends_at > now else None
            if quota is None:
                self.forget(key.id)
            else:
                self._of_keys[key.id] = quota
        self.enabled = self._rate > 0 or bool(self._of_keys)

    def forget(self, key_id: str) -> None:
        """Drop the limit of a key that has ended, and what it used of it."""
        quota = self._of_keys.pop(key_id, None)
        if quota is not None:
            quota.clear()
        self._own_cells.pop(key_id, None)

    def of_key(self, key: ApiKey) -> Quota | None:
        """The quota of a key, or of a caller without one; None if it has no limit."""
        return self._of_keys.get(key.id) if key.digest else self.of_address(key.id)

    def of_address(self, address: str) -> Quota | None:
        """The quota of all requests without a key from an address; None if there is no limit.

        address: also the id of a caller whom an issuer of tokens or a proxy has identified.
        """
        if self._rate <= 0:
            return None
        cell = KEYS + self._cell_of(address)
        return Quota(self._cells, cell, self._rate, self._burst or _default_burst(self._rate))

    def check_keyless(self, address: str) -> None:
        """Charge a request that needs no key. Raises RateLimited if too many come from an address."""
        if self._keyless <= 0 or is_loopback(address):
            return
        # A server that answers callers without keys charges them here, too, but it has only local ones.
        quota = Quota(
            self._cells, KEYS + self._cell_of(address), self._keyless, 2 * _default_burst(self._keyless)
        )
        wait = quota.take()
        if wait:
            self.refused["keyless"] += 1
            raise quota.refusal(wait, "An address without an API key")

    def record_failure(self, address: str) -> None:
        """Count a wrong API key or token from an address. Raises RateLimited if there are too many."""
        quota = self._failures_of(address)
        wait = 0.0 if quota is None else quota.take()
        if quota is not None and wait:
            self.refused["auth_failures"] += 1
            raise _too_many_failures(quota, wait)

    def check_failures(self, address: str) -> None:
        """Raise RateLimited if so many wrong keys or tokens came from an address that none is looked at."""
        quota = self._failures_of(address)
        if quota is not None and quota.is_used_up():
            raise _too_many_failures(quota, 1.0 / self._failures)

    def record_sign_in(self, key: ApiKey) -> None:
        """Count a new session of a key, which costs a write. Raises RateLimited if there are too many."""
        for caller, most in ((key.id, _SIGN_INS), (f"tenant {key.tenant}", _SIGN_INS_OF_TENANT)):
            cell = KEYS + _ADDRESSES + self._cell_of(f"sessions of {caller}")
            quota = Quota(self._cells, cell, most / 60.0, most)
            wait = quota.take()
            if wait:
                self.refused["sign_ins"] += 1
                raise RateLimited(
                    f"An API key may begin {_SIGN_INS} sessions a minute, a tenant {_SIGN_INS_OF_TENANT}.",
                    code="too_many_sign_ins",
                    quota=quota.burst,
                    window=quota.window,
                    retry_after=wait,
                )

    def _quota(self, key: ApiKey) -> Quota | None:
        rate = self._rate if key.rate_limit is None else key.rate_limit
        if rate <= 0:
            return None
        default = self._burst if key.rate_limit is None else 0
        burst = key.rate_burst or default or _default_burst(rate)
        if key.cell is None:
            return Quota(self._own_cells, key.id, rate, burst)
        return Quota(self._cells, key.cell, rate, burst)

    def _failures_of(self, address: str) -> Quota | None:
        if self._failures <= 0:
            return None
        cell = KEYS + _ADDRESSES + self._cell_of(address)
        return Quota(self._cells, cell, self._failures, _default_burst(self._failures))

    def _hash(self, address: str) -> int:
        digest = blake2b(network_of(address).encode(), key=self._salt, digest_size=8).digest()
        return int.from_bytes(digest, "little") % _ADDRESSES


def _too_many_failures(quota: Quota, wait: float) -> RateLimited:
    return RateLimited(
        "Too many wrong API keys came from this address.",
        code="too_many_failures",
        quota=quota.burst,
        window=quota.window,
        retry_after=wait,
    )


def _default_burst(rate: float) -> int:
    """The requests of one second, at least one."""
    return max(1, math.ceil(rate))
