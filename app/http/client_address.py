"""The address of a client, also behind reverse proxies."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Final

_CACHE_SIZE: Final = 4096


class TrustedProxies:
    """The reverse proxies whose X-Forwarded-For is believed.

    networks: addresses or networks, such as ``10.0.0.0/8``. Raises ValueError for anything else.
    """

    def __init__(self, networks: Iterable[str] = ()) -> None:
        self._networks = [ipaddress.ip_network(network.strip(), strict=False) for network in networks]
        self._is_trusted = lru_cache(_CACHE_SIZE)(self._is_in_a_network)

    def __contains__(self, address: str) -> bool:
        return bool(self._networks) and self._is_trusted(address)

    def address_of(self, client: Sequence[object] | None, headers: Iterable[tuple[bytes, bytes]]) -> str:
        """The address that a request comes from; empty if it is unknown.

        client: (host, port) of the connection. Behind a trusted proxy this is the newest address in
        X-Forwarded-For that is not a trusted proxy itself: each proxy appends the address of its own client,
        and a client can forge all addresses before it.
        """
        address = str(client[0]) if client else ""
        if address not in self:
            return address
        forwarded = b",".join(value for name, value in headers if name == b"x-forwarded-for")
        for part in reversed(forwarded.decode("latin-1").split(",")):
            previous = _parse_address(part)
            if previous is None:
                return address
            address = previous
            if address not in self:
                return address
        return address

    def _is_in_a_network(self, address: str) -> bool:
        try:
            parsed = ipaddress.ip_address(address.partition("%")[0])
        except ValueError:
            return False
        mapped = getattr(parsed, "ipv4_mapped", None)
        return any((mapped or parsed) in network for network in self._networks)


def is_loopback(address: str) -> bool:
    """Whether the address of a client is one of this machine's own."""
    return address == "::1" or address.startswith(("127.", "::ffff:127."))


def network_of(address: str) -> str:
    """The network that counts as one client: an IPv4 address, or the /64 network of an IPv6 address."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(parsed, ipaddress.IPv6Address):
        if parsed.ipv4_mapped is not None:
            return str(parsed.ipv4_mapped)
        return str(ipaddress.IPv6Network((parsed, 64), strict=False).network_address)
    return str(parsed)


def socket_name(host: str, port: int) -> str:
    """The name of the Unix socket by which a client is relayed to a server that sees only this name."""
    return f"{host}_{port}"


def client_of_socket(path: str) -> tuple[str, int] | None:
    """(host, port) of the client that is relayed from the Unix socket at a path; None without one."""
    host, _, port = path.rpartition("/")[2].rpartition("_")
    return (host, int(port)) if port.isdigit() else None


def _parse_address(text: str) -> str | None:
    """An address as proxies write it, with or without a port; None for anything else."""
    text = text.strip()
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        return str(ipaddress.ip_address(text))
    except ValueError:
        return None
