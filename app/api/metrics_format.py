"""Which format of metrics a scraper wants, by its Accept header."""

from __future__ import annotations

from typing import Final

from app.http.headers import parameter, weighted

TEXT: Final = "text/plain; version=0.0.4; charset=utf-8"
OPEN_METRICS: Final = "application/openmetrics-text; version=1.0.0; charset=utf-8"

_OPEN_METRICS: Final = b"application/openmetrics-text"
_VERSIONS: Final = (b"", b"1.0.0")
_TEXTS: Final = (b"text/plain", b"text/*", b"*/*")
_MAX_ACCEPT: Final = 1000


def prefers_open_metrics(accept: bytes) -> bool:
    """Whether an Accept header gives OpenMetrics 1.0.0 at least the weight of the text format.

    Without a format that is known, the text format is right: every scraper reads it.
    """
    if _OPEN_METRICS not in accept.lower() or len(accept) > _MAX_ACCEPT:
        return False
    open_metrics = text = 0.0
    for part in accept.split(b","):
        [(name, weight)] = weighted(part)
        if name == _OPEN_METRICS and parameter(part, b"version") in _VERSIONS:
            open_metrics = max(open_metrics, weight)
        elif name in _TEXTS:
            text = max(text, weight)
    return open_metrics > 0.0 and open_metrics >= text
