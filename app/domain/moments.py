"""Parses and formats moments: RFC 3339, dates, and durations before now."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

MAX_SECONDS: Final = 253402300799.0
"""The end of the year 9999 in seconds since the epoch; moments before the epoch count as the epoch."""
_MAX_LENGTH: Final = 40
_MOMENT: Final = re.compile(
    r"(\d{4}-\d\d-\d\d)(?:[T ](\d\d:\d\d)(?::(\d\d)(\.\d{1,9})?)?(Z|[+-]\d\d:?\d\d)?)?",
    re.ASCII | re.IGNORECASE,
)
_AGO: Final = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)([smhdw])", re.ASCII)
_UNITS: Final = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 7 * 86400.0}


class NotAMoment(ValueError):
    """A text is no moment; says why, without the text."""


@dataclass(frozen=True, slots=True)
class Moment:
    """seconds: since the epoch. taken_as: a moment without a time zone, in the zone of this machine."""

    seconds: float
    taken_as: datetime | None = None


def timestamp(seconds: float) -> str:
    """Seconds since the epoch as RFC 3339, UTC, to the millisecond."""
    text = datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")
    return text.replace("+00:00", "Z")


def moment_of(text: str, now: float) -> Moment:
    """The moment that a person wrote: with a time zone, in this machine's zone, or a duration before now.

    text: such as 2026-01-31 (its midnight), "2026-01-31 09:00", 2026-01-31T09:00:00Z, …+09:00, 30m, 2h, 7d.
    Raises NotAMoment.
    """
    if ago := _AGO.fullmatch(text.strip()):
        return Moment(_bounded(now - float(ago[1]) * _UNITS[ago[2]]))
    written = _written(text)
    if written is None:
        raise NotAMoment(
            "Write a date (2026-01-31), a time (2026-01-31T09:00, 2026-01-31T09:00:00Z, "
            "2026-01-31T09:00:00+09:00), or a duration before now (30m, 2h, 7d)"
        )
    if written.tzinfo is not None:
        return Moment(_bounded(written.timestamp()))
    try:
        local = written.astimezone()
    except (OverflowError, OSError, ValueError) as error:
        raise NotAMoment("No time zone has this year; write Z after the time") from error
    return Moment(_bounded(local.timestamp()), local)


def seconds_of(text: str) -> float:
    """Seconds since the epoch of RFC 3339 text.

    Raises NotAMoment, also for a time without a time zone: the zones of client and server may differ.
    """
    # An unescaped + in an address arrives as a space.
    written = _written(re.sub(r"(:\d\d(?:\.\d{1,9})?) (\d\d:\d\d)$", r"\1+\2", text))
    if written is None:
        raise NotAMoment("Write seconds since the epoch, or a time such as 2026-01-31T09:00:00Z")
    if written.tzinfo is None:
        raise NotAMoment("A time needs its time zone: Z or an offset, as in 2026-01-31T09:00:00+09:00")
    return _bounded(written.timestamp())


def _written(text: str) -> datetime | None:
    """A date or time, with its zone if it has one; None for other text. Raises NotAMoment."""
    parts = _MOMENT.fullmatch(text.strip()) if len(text) <= _MAX_LENGTH else None
    if parts is None:
        return None
    day, minute, second, fraction, zone = parts.groups(default="")
    # A leap second has no number of its own in Unix time.
    leap = timedelta(seconds=1) if second == "60" else timedelta()
    try:
        clock = f"{minute or '00:00'}:{'59' if leap else second or '00'}{fraction}"
        return datetime.fromisoformat(f"{day}T{clock}{zone.upper()}") + leap
    except (ValueError, OverflowError) as error:
        raise NotAMoment("There is no such day or time") from error


def _bounded(seconds: float) -> float:
    return min(max(seconds, 0.0), MAX_SECONDS)
