"""The memory that large query bodies take at once: bounded, however many there are."""

from __future__ import annotations

from typing import Final

from app.domain.errors import Overloaded

SMALL_BYTES: Final = 64 * 1024
"""Bodies up to this size are not counted: the number of queries under way bounds them."""


_MOST_UNPACKED: Final = 1032
"""How much larger deflate's output can be than its input."""


def most_bytes(length: int | None, limit: int, *, packed: bool) -> int:
    """The largest size, up to ``limit``, of a body with this Content-Length once it is unpacked."""
    if length is None:
        return limit
    return min(limit, length * _MOST_UNPACKED) if packed else length


class HeldBytes:
    """A budget of ``limit`` bytes; one body alone may be larger than all of it. Belongs to the event loop."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.held = 0

    def take(self, size: int) -> int:
        """Reserve ``size`` bytes and return what is to be given back. Raises Overloaded."""
        if size <= SMALL_BYTES:
            return 0
        if self.held and self.held + size > self._limit:
            raise Overloaded(f"Queries of {self.held} bytes are under way already.")
        self.held += size
        return size

    def give_back(self, size: int) -> None:
        """What `take` returned."""
        self.held -= size
