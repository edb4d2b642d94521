"""Origins of other servers: which ones jobs may ask for scores, and whose pages may call this server.

``STMS_REMOTE_TEACHERS`` and ``STMS_CORS_ORIGINS`` list origins, separated by commas:
``https://triton.example.com:8000``, or with ``*`` as the first label of the host, ``https://*.models.example.com``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Final, TypeAlias
from urllib.parse import urlsplit

Address: TypeAlias = IPv4Address | IPv6Address

_PORTS: Final = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class Origin:
    """Scheme, host in lower case without brackets, and port."""

    scheme: str
    host: str
    port: int

    @classmethod
    def of(cls, text: str) -> Origin:
        """From ``https://host:port``. Raises ValueError for anything else, such as a path or a password."""
        parts = urlsplit(text.strip())
        if parts.scheme not in _PORTS or not parts.hostname:
            raise ValueError(f"{text!r:.300} is not https://host or http://host, with or without :port")
        if parts.path not in {"", "/"} or parts.query or parts.fragment or "@" in parts.netloc:
            raise ValueError(f"{text!r:.300} has more than scheme, host and port")
        port = _PORTS[parts.scheme] if parts.port is None else parts.port
        if port == 0:
            raise ValueError(f"{text!r:.300} has no port")
        return cls(parts.scheme, parts.hostname.removesuffix("."), port)

    @property
    def number(self) -> Address | None:
        """The address if the host is one, not a name."""
        try:
            return ip_address(self.host)
        except ValueError:
            return None

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}" + ("" if self.port == _PORTS[self.scheme] else f":{self.port}")


@dataclass(frozen=True, slots=True)
class AllowedServers:
    """Origins of a setting. listed: by name or number. below: any host below this domain."""

    listed: frozenset[Origin] = frozenset()
    below: frozenset[Origin] = frozenset()

    @classmethod
    def of(cls, text: str) -> AllowedServers:
        """From the setting. Raises ValueError."""
        listed, below = set(), set()
        for part in filter(None, (part.strip() for part in text.split(","))):
            scheme, sign, rest = part.partition("://")
            if rest.startswith("*."):
                below.add(Origin.of(scheme + sign + rest.removeprefix("*.")))
            elif "*" in part:
                raise ValueError(f"{part!r:.300}: an asterisk is the first label only, https://*.example.com")
            else:
                listed.add(Origin.of(part))
        return cls(frozenset(listed), frozenset(below))

    def allow(self, origin: Origin) -> bool:
        """Whether the origin is listed, or is below a listed domain with the same scheme and port."""
        return origin in self.listed or any(
            (origin.scheme, origin.port) == (domain.scheme, domain.port)
            and origin.host.endswith(f".{domain.host}")
            for domain in self.below
        )


def allowed_pages(text: str) -> AllowedServers:
    """The origins whose pages may ask this server, listed as ``STMS_CORS_ORIGINS``. Raises ValueError."""
    allowed = AllowedServers.of(text)
    for origin in (*allowed.listed, *allowed.below):
        if not origin.host.isascii():
            raise ValueError(f"{str(origin)!r:.300}: write the host as browsers send it, xn--…")
    return allowed


def not_allowed(origin: Origin) -> str:
    """The message about an origin that is not allowed."""
    return (
        f"This installation does not allow remote teachers at {origin}. An operator can list the address in"
        " STMS_REMOTE_TEACHERS."
    )


def token_of(tokens: Mapping[str, str], origin: Origin) -> str | None:
    """The bearer token for an origin, from a mapping of origins to tokens."""
    return next((token for text, token in tokens.items() if Origin.of(text) == origin), None)
