"""The requests that a server without API keys answers: of programs and pages of this machine only.

Loopback does not mean that the caller is on this machine: a reverse proxy forwards requests of the network to
it, and a web page of any site can send requests to it (cross-site requests, DNS rebinding). Pages show in the
headers, which a browser does not let a page choose. Most proxies do, too: they speak HTTP/1.0, as nginx did
by default for many years, or add headers. So only headers are permitted that clients send. A proxy that
speaks HTTP/1.1, sends a Host of loopback and adds nothing looks like a program of this machine.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Final

from app.domain.errors import NotAuthorised

_LOOPBACK: Final = re.compile(
    rb"(?:localhost|127(?:\.(?:25[0-5]|2[0-4]\d|1?\d?\d)){3}|\[::1\])(?::\d{1,5})?", re.IGNORECASE
)
"""A Host header that names this machine: it cannot be a name that someone else's DNS server resolves."""
_OF_PAGES: Final = frozenset({b"origin", b"sec-fetch-site"})
"""Headers whose values are looked at."""
_PERMITTED: Final = re.compile(
    rb"accept(-\w+)*|access-control-request-[\w-]+|authorization|cache-control|connection"
    rb"|content-(encoding|language|length|type)|cookie|date|dnt|expect|from|host|http2-settings|if-[\w-]+"
    rb"|keep-alive|last-event-id|origin|pragma|priority|purpose|range|referer|save-data|sec-[\w-]+|te|trailer"
    rb"|transfer-encoding|upgrade(-insecure-requests)?|user-agent"
    # Of this API and of its clients.
    rb"|(x-)?idempotency-key|inference-[\w-]+|x-(api-key|request-id|sample|correlation-id|requested-with|csrf-token)"
    rb"|x-tensor-[\w-]+|x-stms-[\w-]+|x-prometheus-[\w-]+|triton-[\w-]+|postman-token"
    # Of libraries that trace requests.
    rb"|traceparent|tracestate|baggage|b3|x-b3-\w+|uber-trace-id|sentry-trace|request-id|x-datadog-[\w-]+"
)
"""Names of the headers that clients send."""
_SAME_SITE: Final = (b"same-origin", b"none")
"""Values of Sec-Fetch-Site of a page of this server, and of an address that the user has entered."""


def check_local(headers: Mapping[bytes, bytes], version: str = "1.1") -> None:
    """Raise NotAuthorised for a request that comes from elsewhere, or may do so.

    headers: by name. version: of HTTP.
    """
    if version == "1.0":
        raise _refusal("a proxy may have forwarded it, because it is of HTTP/1.0")
    # A warm query passes here: the names of its headers, and its host, have been seen before.
    names = tuple(headers)
    if _is_plain(names) and _is_loopback(headers[b"host"]):
        return
    host = headers.get(b"host", b"")
    if not _is_loopback(host):
        raise _refusal("Host does not name this machine")
    if (foreign := _foreign(names)) is not None:
        raise _refusal(f"a proxy may have forwarded it, because it has the header {foreign}")
    if b"sec-fetch-site" in headers and headers[b"sec-fetch-site"] not in _SAME_SITE:
        raise _refusal("a page of another site has sent it")
    if b"origin" in headers and headers[b"origin"].lower() not in _origins(host):
        raise _refusal("its Origin is not this server")


@lru_cache(256)
def _is_plain(names: tuple[bytes, ...]) -> bool:
    """Whether a request with headers of these names has a Host, and none that must be looked at besides."""
    return b"host" in names and _OF_PAGES.isdisjoint(names) and _foreign(names) is None


def _foreign(names: tuple[bytes, ...]) -> str | None:
    """The first name of a header that clients do not send."""
    foreign = (name for name in names if _PERMITTED.fullmatch(name) is None)
    return next((name.decode("latin-1") for name in foreign), None)


@lru_cache(64)
def _is_loopback(host: bytes) -> bool:
    return _LOOPBACK.fullmatch(host) is not None


def _origins(host: bytes) -> tuple[bytes, bytes]:
    return b"http://" + host.lower(), b"https://" + host.lower()


def _refusal(reason: str) -> NotAuthorised:
    return NotAuthorised(
        f"This server runs without API keys and answers requests of this machine only; {reason}. "
        "Start it with API keys to answer others.",
        code="not_local",
    )
