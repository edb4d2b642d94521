"""The HTTP protocol of one connection: the only code that touches the internals of uvicorn's HTTP protocol.

`HttpProtocol` extends uvicorn's protocol by connection limits, a draining mode, errors as problem documents
and the fast path. It owns the objects that decide, each of which works without a socket: `RequestRules` for
request heads, `ProgressClock` for timeouts, and `FastPath` for immediate responses.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any, Final

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from app.domain.entities import ApiKey
from app.http.problem import Problem
from app.http.request_id import request_id_for
from app.http.responses import encode_response
from app.processes.scoreboard import State
from app.server.asgi import closing_response, too_many_connections, with_connection_close
from app.server.body_receiver import BodyReceiver
from app.server.context import ServerContext, has_input, unacknowledged_bytes
from app.server.fast_path import POLL_SUFFIX, TARGET_SUFFIXES, FastPath, headers_in
from app.server.progress import ProgressClock, WaitingFor
from app.server.request_rules import HEAD_BYTES, BadRequest, RequestRules
from app.server.tls import subject_of
from app.server.upgrades import framing_of_body, parser_of_body

logger = logging.getLogger("uvicorn.error")

MAX_PIPELINED: Final = 16
"""Requests that may wait behind the one that is being answered."""
FAST_BODY_BYTES: Final = 32 * 1024
"""The largest body of a query that the fast path answers once all has come: most clients write head and body
apart. One that is incomplete at two checks of the timeouts is left to ASGI."""
_END_OF_HEAD: Final = b"\r\n\r\n"
_METHODS: Final = (b"POST ", b"GET ")
"""Of requests whose heads are kept."""
LINGER_SECONDS: Final = 1.0
"""After an error input is read and dropped for so long; a reset could overtake the response otherwise."""


class _DiscardedTrailers(list[tuple[bytes, bytes]]):
    """Discards trailer fields: the application already has the headers."""

    def append(self, _header: tuple[bytes, bytes]) -> None:
        """Drop the field."""


class HttpProtocol(HttpToolsProtocol):
    """One client connection: connection limits, slow-client timeouts, fast path and graceful drain.

    fast_responses: number of responses by the fast path.
    """

    def __init__(self, context: ServerContext, **options: Any) -> None:
        super().__init__(**options)
        self._context = context
        self._network: str | None = None
        self._clock = ProgressClock()
        self._draining = False
        self._closing = False
        """Further input is ignored."""
        self._problem: Problem | None = None
        """To be sent once the responses that are due have been sent."""

        self._framing = b""
        """Of the body behind a head that offers an upgrade, until the parser has left that head."""
        self._received = 0
        """Bytes received on the connection; `_body_start`: up to the end of the current request's head."""
        self._body_start = self._body_bytes = 0
        self._complete_scope: object = None
        """Scope of the last request that was received completely and went to ASGI."""
        self._cycles: list[RequestResponseCycle] = []
        self._last_cycle: RequestResponseCycle | None = None
        """The request that was in progress when draining began, whose response closes the connection."""

        self._fast_path = context.fast_path
        self._fast_body: list[bytes] | None = None
        """Body of a request that is to be offered to the fast path; None if there is no such request."""
        self._head = b""
        """Head of that request, if it came in one piece."""
        self._held = b""
        """A request whose head is known, and whose body is incomplete."""
        self._is_late = False
        """Whether that body, or one behind a head that was parsed, was incomplete at the last check."""
        self._receiver: BodyReceiver | None = None
        """Receives a large body behind a known head."""
        self._fast_headers: list[tuple[bytes, bytes]] = []
        """Headers of the last request that the fast path has answered after parsing it."""
        self._last_scope: Any = None
        """The last request if it was answered by the application."""
        self._known_head = b""
        """Head of the last request if it was known."""
        self._answered_at = 0.0
        """When a request with a known head was answered last, in seconds of the event loop."""
        self.fast_responses = 0

    # Connection

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Apply the connection limits to a new connection."""
        super().connection_made(transport)
        context = self._context
        if len(self.connections) > context.max_connections and not context.evict():
            self._reject_requests("connections")
        context.unproven[self] = None
        self._network = None if self.client is None else context.add_connection(self.client[0])
        # At a Unix socket a query process relays what has passed these rules.
        self._rules = RequestRules(relayed=self.client is None)
        if self._network is not None:
            open_connections = context.connections[self._network]
            if open_connections > 2 * context.max_per_address:
                context.refused["connections_of_address"] += 1
                self._closing = True
                transport.abort()
            elif open_connections > context.max_per_address:
                self._reject_requests("connections_of_address")
        if context.slot.state is State.DRAINING:
            self.drain()
        certificate = transport.get_extra_info("peercert")
        if certificate:
            logger.info(
                "A client at %s has shown the certificate of %s.", self.client, subject_of(certificate)
            )

    def connection_lost(self, exc: Exception | None) -> None:
        """Release what the connection holds, and tell the application for every unanswered request."""
        self._end_receiving()
        self._context.remove_connection(self, self._network)
        self._disconnect_all()
        super().connection_lost(exc)

    def caller(self) -> ApiKey | None:
        """The API key of the newest request; None if it had no valid key."""
        scope = self._last_scope if self.cycle is None else self.cycle.scope
        key: ApiKey | None = None if scope is None else scope["state"].get("caller")
        if key is not None or self._fast_path is None:
            return key
        if scope is not None:
            # The application may not have looked at the request yet.
            return self._fast_path.caller_of(list(scope["headers"]))
        headers = headers_in(self._known_head) if self._known_head else self._fast_headers
        return self._fast_path.caller_of(headers)

    def is_being_answered(self) -> bool:
        """Whether a complete request waits for its response."""
        cycle = self.cycle
        return cycle is not None and not cycle.response_complete and self._complete_scope is cycle.scope

    def evict(self) -> None:
        """Close the connection, so that another one can be accepted."""
        self._abort()

    def resume_writing(self) -> None:
        """Note that the client has read most of the response."""
        self._clock.restart()
        super().resume_writing()

    # Input

    def data_received(self, data: bytes) -> None:
        """Answer what is understood already, and parse all other input."""
        if self._closing:
            return
        fast_path = self._fast_path
        if fast_path is not None and self.scope is None and not self.transport.is_closing():
            data = self._answer_known(fast_path, data)
            if not data:
                return
        self._parse_input(data)

    def _answer_known(self, fast_path: FastPath, data: bytes) -> bytes:
        """Answer the requests at the start of ``data`` whose heads are known; returns what is left of it.

        No request is in progress, and the parser is between two of them.
        """
        if self._held:
            data, self._held = self._held + data, b""
        while data and not self.flow.write_paused:
            end_of_head = data.find(_END_OF_HEAD)
            start = 0 if end_of_head < 0 else end_of_head + len(_END_OF_HEAD)
            prepared = fast_path.known.get(data[:start])
            if prepared is None:
                self._head = data[:start] if data.startswith(_METHODS) else b""
                break
            end = start + prepared.length
            if end > len(data):
                if end <= FAST_BODY_BYTES:
                    self._held = data
                    return b""
                if prepared.reserve():
                    self._receiver = BodyReceiver(self, prepared, data[:start], data[start:])
                    self.transport.set_protocol(self._receiver)
                    return b""
                break
            common_headers = self.server_state.default_headers
            response = fast_path.respond(prepared, data[start:end], common_headers)
            if response is None:
                break
            self._send_known_response(data[:start], response)
            data = data[end:]
        return data

    def _send_known_response(self, head: bytes, response: bytes) -> None:
        self.transport.write(response)
        self._known_head, self._last_scope = head, None
        self._is_late = False
        self.fast_responses += 1
        self.server_state.total_requests += 1
        self._answered_at = self.loop.time()
        if self.timeout_keep_alive_task is None:
            self._start_keep_alive(self.timeout_keep_alive)

    def body_progressed(self, size: int) -> None:
        """Count the bytes of a body that is received in place."""
        self._received += size

    def body_received(self) -> None:
        """Answer a request whose body was received in place."""
        receiver = self._end_receiving()
        if receiver is None or self._closing:
            return
        response = None
        if self._fast_path is not None and not self.flow.write_paused:
            common_headers = self.server_state.default_headers
            response = self._fast_path.respond(receiver.answerer, receiver.body, common_headers)
        if response is None:
            self._parse_input(receiver.head + bytes(receiver.body))
        else:
            self._send_known_response(receiver.head, response)

    def _end_receiving(self) -> BodyReceiver | None:
        """Take input again; returns what was receiving a body, if it was."""
        receiver, self._receiver = self._receiver, None
        if receiver is not None:
            receiver.prepared.release()
            self.transport.set_protocol(self)
        return receiver

    def _start_keep_alive(self, seconds: float) -> None:
        self.timeout_keep_alive_task = self.loop.call_later(seconds, self.timeout_keep_alive_handler)

    def _parse_input(self, data: bytes) -> None:
        """Parse input, and check the limits that hold between two pieces of it."""
        if len(data) > HEAD_BYTES:
            for start in range(0, len(data), HEAD_BYTES):
                if not self._closing:
                    self._parse_input(data[start : start + HEAD_BYTES])
            return
        self._received += len(data)
        self._unset_keepalive_if_required()
        try:
            self._parse(data)
            if self._fast_body is not None:
                self._leave_large_body()
            elif self.scope is not None or self._last_cycle is not None:
                self._check_progress(len(data))
        except (httptools.HttpParserError, BadRequest) as error:
            self._refuse_request(error)

    def on_headers_complete(self) -> None:
        """Check the head, and send the request to the fast path or to ASGI."""
        version = self.parser.get_http_version()
        is_chunked = self._rules.check_head(self.url, self.headers, version)
        if self.parser.should_upgrade() and self.parser.get_method() != b"CONNECT":
            self._framing = framing_of_body(self.headers, keep_alive=self.parser.should_keep_alive())
        if (
            self._fast_path is not None
            and self.url.endswith(TARGET_SUFFIXES)
            and not is_chunked
            and version == "1.1"
            and self._is_eligible()
        ):
            self._fast_body = []
        else:
            self._start_asgi()

    def on_body(self, body: bytes) -> None:
        """Collect a part of the body."""
        if self._fast_body is None:
            self._body_bytes += len(body)
            super().on_body(body)
        else:
            self._fast_body.append(body)

    def on_message_complete(self) -> None:
        """Answer a request by the fast path, or tell the application that its body is complete."""
        if self._framing:
            # Only for the parser: it expects another protocol behind the head.
            return
        if self._fast_body is not None and self._fast_path is not None:
            body, common_headers = b"".join(self._fast_body), self.server_state.default_headers
            head, self._head = self._head, b""
            response = self._fast_path(self.url, self.headers, body, self.client, common_headers, head)
            if response is not None:
                self._fast_body = None
                self._send_fast_response(response)
                return
            self._fall_back_to_asgi()
        self._complete_scope = self.scope
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Start the next request, or send the error that waited for this response."""
        is_last = not self.pipeline
        super().on_response_complete()
        scope, cycle = self.scope, self.cycle
        if is_last and cycle.keep_alive and cycle.scope is scope and self._complete_scope is scope:
            # Between two requests, as after a fast response.
            self._last_scope = scope
            self.scope = self.cycle = None  # type: ignore[assignment]
        if is_last and self._problem is not None:
            self.close(self._problem)

    def _check_progress(self, size: int) -> None:
        """Check the sizes of an unfinished request after ``size`` more bytes. Raises BadRequest."""
        scope, cycle, last = self.scope, self.cycle, self._last_cycle
        if last is not None and cycle is not last and not last.response_started:
            # Another request followed, so that one is no longer the last.
            last.keep_alive = True
        if scope is None:
            return
        if cycle is None or cycle.scope is not scope:
            self._rules.check_head_progress(size)
        elif self._complete_scope is not scope:
            self._rules.check_body_framing(self._received - self._body_start, self._body_bytes)

    # Fast path and ASGI

    def _is_eligible(self) -> bool:
        """Whether the request is the only one in progress and needs nothing but a response."""
        return (
            (self.cycle is None or self.cycle.response_complete)
            and not self.expect_100_continue
            and not self.flow.write_paused
            and self.parser.get_method() == (b"GET" if self.url.endswith(POLL_SUFFIX) else b"POST")
            and self.parser.should_keep_alive()
            and not self.parser.should_upgrade()
            and not self.transport.is_closing()
        )

    def _send_fast_response(self, response: bytes) -> None:
        """Write a response, and get ready for the next request as uvicorn does after a response."""
        self.transport.write(response)
        self.scope = self.cycle = None  # type: ignore[assignment]
        self._fast_headers, self._known_head, self._last_scope = self.headers, b"", None
        self._is_late = False
        self.fast_responses += 1
        self.server_state.total_requests += 1
        self._unset_keepalive_if_required()
        self._start_keep_alive(self.timeout_keep_alive)

    def _leave_large_body(self) -> None:
        """Leave a body that is large to ASGI."""
        if sum(map(len, self._fast_body or ())) > FAST_BODY_BYTES:
            if self._fast_path is not None:
                self._fast_path.learn(self.url, self.headers, self.client, self._head)
            self._fall_back_to_asgi()

    def _leave_late_body(self) -> None:
        """Leave a body that has not come yet to ASGI; one behind a known head to the parser first."""
        held, self._held = self._held, b""
        if held and not self._closing:
            self._parse_input(held)
        elif self._fast_body is not None:
            self._fall_back_to_asgi()

    def _fall_back_to_asgi(self) -> None:
        parts, self._fast_body = self._fast_body or [], None
        if self.transport.is_closing():
            return
        self._start_asgi()
        for part in parts:
            super().on_body(part)

    def _start_asgi(self) -> None:
        """Send the request to the application. Raises BadRequest if too many requests are waiting."""
        self._head, self._is_late = b"", False
        super().on_headers_complete()
        self._cycles = [cycle for cycle in self._cycles if not cycle.response_complete]
        self._cycles.append(self.cycle)
        if len(self.pipeline) > MAX_PIPELINED:
            problem = Problem(429, "too_many_pipelined", "Too many requests wait for answers.", retry_after=1)
            raise BadRequest(problem)
        self.headers = _DiscardedTrailers()
        self._body_start, self._body_bytes = self._received, 0

    def _parse(self, data: bytes) -> None:
        """Parse input; a request that offers an upgrade goes on as if it did not. Raises HttpParserError."""
        while True:
            try:
                self.parser.feed_data(data)
            except httptools.HttpParserUpgrade as upgrade:
                [end_of_head] = upgrade.args
            else:
                return
            if self.parser.get_method() == b"CONNECT":
                self._refuse_tunnel()
                return
            framing, self._framing = self._framing, b""
            if framing:
                self.parser = parser_of_body(self, framing)
            data = data[end_of_head:]

    def _refuse_tunnel(self) -> None:
        """Close after the response to CONNECT: further input may not be HTTP."""
        cycle = self.cycle
        self._closing = True
        if cycle is None or cycle.response_complete:
            self.close(None)
        else:
            cycle.keep_alive = False

    # Errors and the end of the connection

    def _refuse_request(self, error: Exception) -> None:
        """Send the problem that the rules, or the parser, have raised."""
        cause = error if isinstance(error, BadRequest) else error.__context__
        self._context.refused["bad_request"] += 1
        if not isinstance(cause, BadRequest):
            if not isinstance(cause, httptools.HttpParserError | UnicodeDecodeError | None):
                logger.error("a connection failed unexpectedly", exc_info=cause)
            cause = BadRequest.malformed("The input is not a valid HTTP/1.1 request.")
        self.send_error(cause.problem)

    def send_error(self, problem: Problem) -> None:
        """Respond to the newest request with ``problem``, after all responses that are due, and close."""
        if self._closing:
            return
        self._end_receiving()
        self._closing, self._fast_body = True, None
        cycle = self.cycle
        if cycle is not None and cycle.scope is self.scope and self._complete_scope is not self.scope:
            # The application has the request, but not all of its body.
            if self.pipeline:
                self.pipeline.popleft()
                self._problem = problem
            elif cycle.response_started:
                self.close(None)
            else:
                self.close(problem)
            cycle.disconnected = True
            cycle.message_event.set()
        elif cycle is not None and not cycle.response_complete:
            self._problem = problem
            self.flow.pause_reading()
        else:
            self.close(problem)

    def close(self, problem: Problem | None) -> None:
        """Close the connection, after a response with ``problem`` if there is one."""
        self._end_receiving()
        self._closing, self._problem = True, None
        if self.transport.is_closing():
            return
        if problem is None:
            self.transport.close()
            return
        request_id = request_id_for(None)
        response = closing_response(problem, request_id, b"/")
        self.transport.write(encode_response(response, request_id, self.server_state.default_headers))
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.flow.resume_reading()
        self.loop.call_later(LINGER_SECONDS, self.transport.close)

    def _abort(self) -> None:
        self._end_receiving()
        self._closing = True
        self._disconnect_all()
        self.transport.abort()

    def _disconnect_all(self) -> None:
        """Tell the application for every unanswered request that the client is gone."""
        for cycle in self._cycles:
            if not cycle.response_complete:
                cycle.disconnected = True
                cycle.message_event.set()
        self._cycles.clear()

    def _reject_requests(self, reason: str) -> None:
        self._context.refused[reason] += 1
        self.app = too_many_connections
        self._fast_path = None

    # Drain

    def drain(self) -> None:
        """From now on close the connection with the next response after which no request is waiting."""
        if self._draining:
            return
        self._draining = True
        self._fast_path = None
        self._leave_late_body()
        cycle = self.cycle
        if cycle is not None and cycle.keep_alive and not cycle.response_started:
            cycle.keep_alive = False
            self._last_cycle = cycle
        self.app = with_connection_close(self.app, lambda: not self.pipeline)

    def timeout_keep_alive_handler(self) -> None:
        """Close a connection that had no request for so long: those with known heads stop no timer."""
        idle = self.loop.time() - self._answered_at
        if self._held or self._receiver or idle < self.timeout_keep_alive:
            self._start_keep_alive(max(self.timeout_keep_alive - idle, LINGER_SECONDS))
        else:
            super().timeout_keep_alive_handler()

    def close_if_idle_for(self, seconds: float) -> None:
        """Close the connection if it was idle for ``seconds`` and no input is waiting."""
        cycle = self.cycle
        is_idle = self._receiver is None and (
            self.scope is None if cycle is None else cycle.response_complete and cycle.scope is self.scope
        )
        idle_seconds = self._clock.idle_seconds(time.monotonic(), is_idle=is_idle)
        if idle_seconds >= seconds and not has_input(self.transport.get_extra_info("socket")):
            self.transport.close()

    # Timeouts

    def check_timeouts(self, now: float) -> None:
        """Close the connection of a client that is too slow; called about once a second.

        now: `time.monotonic`.
        """
        if self._held or self._fast_body is not None:
            if self._is_late:
                self._leave_late_body()
            self._is_late = True
        waiting_for = self._waiting_for()
        size = self._unread_bytes() if waiting_for is WaitingFor.READ else self._received
        request = self._receiver or self.scope
        if not self._clock.is_too_slow(waiting_for, request, size, now) or waiting_for is None:
            return
        self._context.refused[waiting_for.value] += 1
        if waiting_for is WaitingFor.READ:
            self._abort()
        elif waiting_for in (WaitingFor.NEXT, WaitingFor.UNREAD) or request is None:
            self.close(None)
        else:
            part = "head" if waiting_for is WaitingFor.HEAD else "body"
            self.send_error(Problem(408, "too_slow", f"The {part} of the request came too slowly."))

    def _waiting_for(self) -> WaitingFor | None:
        """What the server waits for from the client; None if it waits for the application or nothing."""
        if self._unsent_bytes() > 0:
            return WaitingFor.READ
        scope, cycle = self.scope, self.cycle
        if self.flow.read_paused or self._closing:
            return None
        if self._receiver is not None:
            return WaitingFor.BODY
        if scope is None and not self.fast_responses and self._last_scope is None:
            return WaitingFor.HEAD
        if scope is not None and (cycle is None or cycle.scope is not scope):
            return WaitingFor.HEAD
        if scope is not None and self._complete_scope is not scope:
            return WaitingFor.UNREAD if cycle.response_complete else WaitingFor.BODY
        if scope is not None and not cycle.response_complete:
            return None
        # The keep-alive timer runs, unless it was stopped by line ends, which do not begin a request.
        return WaitingFor.NEXT if self.timeout_keep_alive_task is None else None

    def _unsent_bytes(self) -> int:
        """Bytes of responses that this process holds; with TLS also those that the kernel holds, if any.

        asyncio tells the size of only one of the two buffers that it has then.
        """
        unsent = self.transport.get_write_buffer_size()
        if not unsent and self.scheme == "https":
            unsent = unacknowledged_bytes(self.transport.get_extra_info("socket"))
        return unsent

    def _unread_bytes(self) -> int:
        """Bytes of responses that the client has not acknowledged."""
        queued = unacknowledged_bytes(self.transport.get_extra_info("socket"))
        return self.transport.get_write_buffer_size() + queued
