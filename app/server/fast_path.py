"""uvicorn's HTTP connection, with a short way for requests that can be answered where they arrive.

A request of the application costs a task, a turn of the event loop, an event, two messages out and two system
calls to write them: more than a warm query. So a request whose last byte came together with its first is
offered to an `AtOnce` before. If this has an answer, it goes out in one piece; if not, the request takes
uvicorn's way as if nothing had been.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, ClassVar, TypeAlias

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HeaderList: TypeAlias = Iterable[tuple[bytes, bytes]]
Client: TypeAlias = tuple[str, int] | None
AtOnce: TypeAlias = Callable[
    [bytes, list[tuple[bytes, bytes]], bytes, Client], tuple[HeaderList, bytes] | None
]
"""(target, headers, body, client) of a POST request to (headers, body) of an answer with status 200.

None where that takes more than a moment, or is something else than an answer with status 200. Headers have
names in lower case and Content-Length among them. Must not raise.
"""


class AtOnceProtocol(HttpToolsProtocol):
    """A connection. suffix: of targets that ``at_once`` may know. at_once: None if there is no short way.

    answers_at_once: whether the short way is open. answered: requests that took it. Whoever gives the parser
    a piece of data calls `piece_ended` after it.
    """

    _start: ClassVar[tuple[object, bytes]] = (None, b"")
    """Status line and the headers that all answers of a second have: those headers, and the bytes."""

    def __init__(self, at_once: AtOnce | None, suffix: bytes, **given: Any) -> None:
        super().__init__(**given)
        self._at_once = at_once
        self._suffix = suffix
        self.answers_at_once = at_once is not None
        self._body: list[bytes] | None = None
        self._body_bytes = 0
        self._ended: object = None
        self.answered = 0

    def piece_ended(self) -> None:
        """The parser has read all that came so far."""
        if self._body is not None:
            # The rest is to come: nothing of it is kept here.
            self._take_the_long_way()

    def on_headers_complete(self) -> None:
        """The parser has read the head of a request."""
        if self.answers_at_once and self.url.endswith(self._suffix) and self._is_plain():
            self._body = []
        else:
            self._pass_on()

    def on_body(self, body: bytes) -> None:
        """The parser has read a part of the body."""
        if self._body is None:
            self._body_bytes += len(body)
            super().on_body(body)
        else:
            self._body.append(body)

    def on_message_complete(self) -> None:
        """The parser has read all of a request."""
        if self._body is None:
            self._ended = self.scope
            super().on_message_complete()
            return
        body = b"".join(self._body)
        answer = None if self._at_once is None else self._at_once(self.url, self.headers, body, self.client)
        if answer is None:
            self._take_the_long_way()
            self._ended = self.scope
            super().on_message_complete()
        else:
            self._body = None
            self._write(*answer)

    def _is_plain(self) -> bool:
        """Whether the request is the only one under way, and nothing but an answer is due to it."""
        return (
            (self.cycle is None or self.cycle.response_complete)
            and not self.expect_100_continue
            and not self.flow.write_paused
            and self.parser.get_method() == b"POST"
            and self.parser.get_http_version() == "1.1"
            and self.parser.should_keep_alive()
            and not self.parser.should_upgrade()
            and not self.transport.is_closing()
        )

    def _take_the_long_way(self) -> None:
        pieces, self._body = self._body or [], None
        if self.transport.is_closing():
            return
        self._pass_on()
        for piece in pieces:
            super().on_body(piece)

    def _pass_on(self) -> None:
        """The application is to answer."""
        super().on_headers_complete()

    def _write(self, headers: HeaderList, body: bytes) -> None:
        """Send an answer, and be as ready for the next request as if uvicorn had sent it."""
        common, start = AtOnceProtocol._start
        if common is not self.server_state.default_headers:
            start = self._begin()
        parts = [start]
        for name, value in headers:
            parts += (name, b": ", value, b"\r\n")
        parts += (b"\r\n", body)
        self.transport.write(b"".join(parts))
        self.scope = self.cycle = None  # type: ignore[assignment]
        self.answered += 1
        self.server_state.total_requests += 1
        self._unset_keepalive_if_required()
        self.timeout_keep_alive_task = self.loop.call_later(
            self.timeout_keep_alive, self.timeout_keep_alive_handler
        )

    def _begin(self) -> bytes:
        headers = self.server_state.default_headers
        start = b"HTTP/1.1 200 OK\r\n" + b"".join(b"%s: %s\r\n" % header for header in headers)
        AtOnceProtocol._start = (headers, start)
        return start
