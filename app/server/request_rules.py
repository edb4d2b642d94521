"""uvicorn's HTTP connection with rules: how large a request's head may be, and how it must be framed.

The parser below is strict about syntax, but has no limits, and a server has to know more: a request that a
proxy in front could understand in another way than this server is refused. Whoever breaks a rule is told
once, after the answers that are due to them, and hung up on.
"""

from __future__ import annotations

import logging
from typing import Any, Final

import httptools
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle

from app.http.problem import Problem
from app.http.request_id import HEADER, new_request_id
from app.server.fast_path import AtOnce, AtOnceProtocol

logger = logging.getLogger("uvicorn.error")

HEAD_BYTES: Final = 64 * 1024
"""Largest request line with headers; and the largest overhead of a body that comes in chunks."""
TARGET_BYTES: Final = 16 * 1024
"""Largest request target."""
MAX_HEADERS: Final = 100
MAX_PIPELINED: Final = 16
"""Requests that may wait behind one that is being answered."""
LINGER_SECONDS: Final = 1.0
"""For so long what a client still sends is taken and dropped, or the reset would overtake the last answer."""

_SPECIAL: Final = frozenset({b"authorization", b"expect", b"host", b"transfer-encoding"})
_WEIGHT: Final = 16
"""Bytes around one byte of a body in chunks: more than a chunk for each byte needs."""


