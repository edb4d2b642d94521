"""Numbers, times and names as pages show them: the filters of the templates."""

from __future__ import annotations

import json
import math
import time
from datetime import UTC, datetime
from typing import Any, Final

from app.domain.event_text import test_part_text, threshold_text
from app.domain.shown_figures import NOTHING, duration, percent, share, size

_STATES: Final = {
    "succeeded": "good",
    "partially_succeeded": "warn",
    "failed": "bad",
    "running": "busy",
    "queued": "idle",
    "pending": "idle",
    "cancelling": "warn",
    "cancelled": "idle",
}


def exact_time(seconds: float) -> str:
    """Seconds since the epoch as RFC 3339, UTC, to the second."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def readable_time(seconds: float) -> str:
    """Seconds since the epoch for people, UTC."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%d %b %Y, %H:%M:%S UTC")


def relative_time(seconds: float) -> str:
    """How long ago a time was, or how far ahead it is, in whole minutes, hours or days."""
    distance = time.time() - seconds
    if abs(distance) < 60:
        return "just now" if distance >= 0 else "in less than a minute"
    text = duration(60 * round(abs(distance) / 60))
    return f"{text} ago" if distance > 0 else f"in {text}"


def latency(seconds: float | None) -> str:
    """A short time in milliseconds."""
    return NOTHING if seconds is None else f"{1000 * seconds:.2f} ms"


def number(value: float | None, digits: int = 3) -> str:
    """A number with ``digits`` decimal places, or in powers of ten if it is very small or large."""
    if value is None or not math.isfinite(value):
        return NOTHING if value is None else str(value)
    if isinstance(value, int) or (float(value).is_integer() and abs(value) < 1e15):
        return f"{int(value):,}".replace(",", "\u202f")
    if 10.0**-digits <= abs(value) < 1e6:
        return f"{value:.{digits}f}"
    return f"{value:.2e}"


def rate(value: float | None) -> str:
    """A number a second with one decimal place."""
    return NOTHING if value is None else f"{value:,.1f}".replace(",", "\u202f")


def significant(value: float | None) -> str:
    """A number with at most six significant digits."""
    return NOTHING if value is None else f"{value:.6g}"


def words(value: str) -> str:
    """A name of the API as words: ``partially_succeeded`` is "partially succeeded"."""
    return str(value).replace("_", " ")


def tone(state: str) -> str:
    """The tone of a state's badge, a class of the style sheet."""
    return _STATES.get(str(state), "idle")


def compact_json(value: Any) -> str:
    """JSON on one line, as it is in a request."""
    return json.dumps(value, ensure_ascii=False, default=str)


def brief_json(value: Any) -> str:
    """As `compact_json`, with at most six significant digits of each number."""
    return compact_json(_brief(value))


def _brief(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _brief(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_brief(one) for one in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value


def pretty_json(value: Any) -> str:
    """JSON on several lines."""
    return json.dumps(value, ensure_ascii=False, indent=2, default=str)


FILTERS: Final = {
    "exact_time": exact_time,
    "readable_time": readable_time,
    "relative_time": relative_time,
    "duration": duration,
    "latency": latency,
    "number": number,
    "rate": rate,
    "significant": significant,
    "percent": percent,
    "share": share,
    "test_part": test_part_text,
    "threshold_rule": threshold_text,
    "size": size,
    "words": words,
    "tone": tone,
    "compact_json": compact_json,
    "brief_json": brief_json,
    "pretty_json": pretty_json,
}
