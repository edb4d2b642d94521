"""Names of the fields that a validation refuses, as the sender of the value knows them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

_MISSING: Final = "missing"
UNKNOWN_FIELD: Final = "extra_forbidden"
"""The type of pydantic's error about an unknown field."""


def sent_field(location: Sequence[str | int], kind: str, value: Any) -> tuple[str | int, ...]:
    """A location of a validation error in ``value`` without the names of the alternatives of a union.

    If a value may have one of several forms, pydantic puts the name of the form into the location:
    ``automatic.budget.seconds`` for the field ``automatic.seconds``. kind: type of the error; the name of a
    missing field is kept although the value does not contain it.
    """
    kept = list[str | int]()
    for number, part in enumerate(location, 1):
        is_last = number == len(location)
        known = value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
        if part in known:
            value = value[part]
        elif not (is_last and kind == _MISSING):
            continue
        kept.append(part)
    return tuple(kept)
