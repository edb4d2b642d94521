"""Addresses of allowed servers: a name is resolved once, and every address is checked before one is used.

An origin that the operator has listed may be at a private address; one that only a ``*`` covers must be at
public addresses. Addresses of the link (169.254.0.0/16, where clouds keep their credentials), multicast and
unspecified ones are used only if the operator has listed them as numbers.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from ipaddress import IPv4Address, ip_address
from typing import Final, TypeAlias

from app.domain.origins import Address, AllowedServers, Origin, not_allowed
from app.remote.errors import RemoteFailed, RemoteUnavailable

Resolve: TypeAlias = Callable[[str, int], Sequence[str]]
"""From host and port to addresses. Raises OSError."""

_NAT64: Final = ip_address("64:ff9b::").packed[:12]


def addresses_of(origin: Origin, allowed: AllowedServers, resolve: Resolve | None = None) -> list[str]:
    """Addresses of an allowed origin; connections are made to these and no others.

    resolve: by default the system's resolver.
    Raises RemoteFailed if the origin or one of its addresses is not allowed, RemoteUnavailable if there are
    none.
    """
    if not allowed.allow(origin):
        raise RemoteFailed(not_allowed(origin), code="remote_not_allowed")
    try:
        found = list(dict.fromkeys((resolve or _resolve)(origin.host, origin.port)))
    except (OSError, UnicodeError) as error:
        raise RemoteUnavailable(f"the name {origin.host} cannot be resolved: {error}") from error
    for text in found:
        if not _may_be_at(origin, allowed, ip_address(text)):
            message = f"{origin.host} is at {text}, an address at which remote teachers are not allowed."
            raise RemoteFailed(message, code="remote_address")
    if not found:
        raise RemoteUnavailable(f"the name {origin.host} has no address")
    return found


def _may_be_at(origin: Origin, allowed: AllowedServers, address: Address) -> bool:
    inner = _unwrapped(address)
    if origin not in allowed.listed:
        return inner.is_global and not inner.is_multicast
    return origin.number is not None or not (
        inner.is_link_local or inner.is_multicast or inner.is_unspecified
    )


def _resolve(host: str, port: int) -> list[str]:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    # A scope (fe80::1%eth0) says no more than the address.
    return [str(entry[4][0]).partition("%")[0] for entry in found]


def _unwrapped(address: Address) -> Address:
    """The IPv4 address that an IPv6 address stands for, where it stands for one; otherwise the address."""
    if isinstance(address, IPv4Address):
        return address
    teredo = address.teredo
    inner = address.ipv4_mapped or address.sixtofour or (teredo[1] if teredo else None)
    if inner is None and address.packed[:12] in (_NAT64, bytes(12)) and address.packed[12:] > b"\0\0\0\1":
        inner = IPv4Address(address.packed[12:])
    return address if inner is None else inner
