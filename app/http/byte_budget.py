"""A budget for the memory that large request bodies take together."""

from __future__ import annotations

from typing import Final

from app.domain.errors import Overloaded

SMALL_BYTES: Final = 64 * 1024
"""Bodies up to this size are not counted: the limit of queries in flight bounds them."""

_MAX_DEFLATE_RATIO: Final = 1032
"""Largest ratio of deflate's output to its input."""


def max_body_bytes(length: int | None, limit: int, *, compressed: bool) -> int:
    """The largest size in bytes that a body can have once it is decompressed, at most ``limit``.

    length: Content-Length, if there is one.
    """
    if length is None:
        return limit
    return min(limit, length * _MAX_DEFLATE_RATIO) if compressed else length


class ByteBudget:
    """A budget of ``limit`` bytes. A single body may exceed it. Only the event loop's thread may use it.

    reserved: bytes in use.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.reserved = 0

    def reserve(self, size: int) -> int:
        """Reserve ``size`` bytes; returns the number to pass to `release`. Raises Overloaded."""
        if size <= SMALL_BYTES:
            return 0
        if self.reserved and self.reserved + size > self._limit:
            raise Overloaded(f"Query bodies of {self.reserved} bytes are in progress already.")
        self.reserved += size
        return size

    def release(self, size: int) -> None:
        """Release bytes that `reserve` returned."""
        self.reserved -= size
