"""Addresses of allowed servers: a name is resolved once, and every address is checked before one is used.

An origin that the operator has listed may be at a private address; one that only a ``*`` covers must be at
public addresses. Addresses of the link (169.254.0.0/16), those at which clouds keep their credentials,
multicast and unspecified ones are used only if the operator has listed them as numbers.

Which addresses are public is said here, because the table of the standard library differs by its version.
"""

from __future__ import annotations

import logging
import queue
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Final, TypeAlias

from app.domain.origins import Address, AllowedServers, Origin, not_allowed
from app.remote.errors import RemoteFailed, RemoteUnavailable

logger = logging.getLogger(__name__)

Resolve: TypeAlias = Callable[[str, int], Sequence[str]]
"""From host and port to addresses. Raises OSError."""

_RESOLVE_SECONDS: Final = 10.0
_NEVER: Final = tuple(
    map(
        ip_network,
        (
            *("0.0.0.0/8", "::/128"),
            *("169.254.0.0/16", "fe80::/10"),
            *("224.0.0.0/4", "ff00::/8"),
            "255.255.255.255/32",
            # Metadata of Alibaba Cloud, Oracle Cloud, Azure, AWS and Google Cloud.
            *("100.100.100.200/32", "192.0.0.192/32", "168.63.129.16/32"),
            *("fd00:ec2::254/128", "fd20:ce::254/128"),
        ),
    )
)
"""Networks in which no name may be: this host, the link, multicast, and services of clouds."""
_NOT_PUBLIC: Final = (
    *_NEVER,
    *map(
        ip_network,
        (
            # Private, shared by a provider, and loopback.
            *("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "127.0.0.0/8"),
            # Protocols, documentation, benchmarks, relays of 6to4, reserved.
            *("192.0.0.0/24", "192.0.2.0/24", "198.51.100.0/24", "203.0.113.0/24"),
            *("198.18.0.0/15", "192.88.99.0/24", "240.0.0.0/4"),
            # Protocols (with Teredo and benchmarks), documentation, 6to4.
            *("2001::/23", "2001:db8::/32", "3fff::/20", "2002::/16"),
        ),
    ),
)
_GLOBAL_UNICAST: Final = ip_network("2000::/3")
"""All public IPv6 addresses are in it; loopback, private, site-local and all the rest are not."""
_MAPPED: Final = bytes(10) + b"\xff\xff"
_TRANSLATED: Final = bytes(8) + b"\xff\xff" + bytes(2)
_NAT64: Final = ip_address("64:ff9b::").packed[:12]
_LOCAL_NAT64: Final = ip_address("64:ff9b:1::").packed[:6]
_ISATAP: Final = (bytes.fromhex("00005efe"), bytes.fromhex("02005efe"))


def addresses_of(origin: Origin, allowed: AllowedServers, resolve: Resolve | None = None) -> list[str]:
    """Addresses of an allowed origin; connections are made to these and no others.

    resolve: by default the system's resolver, within ten seconds.
    Raises RemoteFailed if the origin or one of its addresses is not allowed, RemoteUnavailable if there are
    none. The error does not tell the address, which may be known inside of the operator's network only.
    """
    if not allowed.allow(origin):
        raise RemoteFailed(not_allowed(origin), code="remote_not_allowed")
    try:
        found = list(dict.fromkeys((resolve or _resolve)(origin.host, origin.port)))
    except (OSError, UnicodeError) as error:
        raise RemoteUnavailable(f"the name {origin.host} cannot be resolved: {error}") from error
    for text in found:
        if not _may_be_at(origin, allowed, ip_address(text)):
            logger.warning("%s is at %s, where no server is asked", origin.host, text)
            message = f"{origin.host} is at an address at which no server is asked."
            raise RemoteFailed(message, code="remote_address")
    if not found:
        raise RemoteUnavailable(f"the name {origin.host} has no address")
    return found


def _may_be_at(origin: Origin, allowed: AllowedServers, address: Address) -> bool:
    if origin not in allowed.listed:
        return all(map(_is_public, _destinations(address)))
    if origin.number is not None:
        return True
    return not any(inner in network for inner in _destinations(address) for network in _NEVER)


def _is_public(address: Address) -> bool:
    if isinstance(address, IPv6Address) and address not in _GLOBAL_UNICAST:
        return False
    return not any(address in network for network in _NOT_PUBLIC)


def _destinations(address: Address) -> Iterator[Address]:
    """Where packets to an address may arrive: at it, and at the IPv4 addresses that it contains."""
    packed = address.packed
    if isinstance(address, IPv4Address):
        yield address
    elif packed[:12] in (_MAPPED, _NAT64):
        # Only another way to write the IPv4 address, or the way to it from a network without IPv4.
        yield IPv4Address(packed[12:])
    else:
        yield address
        yield from map(IPv4Address, _embedded(packed))


def _embedded(packed: bytes) -> Iterator[bytes]:
    """IPv4 addresses within an IPv6 address, in the places that the conventions of tunnels give them."""
    last = packed[12:]
    if packed[:12] == _TRANSLATED or (packed[:12] == bytes(12) and last > b"\0\0\0\1"):
        yield last
    elif packed[:6] == _LOCAL_NAT64:
        # By the length of the network's prefix (RFC 6052), which is not known here; 0 where it is another.
        prefixed = (packed[6:8] + packed[9:11], packed[7:8] + packed[9:12], packed[9:13], last)
        yield from (inner for inner in prefixed if inner != bytes(4))
    elif packed[:2] == b"\x20\x02":
        yield packed[2:6]
    elif packed[:4] == b"\x20\x01\0\0":
        # Teredo: the server, and the client with all bits inverted.
        yield packed[4:8]
        yield bytes(byte ^ 0xFF for byte in last)
    if packed[8:12] in _ISATAP:
        yield last


def _resolve(host: str, port: int) -> list[str]:
    """Raises OSError, also if there is no answer in time: the system's resolver has no time limit."""
    outcome: queue.SimpleQueue[list[str] | OSError | UnicodeError] = queue.SimpleQueue()

    def look_up() -> None:
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            outcome.put(error)
        else:
            # A scope (fe80::1%eth0) says no more than the address.
            outcome.put([str(entry[4][0]).partition("%")[0] for entry in found])

    # A daemon: the process may end although the resolver never answers.
    threading.Thread(target=look_up, name="resolve", daemon=True).start()
    try:
        answer = outcome.get(timeout=_RESOLVE_SECONDS)
    except queue.Empty:
        raise TimeoutError(f"no answer within {_RESOLVE_SECONDS:g} s") from None
    if isinstance(answer, Exception):
        raise answer
    return answer
