"""How a query process tells the control process who has sent a request that it relays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from app.http.types import Application, Receive, Scope, Send

HEADER: Final = b"stms-peer"
OWN_HEADERS: Final = b"stms-"
"""Headers that begin so are never taken from a client."""


@dataclass(frozen=True, slots=True)
class Peer:
    """The two ends of a client's connection, and how it is used.

    client, server: (host, port). version: of HTTP. scheme: http, or https for TLS.
    """

    client: tuple[str, int]
    server: tuple[str, int]
    version: str
    scheme: str = "http"

    @classmethod
    def of(cls, scope: Scope) -> Peer:
        """The peer of a request."""
        client, server = scope.get("client") or ("", 0), scope.get("server") or ("", 0)
        version, scheme = scope.get("http_version", "1.1"), scope.get("scheme", "http")
        return cls((client[0], client[1]), (server[0], server[1] or 0), version, scheme)

    @classmethod
    def parse(cls, value: bytes) -> Peer:
        """Read what `encode` has written. Raises ValueError."""
        client, client_port, server, server_port, version, scheme = value.decode("ascii").split(" ")
        return cls((_host(client), int(client_port)), (_host(server), int(server_port)), version, scheme)

    def encode(self) -> bytes:
        """The value of the header."""
        ends = self.client[0] or "-", self.client[1], self.server[0] or "-", self.server[1]
        return " ".join(map(str, (*ends, self.version, self.scheme))).encode("ascii")


class RelayedRequests:
    """An application whose requests all come through query processes, over a socket that only they can reach.

    It sees the requests as their clients have sent them.
    """

    def __init__(self, application: Application) -> None:
        self._application = application

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            value = next((value for name, value in scope["headers"] if name == HEADER), None)
            if value is None:
                raise ValueError(f"A relayed request has no header {HEADER.decode()}.")
            peer = Peer.parse(value)
            headers = [header for header in scope["headers"] if header[0] != HEADER]
            scope = {
                **scope,
                "client": peer.client,
                "server": peer.server,
                "http_version": peer.version,
                "scheme": peer.scheme,
                "headers": headers,
            }
        await self._application(scope, receive, send)


def _host(text: str) -> str:
    return "" if text == "-" else text
