"""Rows whose values have the names of their columns: ``{"age": 39, "hours": 40}``."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import compress
from typing import Any, Final

import msgspec

from app.domain.errors import InputFault, TooLarge
from app.serving.query.row_errors import value_fault_of
from app.serving.record_faults import check_once
from core.data.validation import MAX_FAULTS, MAX_MAGNITUDE

_MAX_QUOTES: Final = 50_000
"""Quotation marks in a row, which bound its names: as values in memory they take many times their bytes."""
_SPARSE: Final = ("indices", "values")
_OBJECT: Final = msgspec.json.Decoder(dict[str, Any])
_NUMBERS: Final = frozenset({int, float})


def read_named(raw: bytes, field: str, i: int | None = None) -> dict[str, Any] | None:
    """The values of a row by name; None if it is a list or a sparse row. field, i: of the row, for errors.

    Raises DecodeError, TooLarge, and InvalidRequest for a name that occurs twice.
    """
    if raw[:1] != b"{":
        return None
    quotes = raw.count(b'"')
    if quotes > _MAX_QUOTES:
        raise TooLarge(f"{field} has a row with far too many names.", code="too_many_parts")
    row = _OBJECT.decode(raw)
    if any(isinstance(row.get(name), list) for name in _SPARSE):
        return None
    if quotes != 2 * len(row):
        # A text among the values, or a name that occurs twice, of which the decoder keeps the last value.
        check_once(raw, field, i)
    return row


def number_faults(values: Sequence[Any], names: Sequence[str], field: str, i: int) -> list[InputFault]:
    """The first faults of the values of row ``i``, which must be numbers; their names are beside them."""
    is_wrong = [
        type(value) not in _NUMBERS or not -MAX_MAGNITUDE <= value <= MAX_MAGNITUDE for value in values
    ]
    if not any(is_wrong):
        return []
    columns = list(compress(range(len(values)), is_wrong))[:MAX_FAULTS]
    return [value_fault_of(values[column], field, i, column, names[column]) for column in columns]