class BrokenRule(Exception):
    """A request breaks a rule; raised inside of the parser's callbacks."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.detail)
        self.problem = problem


class _Trailers(list[tuple[bytes, bytes]]):
    """Headers behind a body in chunks: left out, since whoever reads headers has done so."""

    def append(self, _header: tuple[bytes, bytes]) -> None:
        """Nothing."""


class StrictProtocol(AtOnceProtocol):
    """A connection that keeps these rules.

    last_cycle: the one that was told to be the last of its connection, while it has not begun to answer.
    hung_up: nothing that still comes is looked at.
    """

    def __init__(self, at_once: AtOnce | None, suffix: bytes, **given: Any) -> None:
        super().__init__(at_once, suffix, **given)
        self.last_cycle: RequestResponseCycle | None = None
        self.hung_up = False
        self._received = self._body_from = 0
        self._head_bytes: int | None = None
        self._host_of: object = None
        self._chunks_of: object = None
        self._key_of: object = None
        self._cycles: list[RequestResponseCycle] = []
        self._problem: Problem | None = None

    def refused(self, reason: str) -> None:
        """Called for every request that breaks a rule."""

    def data_received(self, data: bytes) -> None:
        """Part of a request came."""
        if self.hung_up:
            return
        if len(data) > HEAD_BYTES:
            # What is looked at between two pieces needs pieces that are not too large.
            for start in range(0, len(data), HEAD_BYTES):
                self.data_received(data[start : start + HEAD_BYTES])
            return
        self._received += len(data)
        self._unset_keepalive_if_required()
        try:
            self.parser.feed_data(data)
            self.piece_ended()
        except httptools.HttpParserUpgrade:
            self._decline_upgrade()
        except (httptools.HttpParserError, BrokenRule) as error:
            self._broken(error)
        else:
            if self.scope is None and self.last_cycle is None:
                self._head_bytes = None
            else:
                self._look_back(len(data))

    def on_header(self, name: bytes, value: bytes) -> None:
        """The parser has read a header."""
        name = name.lower()
        if name in _SPECIAL:
            self._note(name, value)
        self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        """The parser has read the head of a request."""
        headers = self.headers
        if len(headers) > MAX_HEADERS or len(self.url) > TARGET_BYTES or self._host_of is not headers:
            self._judge()
        if self._chunks_of is headers:
            self._pass_on()
        else:
            super().on_headers_complete()

    def on_response_complete(self) -> None:
        """An answer is out."""
        is_last = not self.pipeline
        super().on_response_complete()
        if is_last and self._problem is not None:
            self.hang_up(self._problem)

    def connection_lost(self, exc: Exception | None) -> None:
        """It is gone, for every request that is still to be answered."""
        self._let_go()
        super().connection_lost(exc)

    def abort(self) -> None:
        """Hang up at once; what is still answered goes nowhere."""
        self.hung_up = True
        self._let_go()
        self.transport.abort()

    def _let_go(self) -> None:
        for cycle in self._cycles:
            if not cycle.response_complete:
                cycle.disconnected = True
                cycle.message_event.set()
        self._cycles.clear()

    def fail(self, problem: Problem) -> None:
        """The newest request cannot be answered: say so behind the answers that are due, and hang up."""
        if self.hung_up:
            return
        self.hung_up, self._body = True, None
        cycle = self.cycle
        if cycle is not None and cycle.scope is self.scope and self._ended is not self.scope:
            # It has got as far as the application, though not as a whole.
            if self.pipeline:
                self.pipeline.popleft()
                self._problem = problem
            elif cycle.response_started:
                self.hang_up(None)
            else:
                self.hang_up(problem)
            cycle.disconnected = True
            cycle.message_event.set()
        elif cycle is not None and not cycle.response_complete:
            self._problem = problem
            self.flow.pause_reading()
        else:
            self.hang_up(problem)

    def hang_up(self, problem: Problem | None) -> None:
        """Answer with ``problem``, if there is one, and close the connection."""
        self.hung_up, self._problem = True, None
        if self.transport.is_closing():
            return
        if problem is None:
            self.transport.close()
            return
        request_id = new_request_id()
        body = problem.body(request_id, "/")
        headers = [
            *self.server_state.default_headers,
            *problem.headers(),
            (b"content-length", b"%d" % len(body)),
            (b"connection", b"close"),
            (HEADER, request_id.encode()),
        ]
        lines = b"".join(b"%s: %s\r\n" % header for header in headers)
        self.transport.write(STATUS_LINE[problem.status] + lines + b"\r\n" + body)
        self.transport.write_eof()
        self.flow.resume_reading()
        self.loop.call_later(LINGER_SECONDS, self.transport.close)

    def _look_back(self, size: int) -> None:
        """After a piece of ``size`` bytes: how far did it come?"""
        cycle, last = self.cycle, self.last_cycle
        if last is not None and cycle is not last and not last.response_started:
            # Another request came behind it.
            last.keep_alive = True
        if self.scope is None:
            self._head_bytes = None
        elif cycle is not None and cycle.scope is self.scope:
            self._head_bytes = None
            self._check_chunks()
        elif self._head_bytes is None:
            # Begun in this piece, which may hold the end of another request.
            self._head_bytes = 0
        else:
            self._head_bytes += size
            if self._head_bytes > HEAD_BYTES:
                self._broken(BrokenRule(_too_large("The head of the request is too large.")))

    def _pass_on(self) -> None:
        if self.parser.get_http_version() not in ("1.0", "1.1"):
            raise BrokenRule(_malformed("Only HTTP/1.1 and HTTP/1.0 are spoken here."))
        super()._pass_on()
        self._cycles = [cycle for cycle in self._cycles if not cycle.response_complete]
        self._cycles.append(self.cycle)
        if len(self.pipeline) > MAX_PIPELINED:
            problem = Problem(429, "too_many_pipelined", "Too many requests wait for answers.", retry_after=1)
            raise BrokenRule(problem)
        self.headers = _Trailers()
        self._body_from, self._body_bytes = self._received, 0

    def _note(self, name: bytes, value: bytes) -> None:
        """A header that says how the request is to be read. Raises BrokenRule."""
        headers = self.headers
        if isinstance(headers, _Trailers):
            return
        if name == b"host":
            if self._host_of is headers:
                raise BrokenRule(_malformed("The request names two hosts."))
            self._host_of = headers
        elif name == b"authorization":
            if self._key_of is headers:
                raise BrokenRule(_malformed("The request shows two keys."))
            self._key_of = headers
        elif name == b"expect":
            self.expect_100_continue = value.lower() == b"100-continue"
        else:
            if self._chunks_of is headers or value.strip().lower() != b"chunked":
                raise BrokenRule(_malformed("Transfer-Encoding can only be chunked."))
            self._chunks_of = headers

    def _judge(self) -> None:
        """Raise BrokenRule unless the head that has just been read keeps all rules."""
        if len(self.url) > TARGET_BYTES:
            text = f"The target of the request is longer than {TARGET_BYTES} bytes."
            raise BrokenRule(Problem(414, "target_too_long", text))
        if len(self.headers) > MAX_HEADERS:
            raise BrokenRule(_too_large(f"The request has more than {MAX_HEADERS} headers."))
        if self._host_of is not self.headers and self.parser.get_http_version() != "1.0":
            raise BrokenRule(_malformed("The request names no host."))

    def _check_chunks(self) -> None:
        """A body in chunks must not be next to nothing but chunks, and nothing without end may follow it."""
        if self._ended is self.scope:
            return
        around = self._received - self._body_from - self._body_bytes
        if around > HEAD_BYTES + _WEIGHT * self._body_bytes:
            self._broken(BrokenRule(_malformed("The chunks of the body hold next to nothing.")))

    def _broken(self, error: Exception) -> None:
        cause = error if isinstance(error, BrokenRule) else error.__context__
        self.refused("bad_request")
        if isinstance(cause, BrokenRule):
            self.fail(cause.problem)
        else:
            if not isinstance(cause, httptools.HttpParserError | UnicodeDecodeError | None):
                logger.error("a connection fails unexpectedly", exc_info=cause)
            self.fail(_malformed("What came is not a request of HTTP/1.1."))

    def _decline_upgrade(self) -> None:
        """Answer as if nothing had been said of another protocol; what comes then may not be HTTP."""
        cycle = self.cycle
        self.hung_up = True
        if cycle is None or cycle.response_complete:
            self.hang_up(None)
        else:
            cycle.keep_alive = False


def _malformed(message: str) -> Problem:
    return Problem(400, "malformed_request", message)


def _too_large(message: str) -> Problem:
    return Problem(431, "head_too_large", message)
