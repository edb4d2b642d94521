"""A mapping with a budget: what was used longest ago goes first."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class LruCache(Generic[Key, Value]):
    """Least-recently-used cache of values with sizes.

    budget: sum of the sizes that is kept; the newest value stays even if it alone is larger. Not thread-safe:
    all calls come from the event loop.
    """

    def __init__(self, budget: int) -> None:
        self._budget = budget
        self._entries: OrderedDict[Key, tuple[Value, int]] = OrderedDict()
        self._size = 0

    @property
    def size(self) -> int:
        """Sum of the sizes kept."""
        return self._size

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: Key) -> Value | None:
        """The value, marked as just used, or None."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        self._entries.move_to_end(key)
        return entry[0]

    def put(self, key: Key, value: Value, size: int) -> None:
        """Keep a value as the most recently used one, and let old ones go until the budget holds."""
        old = self._entries.pop(key, None)
        if old is not None:
            self._size -= old[1]
        self._entries[key] = (value, size)
        self._size += size
        while self._size > self._budget and len(self._entries) > 1:
            _, (_, freed) = self._entries.popitem(last=False)
            self._size -= freed

    def newest_first(self) -> Iterator[Key]:
        """Keys, the most recently used first."""
        return reversed(self._entries)
