"""What single cells mean: one rule for the cells of files, the values of records and the columns of frames.

A category is known by a key, so that 3, 3.0 and "3" are one value, whichever program wrote it.
"""

from __future__ import annotations

import re
import unicodedata
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Final

from core.data.validation import MAX_MAGNITUDE

NULLS: Final = frozenset({"", "NA", "N/A", "#N/A", "NaN", "nan", "null", "NULL", "?"})
"""Cells that stand for a missing value, without the blanks around them."""
GAP_WORDS: Final = frozenset(
    {"-", "--", "---", "–", "—", ".", "..", "...", "…", "*", "**", "/", "?", "??", "???", "\\n"}
    | {
        "none",
        "nil",
        "na",
        "n/a",
        "n.a",
        "n.a.",
        "nd",
        "n.d.",
        "n/d",
        "s/d",
        "n/k",
        "k.a",
        "k.a.",
        "s.o.",
        "n.v.t.",
    }
    | {"#n/a", "#na", "#value!", "#ref!", "#div/0!", "#num!", "#null!", "#name?"}
    | {"nan", "-nan", "<na>", "nat", "1.#ind", "-1.#ind", "1.#qnan", "null", "(null)", "undefined"}
    | {"missing", "unknown", "unspecified", "not known", "not available", "not applicable", "no data"}
    | {"empty", "blank", "tbd", "tba", "keine angabe"}
    | {"0000-00-00", "0000-00-00 00:00:00", "00/00/0000", "00.00.0000"}
)
"""Cells that stand for a missing value in columns of numbers or dates, in lower case."""
PLAIN_NUMBER: Final = re.compile(r"[+-]?(?:0|[1-9][0-9]{0,14})(?:\.[0-9]{0,15})?")
"""Numbers as programs write labels and categories. Digits with leading zeros or an exponent are a text."""
TRUTH: Final = {"true": True, "false": False}
"""Texts of truth values, in lower case."""

_NUMBER: Final = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,4})?")
_LEADING_ZERO: Final = re.compile(r"[+-]?0[0-9]")
_DATE: Final = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}"
    r"(?:[T ][0-9]{2}:[0-9]{2}(?::[0-9]{2}(?:\.[0-9]{1,9})?)?(?:Z|[+-][0-9]{2}(?::?[0-9]{2})?)?)?"
)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_EXACT_WHOLE: Final = 2.0**53


def number_of(text: str) -> float | None:
    """The number that a cell without blanks around it holds, of usable size; None if it holds none.

    Digits that begin with a needless zero are a code, such as that of a postal district, and no number.
    """
    if not _NUMBER.fullmatch(text) or _LEADING_ZERO.match(text):
        return None
    value = float(text)
    return value if abs(value) <= MAX_MAGNITUDE else None


def category_key(value: str | float | bool) -> str:
    """The key of a category's value.

    Plain numbers are their digits, whole ones without a point, and others lose the zeros at their end; true
    and false are in lower case; other texts are in NFC without the blanks around them.
    """
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        whole = value == value // 1 and abs(value) < _EXACT_WHOLE
        text = str(int(value)) if whole else repr(value)
    else:
        text = value.strip()
        if not text.isascii():
            return unicodedata.normalize("NFC", text)
        if text.lower() in TRUTH:
            return text.lower()
    return plain_digits(text) if PLAIN_NUMBER.fullmatch(text) else text


def plain_digits(text: str) -> str:
    """A plain number as its digits."""
    whole, _, decimals = text.removeprefix("+").partition(".")
    decimals = decimals.rstrip("0")
    name = f"{whole}.{decimals}" if decimals else whole
    return "0" if name == "-0" else name


def microseconds_of(text: str, pattern: str | None = None, zone: tzinfo = UTC) -> int | None:
    """The moment that a cell holds, in microseconds since 1970; None if it holds none.

    Dates of ISO 8601 are read: a day, or a day and a time, with or without an offset. pattern: of others, as
    `datetime.strptime` has it; all must have it if it begins with a year and a hyphen. zone: that of times
    without an offset. A day begins at its midnight.
    """
    try:
        if (pattern is None or not pattern.startswith("%Y-")) and _DATE.fullmatch(text):
            moment = datetime.fromisoformat(text)
        elif pattern is not None:
            moment = datetime.strptime(text, pattern)
        else:
            return None
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=zone)
        return (moment - _EPOCH) // _MICROSECOND
    except (ValueError, OverflowError):
        return None
