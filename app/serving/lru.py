"""A least-recently-used cache with a budget for the total size of its values."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterator
from typing import Generic, NamedTuple, TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class Part(NamedTuple):
    """A part that several values share; its size counts once while any of them is kept."""

    name: Hashable
    size: int


class LruCache(Generic[Key, Value]):
    """Least-recently-used cache. Not thread-safe.

    budget: largest sum of sizes; the newest value stays even if it alone exceeds it.
    """

    def __init__(self, budget: int) -> None:
        self._budget = budget
        self._entries: OrderedDict[Key, tuple[Value, int, tuple[Part, ...]]] = OrderedDict()
        self._users: dict[Hashable, int] = {}
        self._size = 0

    @property
    def size(self) -> int:
        """Sum of all sizes."""
        return self._size

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: object) -> bool:
        return key in self._entries

    def get(self, key: Key) -> Value | None:
        """The value, marked as the most recently used one, or None."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        self._entries.move_to_end(key)
        return entry[0]

    def put(self, key: Key, value: Value, size: int, *shared: Part) -> None:
        """Add a value as the most recently used one, and evict old ones until the budget holds.

        size: of the value without its shared parts.
        """
        self.pop(key)
        self._entries[key] = (value, size, shared)
        self._size += size
        for part in shared:
            users = self._users.get(part.name, 0)
            self._users[part.name] = users + 1
            self._size += 0 if users else part.size
        while self._size > self._budget and len(self._entries) > 1:
            self.pop(next(iter(self._entries)))

    def pop(self, key: Key) -> None:
        """Remove a value if it is present."""
        entry = self._entries.pop(key, None)
        if entry is None:
            return
        _, size, shared = entry
        self._size -= size
        for part in shared:
            self._users[part.name] -= 1
            if not self._users[part.name]:
                del self._users[part.name]
                self._size -= part.size

    def newest_first(self) -> Iterator[Key]:
        """All keys, the most recently used first."""
        return reversed(self._entries)
