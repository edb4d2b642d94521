"""The memory that large query bodies take at once: bounded, however many there are."""

from __future__ import annotations

from typing import Final

from app.domain.errors import Overloaded

SMALL_BYTES: Final = 64 * 1024
"""Bodies up to this size are not counted: the number of queries under way bounds them."""


_MOST_UNPACKED: Final = 1032
"""How much larger deflate's output can be than its input."""


def max_body_bytes(length: int | None, limit: int, *, packed: bool) -> int:
    """The largest size, up to ``limit``, of a body with this Content-Length once it is unpacked."""
    if length is None:
        return limit
    return min(limit, length * _MOST_UNPACKED) if packed else length


class ByteBudget:
    """A budget of ``limit`` bytes; one body alone may be larger than all of it. Belongs to the event loop."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.reserved = 0

    def reserve(self, size: int) -> int:
        """Reserve ``size`` bytes and return what is to be released. Raises Overloaded."""
        if size <= SMALL_BYTES:
            return 0
        if self.reserved and self.reserved + size > self._limit:
            raise Overloaded(f"Queries of {self.reserved} bytes are under way already.")
        self.reserved += size
        return size

    def release(self, size: int) -> None:
        """What `reserve` returned."""
        self.reserved -= size
