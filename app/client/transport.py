"""What both clients' connections have in common."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

import httpx

TIMEOUT = httpx.Timeout(60, connect=10)
STREAM_TIMEOUT = httpx.Timeout(60, connect=10, read=None)
UPLOAD_TIMEOUT = httpx.Timeout(60, connect=10, read=3600)
"""A file is checked and stored before its answer comes: gigabytes take minutes."""
LIMITS = httpx.Limits(max_connections=100, max_keepalive_connections=20, keepalive_expiry=30)
"""Idle connections are given up well before the server does it (75 s): none is closed under a request."""

PIECE_BYTES = 1 << 18
"""A file goes out in pieces of this size."""


def options(address: str, api_key: str | None, timeout: float | None, user_agent: str) -> dict[str, Any]:
    """Arguments of httpx's clients. Raises ValueError for what is no address of a server."""
    try:
        parts = urlsplit(address)
        is_address = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
        httpx.URL(address)
    except (httpx.InvalidURL, ValueError) as error:
        raise ValueError(f"{address!r} is not an address of a server: {error}.") from error
    if not is_address:
        raise ValueError(f"{address!r} is not an address of a server: it begins with http:// or https://.")
    return {
        "base_url": address,
        "headers": {"User-Agent": user_agent} | ({"Authorization": f"Bearer {api_key}"} if api_key else {}),
        "timeout": TIMEOUT if timeout is None else httpx.Timeout(timeout, connect=min(timeout, 10)),
        "limits": LIMITS,
        # A proxy from the environment cannot reach this machine's loopback.
        "trust_env": parts.hostname not in {"127.0.0.1", "::1", "localhost"},
    }
