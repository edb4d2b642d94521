"""Lists of numbers in JSON, decoded into packed float64: the rows of most queries.

Compiled code does this if the package was built with a C compiler, otherwise Python; both give the same bits.
For anything that is not a list of exactly n usable numbers the result is None: the decoders of `query.rows`
and of `open_inference.requests` then accept it or report its faults.
"""

from __future__ import annotations

import struct
from math import hypot, sqrt
from typing import Final

import msgspec

from app.http.types import Body

try:
    from app.serving._row_decoder import decode_list, decode_row

    IS_COMPILED = True
except ImportError:
    IS_COMPILED = False

__all__ = [
    "IS_COMPILED",
    "MAX_SQUARES",
    "decode_list",
    "decode_list_in_python",
    "decode_row",
    "decode_row_in_python",
]

MAX_SQUARES: Final = 1e199
"""Largest sum of squares of a row; beyond it the other decoders look at each number."""
_MAX_NORM: Final = sqrt(MAX_SQUARES)


class _Row(msgspec.Struct, forbid_unknown_fields=True):
    x: list[float]


_ROW: Final = msgspec.json.Decoder(_Row).decode
_LIST: Final = msgspec.json.Decoder(list[float]).decode


def decode_row_in_python(body: Body, n: int) -> bytes | None:
    """The row of a body ``{"x": [0.1, 2, …]}`` with ``n`` numbers, packed."""
    if bytes(body).count(b'"') != 2:
        # The key may be there twice.
        return None
    try:
        return _packed(_ROW(body).x, n)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def decode_list_in_python(text: Body, start: int, n: int) -> tuple[bytes, int] | None:
    """The list of ``n`` numbers that begins at ``start``, packed, and its end."""
    end = bytes(text).find(b"]", start) + 1
    if not 0 <= start < end or text[start : start + 1] != b"[":
        return None
    try:
        packed = _packed(_LIST(text[start:end]), n)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return None if packed is None else (packed, end)


def _packed(numbers: list[float], n: int) -> bytes | None:
    if not 0 < len(numbers) == n or hypot(*numbers) >= _MAX_NORM:
        return None
    return struct.pack(f"{n}d", *numbers)


if not IS_COMPILED:
    decode_row, decode_list = decode_row_in_python, decode_list_in_python
