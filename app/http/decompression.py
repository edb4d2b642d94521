"""Decompression of request bodies with limits against decompression bombs (RFC 9110, 8.4.1)."""

from __future__ import annotations

import zlib
from typing import Any, Final

from app.domain.errors import InvalidRequest, TooLarge
from app.http.body import too_large
from app.http.types import Body

MAX_RATIO: Final = 250
"""Largest ratio of output to input bytes; real rows stay far below it, a bomb of zeros reaches 1000."""
FREE_BYTES: Final = 1 << 20
"""Output up to this size may have any ratio."""
MAX_MEMBERS: Final = 10_000
"""Most gzip or zlib streams in one body. Each costs time even if it is empty, which no ratio shows."""

_PIECE: Final = 1 << 16
# 32 + 15: zlib detects a gzip or a zlib header.
_WINDOW: Final = 47


def decompress(data: Body, limit: int) -> bytearray:
    """Decompress a body in gzip or deflate (the zlib format) to at most ``limit`` bytes.

    Several gzip members are concatenated. Peak memory is ``limit`` and a few blocks, for any input. Raises
    InvalidRequest for damaged data, and TooLarge.
    """
    allowed = min(limit, max(FREE_BYTES, MAX_RATIO * len(data)))
    output = bytearray()
    decoder, members = zlib.decompressobj(_WINDOW), 1
    view = memoryview(data)
    for start in range(0, len(view), _PIECE):
        rest: Body = view[start : start + _PIECE]
        while rest:
            if decoder.eof:
                decoder, members = zlib.decompressobj(_WINDOW), members + 1
                if members > MAX_MEMBERS:
                    message = f"The body consists of more than {MAX_MEMBERS} compressed streams."
                    raise TooLarge(message, code="too_many_members")
            output += _decode(decoder, rest)
            if len(output) > allowed:
                raise _too_much(allowed, limit)
            rest = decoder.unconsumed_tail or decoder.unused_data
    if not decoder.eof:
        raise _damaged()
    return output


def _decode(decoder: Any, data: Body) -> bytes:
    try:
        piece: bytes = decoder.decompress(data, _PIECE)
    except zlib.error as error:
        raise _damaged() from error
    return piece


def _too_much(allowed: int, limit: int) -> TooLarge:
    if allowed == limit:
        return too_large(limit)
    message = f"The body unpacks to more than {MAX_RATIO} times its size."
    return TooLarge(message, code="body_unpacks_too_far")


def _damaged() -> InvalidRequest:
    return InvalidRequest("The body is not what its Content-Encoding says, or cut off.", code="bad_encoding")
