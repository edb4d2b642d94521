"""Requests through a proxy that publishes the service below a prefix, such as ``https://host/stms/``.

The application knows its own paths only. Here the prefix is taken from the path of a request, if the proxy
has left it there, and put before every address of this server in the headers of the response. Pages put it
before their links by `prefix_of`.
"""

from __future__ import annotations

from typing import Final

from app.domain.path_prefix import path_prefix
from app.http.client_address import TrustedProxies
from app.http.types import Header, Message, Scope, Send

_KEY: Final = "stms.prefix"
_HEADER: Final = b"x-forwarded-prefix"


class PathPrefixes:
    """Knows the prefix of each request: the configured one, or else what a trusted proxy says.

    configured: empty for none.
    """

    def __init__(self, configured: str, proxies: TrustedProxies) -> None:
        self._configured, self._proxies = path_prefix(configured), proxies

    def applied(self, scope: Scope, send: Send) -> tuple[Scope, Send]:
        """The request with the path that the application knows, and what sends its response."""
        prefix = self._configured or self._forwarded(scope)
        if not prefix:
            return scope, send
        inner, raw_path = {**scope, _KEY: prefix}, scope["raw_path"]
        if raw_path == prefix.encode():
            inner |= {"path": "/", "raw_path": b"/"}
        elif raw_path.startswith(prefix.encode() + b"/"):
            inner |= {"path": scope["path"][len(prefix) :], "raw_path": raw_path[len(prefix) :]}

        async def send_prefixed(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = [_prefixed(header, prefix.encode()) for header in message.get("headers", ())]
                message = {**message, "headers": headers}
            await send(message)

        return inner, send_prefixed

    def _forwarded(self, scope: Scope) -> str:
        """The prefix that a trusted proxy names; empty for anything doubtful."""
        values = [value for name, value in scope["headers"] if name == _HEADER]
        client = scope.get("client")
        if len(values) != 1 or client is None or str(client[0]) not in self._proxies:
            return ""
        try:
            return path_prefix(values[0].decode("ascii"))
        except ValueError:
            return ""


def prefix_of(scope: Scope) -> str:
    """What stands before every path of this server in the browser; empty without a prefix."""
    prefix: str = scope.get(_KEY, "")
    return prefix


def path_as_sent(scope: Scope) -> bytes:
    """The path of a request as the client wrote it, percent-encoded."""
    raw_path: bytes = scope["raw_path"]
    return prefix_of(scope).encode() + raw_path


def _prefixed(header: Header, prefix: bytes) -> Header:
    name, value = header
    if name.lower() == b"location" and value.startswith(b"/") and not value.startswith(b"//"):
        return name, prefix + value
    if name.lower() == b"link" and value.startswith(b"</"):
        return name, b"<" + prefix + value[1:]
    return header
