"""uvicorn's HTTP connection, with a short way for requests that can be answered where they arrive.

A request of the application costs a task, a turn of the event loop, an event, two messages out and two system
calls to write them: more than a warm query. So a request whose last byte came together with its first is
offered to an `AtOnce` before. If this has an answer, it goes out in one piece; if not, the request takes
uvicorn's way as if nothing had been.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HeaderList: TypeAlias = Iterable[tuple[bytes, bytes]]
AtOnce: TypeAlias = Callable[[bytes, list[tuple[bytes, bytes]], bytes], tuple[HeaderList, bytes] | None]
"""(target, headers, body) of a POST request to (headers, body) of an answer with status 200.

None where that takes more than a moment, or is something else than an answer with status 200. Headers have
names in lower case and Content-Length among them. Must not raise.
"""


class AtOnceProtocol(HttpToolsProtocol):
    """A connection. suffix: of targets that ``at_once`` may know. at_once: None if there is no short way.

    answers_at_once: whether the short way is open. answered: requests that took it.
    """

    def __init__(self, at_once: AtOnce | None, suffix: bytes, **given: Any) -> None:
        super().__init__(**given)
        self._at_once = at_once
        self._suffix = suffix
        self.answers_at_once = at_once is not None
        self._body: list[bytes] | None = None
        self.answered = 0

    def data_received(self, data: bytes) -> None:
        """Part of a request came."""
        super().data_received(data)
        if self._body is not None:
            # The rest is to come: nothing of it is kept here.
            self._take_the_long_way()

    def on_headers_complete(self) -> None:
        """The parser has read the head of a request."""
        if self.answers_at_once and self.url.endswith(self._suffix) and self._is_plain():
            self._body = []
        else:
            super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """The parser has read a part of the body."""
        if self._body is None:
            super().on_body(body)
        else:
            self._body.append(body)

    def on_message_complete(self) -> None:
        """The parser has read all of a request."""
        if self._body is None:
            super().on_message_complete()
            return
        body = b"".join(self._body)
        answer = None if self._at_once is None else self._at_once(self.url, self.headers, body)
        if answer is None:
            self._take_the_long_way()
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
        super().on_headers_complete()
        for piece in pieces:
            super().on_body(piece)

    def _write(self, headers: HeaderList, body: bytes) -> None:
        """Send an answer, and be as ready for the next request as if uvicorn had sent it."""
        parts = [b"HTTP/1.1 200 OK\r\n"]
        for name, value in (*self.server_state.default_headers, *headers):
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
