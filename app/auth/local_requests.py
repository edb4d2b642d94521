"""The requests that a server without API keys answers: of programs and pages of this machine only.

Loopback does not mean that the caller is on this machine: a reverse proxy forwards requests of the network to
it, and a web page of any site can send requests to it (cross-site requests, DNS rebinding). Both show in the
headers, which a browser does not let a page choose.
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
_FORWARDED: Final = (b"forwarded", b"via", b"x-real-ip")
_LOOKED_AT: Final = (*_FORWARDED, b"origin", b"sec-fetch-site")
_FORWARDED_PREFIX: Final = b"x-forwarded-"
_SAME_SITE: Final = (b"same-origin", b"none")
"""Values of Sec-Fetch-Site of a page of this server, and of an address that the user has entered."""


def check_local(headers: Mapping[bytes, bytes]) -> None:
    """Raise NotAuthorised for a request that comes from elsewhere, or may do so. headers: by name."""
    # A warm query passes here: the names of its headers, and its host, have been seen before.
    if _is_plain(tuple(headers)) and _is_loopback(headers[b"host"]):
        return
    host = headers.get(b"host", b"")
    if not _is_loopback(host):
        raise _refusal("Host does not name this machine")
    if any(name in _FORWARDED or name.startswith(_FORWARDED_PREFIX) for name in headers):
        raise _refusal("a header shows that a proxy has forwarded it")
    if b"sec-fetch-site" in headers and headers[b"sec-fetch-site"] not in _SAME_SITE:
        raise _refusal("a page of another site has sent it")
    if b"origin" in headers and headers[b"origin"].lower() not in _origins(host):
        raise _refusal("its Origin is not this server")


@lru_cache(256)
def _is_plain(names: tuple[bytes, ...]) -> bool:
    """Whether a request with headers of these names has a Host, and none that must be looked at besides."""
    return b"host" in names and not any(
        name in _LOOKED_AT or name.startswith(_FORWARDED_PREFIX) for name in names
    )


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
