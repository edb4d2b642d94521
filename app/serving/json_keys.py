"""Repeated keys in JSON, of which decoders keep the last value, and bodies that are not JSON."""

from __future__ import annotations

from collections import Counter
from functools import cache
from typing import Final

import msgspec

from app.domain.errors import InputFault, InvalidRequest

_QUICKLY_SEARCHED: Final = 4096
NO_JSON: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""Errors that decoders raise for a text that they cannot read."""


class _Key:
    """A key of JSON; each one that is decoded is another one."""

    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        self.text = text


def _new_key(_kind: type, text: str) -> _Key:
    return _Key(text)


_KEYS: Final = msgspec.json.Decoder(dict[_Key, msgspec.Raw], dec_hook=_new_key)


def count_keys(text: bytes) -> int:
    """Number of keys of a JSON object and of the objects in it; repeated keys count each time."""
    keys = _KEYS.decode(text)
    return len(keys) + sum(count_keys(bytes(value)) for value in keys.values() if bytes(value)[:1] == b"{")


def pairs_of(text: bytes) -> list[tuple[str, msgspec.Raw]]:
    """Keys and values of a JSON object in order, including repeated keys. Raises DecodeError."""
    return [(key.text, value) for key, value in _KEYS.decode(text).items()]


def may_repeat(text: bytes, names: tuple[str, ...]) -> bool:
    """Whether a JSON object with only these keys may repeat one of them, by a quick check.

    True for long texts, for which this check would take as long as reading them.
    """
    if len(text) > _QUICKLY_SEARCHED or b"\\" in text:
        return True
    return any(text.count(name) > 1 for name in _quoted(names))


@cache
def _quoted(names: tuple[str, ...]) -> tuple[bytes, ...]:
    return tuple(f'"{name}"'.encode() for name in names)


def check_once(text: bytes, field: str = "body", i: int | None = None) -> None:
    """Raise InvalidRequest if an object repeats a key.

    field, i: position of the object in the request. Decoders ignore invalid UTF-8 in unknown fields; here it
    is an error.
    """
    try:
        names = [name for name, _ in pairs_of(text)]
    except NO_JSON as error:
        raise malformed(error) from error
    double = next((name for name, times in Counter(names).items() if times > 1), None)
    if double is not None:
        fault = duplicate_key(double, field, i)
        raise InvalidRequest(fault.message, code=fault.code, faults=[fault])


def malformed(error: Exception) -> InvalidRequest:
    """The error of a body that is no JSON."""
    reason = "it is not UTF-8" if isinstance(error, UnicodeDecodeError) else error
    return InvalidRequest(f"The body cannot be read as JSON: {reason}.", code="malformed_json")


def constants_as_text(data: bytes) -> bytes:
    """``data`` with NaN and infinities in quotes; unchanged if it contains quoted ones already.

    JSON has neither, but clients write them (Python's ``json.dumps`` does). With quotes, the rest of a body
    can be decoded, and an error can name their row and column.
    """
    if (b"NaN" not in data and b"Infinity" not in data) or b'"NaN"' in data or b'Infinity"' in data:
        return data
    data = data.replace(b"NaN", b'"NaN"').replace(b"Infinity", b'"Infinity"')
    return data.replace(b'-"Infinity"', b'"-Infinity"')


def duplicate_key(name: str, field: str, i: int | None) -> InputFault:
    """The fault of an object in a request that has a key twice."""
    where, what = ("The body", "field") if field == "body" else (place_of(field, i), "key")
    of_key = name if field == "body" else f"{field}.{name}"
    message = f"{where} has the {what} {name!r:.100} twice."
    return InputFault(of_key[:200], "duplicate_key", message, i)


def place_of(field: str, i: int | None) -> str:
    """A part of a request at the beginning of a sentence. i: number of the row; None of the only one."""
    return field if i is None else f"{field}, row {i} (counted from 0),"
