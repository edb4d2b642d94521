"""Parsing of HTTP headers that several request formats share (RFC 9110)."""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Iterator
from typing import Final
from urllib.parse import quote

from app.domain.errors import UnsupportedFormat

MIN_COMPRESSED_BYTES: Final = 1024
"""Smaller responses are sent uncompressed: compressing them costs more than it saves."""

_LEVEL: Final = 1
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9._-]")
_CODINGS: Final = {
    b"": None,
    b"identity": None,
    b"gzip": b"gzip",
    b"x-gzip": b"gzip",
    b"deflate": b"deflate",
}


def media_type(value: bytes) -> bytes:
    """The media type of a Content-Type or of one part of an Accept, in lower case without parameters."""
    return value.partition(b";")[0].strip().lower()


def content_coding(value: bytes | None) -> bytes | None:
    """The coding that a Content-Encoding names, ``gzip`` or ``deflate``; None if the body is not encoded.

    Raises UnsupportedFormat for any other coding.
    """
    name = b"" if value is None else value.strip().lower()
    if name not in _CODINGS:
        raise UnsupportedFormat("Content-Encoding must be gzip, deflate or identity.", code="bad_encoding")
    return _CODINGS[name]


def preferred_coding(accept_encoding: bytes | None) -> bytes | None:
    """The coding, ``gzip`` or ``deflate``, that an Accept-Encoding prefers; None if it accepts neither."""
    if accept_encoding is None:
        return None
    weights = dict(weighted(accept_encoding))
    best = max((b"gzip", b"deflate"), key=lambda name: weights.get(name, 0.0))
    return best if weights.get(best, 0.0) > 0.0 else None


def weighted(value: bytes) -> Iterator[tuple[bytes, float]]:
    """The parts of a comma-separated header in lower case, each with its weight q (section 12.4.2).

    The weight is 1 without a parameter q, and 0 if q is not a number.
    """
    for part in value.split(b","):
        yield media_type(part), _quality(part)


def compress(data: bytes, coding: bytes) -> bytes:
    """``data`` in the coding ``gzip`` or ``deflate``; the latter is the zlib format (section 8.4.1.2)."""
    return gzip.compress(data, _LEVEL, mtime=0) if coding == b"gzip" else zlib.compress(data, _LEVEL)


def attachment(filename: str) -> str:
    """The Content-Disposition of a file to store under this name (RFC 6266).

    The plain name has only letters, digits and ``._-``, others are replaced; where that changes it, a second
    one has them all, percent-encoded (RFC 8187).
    """
    plain = _UNSAFE.sub("_", filename)
    if plain == filename:
        return f'attachment; filename="{plain}"'
    return f"attachment; filename=\"{plain}\"; filename*=UTF-8''{quote(filename, safe='', errors='replace')}"


def parameter(part: bytes, name: bytes) -> bytes:
    """A parameter of one part of an Accept without quotes, such as the version; empty without it."""
    for text in part.split(b";")[1:]:
        found, _, value = text.partition(b"=")
        if found.strip().lower() == name:
            return value.strip().strip(b'"')
    return b""


def _quality(part: bytes) -> float:
    try:
        return float(parameter(part, b"q") or b"1")
    except ValueError:
        return 0.0
