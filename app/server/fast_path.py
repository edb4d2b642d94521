"""The synchronous fast path: a response without a task, for requests that can be answered immediately.

An ASGI request costs a task, an iteration of the event loop, an event, two messages and two system calls:
more than a warm query. The protocol therefore offers an eligible request, once all of it has arrived, to a
`FastPath` first. Where that returns a response, it is written in one piece; otherwise the request takes the
usual way through ASGI as if nothing had happened.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

from app.domain.entities import ApiKey
from app.http.types import HeaderList

Client: TypeAlias = tuple[str, int] | None
TryRespond: TypeAlias = Callable[
    [bytes, list[tuple[bytes, bytes]], bytes, Client], tuple[HeaderList, bytes] | None
]
"""(target, headers, body, client) of a POST request to (headers, body) of a response with status 200.

None where the response has another status or takes longer than a few microseconds to compute. Header names
are in lower case and include Content-Length. Must not raise.
"""

TARGET_SUFFIX: Final = b":query"
"""Only requests whose target ends with this are offered."""


class FastPath:
    """Calls `respond` and encodes its response; shared by all connections of a process.

    respond: None until the application has started; every request then takes the usual way. caller_of:
    returns the API key in headers, None without a valid one. has_tenants: whether keys of several tenants
    exist.
    """

    def __init__(self, respond: TryRespond | None = None) -> None:
        self.respond = respond
        self.caller_of: Callable[[HeaderList], ApiKey | None] = lambda _headers: None
        self.has_tenants: Callable[[], bool] = lambda: False
        self._common_headers: object = None
        self._start = b""

    def __call__(
        self,
        target: bytes,
        headers: list[tuple[bytes, bytes]],
        body: bytes,
        client: Client,
        common_headers: list[tuple[bytes, bytes]],
    ) -> bytes | None:
        """Return the complete HTTP/1.1 response in bytes, or None for a request that is left to ASGI.

        common_headers: headers of all responses; the caller replaces the list when they change.
        """
        respond = self.respond
        response = None if respond is None else respond(target, headers, body, client)
        if response is None:
            return None
        if common_headers is not self._common_headers:
            self._start = _status_line_and_headers(common_headers)
            self._common_headers = common_headers
        parts = [self._start]
        for name, value in response[0]:
            parts += (name, b": ", value, b"\r\n")
        parts += (b"\r\n", response[1])
        return b"".join(parts)


def _status_line_and_headers(headers: HeaderList) -> bytes:
    return b"HTTP/1.1 200 OK\r\n" + b"".join(b"%s: %s\r\n" % header for header in headers)
