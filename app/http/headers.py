"""What is compressed, on the way in and on the way out: gzip and deflate (RFC 9110, 8.4.1)."""

from __future__ import annotations

import gzip
import zlib
from typing import Final

from app.domain.errors import UnsupportedFormat

MIN_BYTES: Final = 1024
"""Smaller answers go out as they are: packing them costs more than it saves."""

_LEVEL: Final = 1
_PACKINGS: Final = (b"gzip", b"x-gzip", b"deflate")


def is_packed(encoding: bytes | None) -> bool:
    """Whether a request's body has to be unpacked, by its Content-Encoding. Raises UnsupportedFormat."""
    name = b"identity" if encoding is None else encoding.strip().lower()
    if name not in (b"", b"identity", *_PACKINGS):
        raise UnsupportedFormat("Content-Encoding must be gzip, deflate or identity.", code="bad_encoding")
    return name in _PACKINGS


def wanted_encoding(accepted: bytes | None) -> bytes | None:
    """gzip or deflate where an Accept-Encoding asks for it, the preferred one, else None."""
    if accepted is None:
        return None
    weights = dict(_weight(part) for part in accepted.lower().split(b","))
    best = max((b"gzip", b"deflate"), key=lambda name: weights.get(name, 0.0))
    return best if weights.get(best, 0.0) > 0.0 else None


def deflate(data: bytes, encoding: bytes) -> bytes:
    """``data`` compressed; "deflate" means the zlib format, as everywhere in HTTP."""
    return gzip.compress(data, _LEVEL, mtime=0) if encoding == b"gzip" else zlib.compress(data, _LEVEL)


def _weight(part: bytes) -> tuple[bytes, float]:
    name, _, parameter = part.partition(b";")
    key, _, value = parameter.partition(b"=")
    if key.strip() != b"q":
        return name.strip(), 1.0
    try:
        return name.strip(), float(value)
    except ValueError:
        return name.strip(), 0.0
