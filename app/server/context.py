"""State that all connections of one server process share."""

from __future__ import annotations

import fcntl
import select
import socket
import struct
import termios
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final, Protocol

from app.auth.authenticator import ANONYMOUS
from app.domain.entities import ApiKey
from app.http.client_address import TrustedProxies, is_loopback, network_of
from app.processes.scoreboard import Slot
from app.server.fast_path import FastPath
from app.server.progress import WaitingFor

_REASONS: Final = (
    "bad_request",
    "connections",
    "connections_evicted",
    "connections_of_address",
    "tls_handshake",
    *(item.value for item in WaitingFor),
)


_ACKNOWLEDGED: Final = struct.Struct("=120xQ")
"""The beginning of struct tcp_info, as far as tcpi_bytes_acked."""
_MOST_SKIPPED: Final = 64
"""Connections with a request in progress that are passed over in the search for one to close."""


class Connection(Protocol):
    """A client connection, as its server process sees it."""

    def caller(self) -> ApiKey | None:
        """The API key of the newest request; None if it had no valid key."""
        ...

    def is_being_answered(self) -> bool:
        """Whether the server owes the client a response, rather than waiting for the client."""
        ...

    def evict(self) -> None:
        """Close the connection immediately."""
        ...


@dataclass(slots=True)
class ServerContext:
    """Limits and counters of one server process.

    To make room for a new connection, a full server closes the oldest connection without a valid key, or of a
    key or tenant that exceeds its share: connections of clients without a key keep no caller out. Connections
    with a request in progress come last. max_per_key: share of a key; the caller of a server without keys may
    have all. A tenant has half if there are others. unproven: connections in the order of their arrival,
    without those for which `evict` has found a key. proven: keys of the latter.

    max_connections: further open connections get 429. max_per_address: the same for one
    address, without loopback and trusted proxies; 0 means no limit. connections: open ones by network of the
    client, see `network_of`. handshakes: those that still agree on keys for TLS, also by network, and "" for
    the exempt ones. refused: numbers of refused connections and requests by reason.
    """

    slot: Slot
    max_connections: int
    max_per_address: int = 0
    max_per_key: int = 0
    proxies: TrustedProxies = field(default_factory=TrustedProxies)
    fast_path: FastPath | None = None
    connections: Counter[str] = field(default_factory=Counter)
    handshakes: Counter[str] = field(default_factory=Counter)
    refused: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_REASONS, 0))
    unproven: dict[Connection, None] = field(default_factory=dict)
    proven: dict[Connection, ApiKey] = field(default_factory=dict)
    of_keys: Counter[str] = field(default_factory=Counter)
    of_tenants: Counter[str] = field(default_factory=Counter)

    def evict(self) -> bool:
        """Close a connection for the sake of a new one; returns False if all have keys within their share."""
        being_answered: list[Connection] = []
        for connection in list(self.unproven):
            if not connection.is_being_answered():
                if self._gives_way(connection):
                    return True
            elif len(being_answered) < _MOST_SKIPPED:
                being_answered.append(connection)
            else:
                break
        return any(map(self._gives_way, being_answered))

    def _gives_way(self, connection: Connection) -> bool:
        """Close a connection unless it has a key within its share; it is then never asked for again."""
        del self.unproven[connection]
        key = connection.caller()
        if key is None or self._has_its_share(key):
            self.refused["connections_evicted"] += 1
            connection.evict()
            return True
        self.proven[connection] = key
        self.of_keys[key.id] += 1
        self.of_tenants[key.tenant] += 1
        return False

    def _has_its_share(self, key: ApiKey) -> bool:
        """Whether the key, or its tenant, has as many connections as it may keep."""
        if key.id == ANONYMOUS.id:
            return self.of_keys[key.id] >= self.max_connections
        if self.of_keys[key.id] >= self.max_per_key:
            return True
        is_shared = self.fast_path is not None and self.fast_path.has_tenants()
        return is_shared and self.of_tenants[key.tenant] >= max(1, self.max_connections // 2)

    def add_connection(self, address: str) -> str | None:
        """Count a connection; returns its network for `release_network`, None if it is not limited."""
        if not self.max_per_address or self._is_exempt(address):
            return None
        network = network_of(address)
        self.connections[network] += 1
        return network

    @contextmanager
    def handshake(self, address: str) -> Iterator[bool]:
        """Count a connection while its client agrees on TLS keys; False if its network has too many."""
        network = "" if self._is_exempt(address) else network_of(address)
        self.handshakes[network] += 1
        try:
            most = self.max_per_address if network else 0
            is_permitted = not most or self.handshakes[network] <= most
            self.refused["connections_of_address"] += not is_permitted
            yield is_permitted
        finally:
            _subtract(self.handshakes, network)

    def remove_connection(self, connection: Connection, network: str | None) -> None:
        """Count the end of a connection."""
        self.unproven.pop(connection, None)
        key = self.proven.pop(connection, None)
        if key is not None:
            _subtract(self.of_keys, key.id)
            _subtract(self.of_tenants, key.tenant)
        self.slot.connections = max(0, self.slot.connections - 1)
        self.release_network(network)

    def release_network(self, network: str | None) -> None:
        """Subtract one from the count that `add_connection` returned."""
        if network is not None:
            _subtract(self.connections, network)

    def _is_exempt(self, address: str) -> bool:
        """Whether the limit per address does not apply: to proxies and to loopback."""
        return address in self.proxies or is_loopback(address)


def _subtract(counts: Counter[str], name: str) -> None:
    """Count one less of ``name``, which is removed with the last."""
    counts[name] -= 1
    if not counts[name]:
        del counts[name]


def has_input(connection: socket.socket | None) -> bool:
    """Whether bytes, or the end of the stream, can be read without waiting. None: it has been closed."""
    if connection is None:
        return False
    poll = select.poll()
    poll.register(connection.fileno(), select.POLLIN)
    return bool(poll.poll(0))


def unacknowledged_bytes(connection: socket.socket | None) -> int:
    """Bytes in the send queue of a socket (SIOCOUTQ of tcp(7)); None: the connection has ended."""
    if connection is None:
        return 0
    [size] = struct.unpack("i", fcntl.ioctl(connection.fileno(), termios.TIOCOUTQ, bytes(4)))
    return int(size)


def acknowledged_bytes(connection: socket.socket | None) -> int:
    """Bytes that the other end of a TCP connection has acknowledged so far (tcpi_bytes_acked of linux/tcp.h).

    None: the connection has ended.
    """
    if connection is None:
        return 0
    info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _ACKNOWLEDGED.size)
    [size] = _ACKNOWLEDGED.unpack(info)
    return int(size)
