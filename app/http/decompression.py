"""Packed request bodies, unpacked piece by piece and never further than allowed (RFC 9110, 8.4.1)."""

from __future__ import annotations

import zlib
from typing import Any, Final

from app.domain.errors import InvalidRequest, TooLarge
from app.http.body import too_large
from app.http.types import Body

MAX_RATIO: Final = 250
"""Unpacked bytes for each packed one; real rows stay far below, a bomb of zeros reaches a thousand."""
FREE_BYTES: Final = 1 << 20
"""So much may be unpacked at whatever ratio."""

_PIECE: Final = 1 << 16
# 32 + 15: a gzip or a zlib header, whichever comes.
_WINDOW: Final = 47


def decompress(data: Body, limit: int) -> bytearray:
    """A body as it was before gzip or deflate (the zlib format), at most ``limit`` bytes.

    Several gzip members follow each other as one. Takes no more memory than ``limit`` and some pieces,
    whatever ``data`` says. Raises InvalidRequest for damaged data, and TooLarge.
    """
    allowed = min(limit, max(FREE_BYTES, MAX_RATIO * len(data)))
    unpacked = bytearray()
    unpacker = zlib.decompressobj(_WINDOW)
    view = memoryview(data)
    for start in range(0, len(view), _PIECE):
        rest: Body = view[start : start + _PIECE]
        while rest:
            if unpacker.eof:
                unpacker = zlib.decompressobj(_WINDOW)
            unpacked += _unpack(unpacker, rest)
            if len(unpacked) > allowed:
                raise _too_far(allowed, limit)
            rest = unpacker.unconsumed_tail or unpacker.unused_data
    if not unpacker.eof:
        raise _damaged()
    return unpacked


def _unpack(unpacker: Any, data: Body) -> bytes:
    try:
        piece: bytes = unpacker.decompress(data, _PIECE)
    except zlib.error as error:
        raise _damaged() from error
    return piece


def _too_far(allowed: int, limit: int) -> TooLarge:
    if allowed == limit:
        return too_large(limit)
    message = f"The body unpacks to more than {MAX_RATIO} times its size."
    return TooLarge(message, code="body_unpacks_too_far")


def _damaged() -> InvalidRequest:
    return InvalidRequest("The body is not what its Content-Encoding says, or cut off.", code="bad_encoding")
