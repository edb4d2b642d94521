"""A least-recently-used cache with a budget for the total size of its values, of which owners have shares."""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class Part(NamedTuple):
    """A part that several values share; its size counts once while any of them is kept."""

    name: Hashable
    size: int


class _Sizes:
    """A sum of sizes in which shared parts count once."""

    __slots__ = ("_users", "total")

    def __init__(self) -> None:
        self.total = 0
        self._users: dict[Hashable, int] = {}

    def add(self, size: int, shared: Sequence[Part]) -> None:
        self.total += size
        for part in shared:
            users = self._users.get(part.name, 0)
            self._users[part.name] = users + 1
            self.total += 0 if users else part.size

    def remove(self, size: int, shared: Sequence[Part]) -> None:
        self.total -= size
        for part in shared:
            self._users[part.name] -= 1
            if not self._users[part.name]:
                del self._users[part.name]
                self.total -= part.size


@dataclass(slots=True, eq=False)
class _Owner(Generic[Key, Value]):
    """The values of one owner. entries: the least recently used first."""

    name: str
    entries: OrderedDict[Key, _Entry[Key, Value]] = field(default_factory=OrderedDict)
    sizes: _Sizes = field(default_factory=_Sizes)


@dataclass(slots=True, eq=False)
class _Entry(Generic[Key, Value]):
    """A value. size: without its shared parts. used_at: how many values were put before its last use."""

    value: Value
    size: int
    shared: tuple[Part, ...]
    owner: _Owner[Key, Value]
    used_at: int


class LruCache(Generic[Key, Value]):
    """Least-recently-used cache. Not thread-safe.

    budget: largest sum of sizes; the newest value stays even if it alone exceeds it.

    The values of an owner with more than half of the budget are evicted before those of others. So one owner
    can use all of the budget while no other needs it, and an owner that adds values without end evicts its
    own values beyond its half, not those of others. Otherwise the least recently used value is evicted first.
    An eviction reads one entry, and occasionally one of each owner.
    """

    def __init__(self, budget: int) -> None:
        self._budget = budget
        self._entries: dict[Key, _Entry[Key, Value]] = {}
        self._owners: dict[str, _Owner[Key, Value]] = {}
        self._sizes = _Sizes()
        self._puts = 0
        # Those with more than their share.
        self._large: dict[str, _Owner[Key, Value]] = {}
        # A heap with an item of each owner: when its oldest entry was used last, or a time before that.
        self._oldest: list[tuple[int, str]] = []

    @property
    def size(self) -> int:
        """Sum of all sizes."""
        return self._sizes.total

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: object) -> bool:
        return key in self._entries

    def get(self, key: Key) -> Value | None:
        """The value, marked as most recently used, or None."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        entry.used_at = self._puts
        entry.owner.entries.move_to_end(key)
        return entry.value

    def put(self, owner: str, key: Key, value: Value, size: int, *shared: Part) -> None:
        """Add a value as the most recently used one, and evict others until the budget holds.

        size: of the value without its shared parts.
        """
        self.pop(key)
        self._puts += 1
        owned = self._owners.get(owner) or _Owner(owner)
        entry = _Entry(value, size, shared, owned, self._puts)
        self._sizes.add(size, shared)
        owned.sizes.add(size, shared)
        self._note_size(owned)
        # It counts already, but cannot be evicted yet.
        while self._sizes.total > self._budget and self._entries:
            self.pop(self._next_to_evict())
        self._entries[key] = owned.entries[key] = entry
        if owner not in self._owners:
            self._owners[owner] = owned
            heapq.heappush(self._oldest, (self._puts, owner))

    def pop(self, key: Key) -> None:
        """Remove a value if it is present."""
        entry = self._entries.pop(key, None)
        if entry is None:
            return
        del entry.owner.entries[key]
        self._sizes.remove(entry.size, entry.shared)
        entry.owner.sizes.remove(entry.size, entry.shared)
        self._note_size(entry.owner)

    def newest_first(self, owner: str) -> Iterator[Key]:
        """The keys of an owner, the most recently used first."""
        owned = self._owners.get(owner)
        return iter(()) if owned is None else reversed(owned.entries)

    def _note_size(self, owned: _Owner[Key, Value]) -> None:
        if 2 * owned.sizes.total > self._budget:
            self._large[owned.name] = owned
        else:
            self._large.pop(owned.name, None)

    def _next_to_evict(self) -> Key:
        """The key of the value to evict; there is one."""
        large = [owned for owned in self._large.values() if owned.entries]
        if large:
            return next(iter(max(large, key=lambda owned: owned.sizes.total).entries))
        while True:
            noted, owner = self._oldest[0]
            owned = self._owners[owner]
            if not owned.entries:
                heapq.heappop(self._oldest)
                del self._owners[owner]
                continue
            key, entry = next(iter(owned.entries.items()))
            if entry.used_at == noted:
                return key
            heapq.heapreplace(self._oldest, (entry.used_at, owner))
