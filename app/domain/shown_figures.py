"""Formats figures for people, in the same way for the command line and the dashboard."""

from __future__ import annotations

import math
from typing import Final

NOTHING: Final = "–"
_UNITS: Final = ("B", "kB", "MB", "GB", "TB")


def share(value: float | None) -> str:
    """A score in [0, 1], such as F, always with four decimal places, so that columns line up."""
    return NOTHING if value is None else f"{value:.4f}"


def size(value: float | None) -> str:
    """A number of bytes."""
    if value is None:
        return NOTHING
    power = min(int(math.log(value, 1000)), len(_UNITS) - 1) if value >= 1 else 0
    return f"{value / 1000**power:.{0 if power == 0 else 1}f} {_UNITS[power]}"


def duration(seconds: float | None) -> str:
    """A length of time in its two largest units."""
    if seconds is None:
        return NOTHING
    if seconds < 1:
        return f"{1000 * seconds:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s".replace(".0 s", " s")
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s" if rest else f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes} min" if minutes else f"{hours} h"
    return f"{hours // 24} days"


def percent(value: float | None) -> str:
    """A share in [0, 1]."""
    return NOTHING if value is None else f"{100 * value:.1f} %"
