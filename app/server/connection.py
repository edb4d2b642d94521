"""One client connection: limits, timeouts, the fast path, ASGI for all other requests, and a graceful drain.

Requests are answered one after another. Input that a client sends before its last request has been answered
waits, and beyond a limit it is not read.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, MutableMapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from uvicorn.server import ServerState

from app.domain.entities import ApiKey
from app.http.problem import Problem, internal_problem
from app.http.request_id import request_id_for
from app.http.responses import Response, encode_response, problem_response, send_response
from app.http.types import Application, HeaderList, Receive, Scope, Send
from app.processes.scoreboard import State
from app.server.body_receiver import BodyReceiver
from app.server.context import ServerContext, acknowledged_bytes, has_input, unacknowledged_bytes
from app.server.exchange import CLIENT_GONE, HIGH_WATER_BYTES, Exchange, Flow, path_and_query
from app.server.fast_path import POLL_SUFFIX, TARGET_SUFFIXES, FastPath, headers_in
from app.server.heads import BadRequest, Head, HeadReader
from app.server.progress import ProgressClock, WaitingFor
from app.server.tls import subject_of

logger = logging.getLogger("uvicorn.error")

FAST_BODY_BYTES: Final = 32 * 1024
"""The largest body of a query that the fast path answers once it has arrived, because most clients write head
and body separately. A body that is incomplete at two checks of the timeouts is left to ASGI."""
_END_OF_HEAD: Final = b"\r\n\r\n"
LINGER_SECONDS: Final = 1.0
"""After an error, input is read and dropped for this long; otherwise a reset could overtake the response."""


@dataclass(frozen=True, slots=True)
class AwaitedBody:
    """A request for the fast path whose body has not arrived completely.

    head_bytes: the bytes of its head, if they came in one piece and may be kept.
    """

    head: Head
    head_bytes: bytes


_Request: TypeAlias = HeadReader | AwaitedBody | Exchange


class HttpConnection(asyncio.Protocol):
    """The protocol of a connection.

    state: of uvicorn's server; has all connections, the tasks of requests, and the headers of all responses.
    application_state: values that the lifespan of the application put into ``scope["state"]``.
    client: address and port. fast_responses: number of responses by the fast path.
    """

    def __init__(
        self,
        application: Application,
        context: ServerContext,
        state: ServerState,
        application_state: dict[str, Any],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._application = application
        self._context, self._state, self._application_state = context, state, application_state
        self._connections: set[Any] = state.connections
        self._loop = loop
        self._fast_path: FastPath | None = context.fast_path
        self._network: str | None = None
        self._clock = ProgressClock()
        self._draining = False
        self._closing = False
        """Further input is ignored."""
        self._request: _Request | None = None
        """The request in progress; None between two requests."""
        self._input = b""
        """Input that is kept: a request with a known head, or the part of an awaited body that has arrived,
        or the input after the request that is being answered."""
        self._is_late = False
        """Whether the body of a query was incomplete at the last check."""
        self._receiver: BodyReceiver | None = None
        """Receives a large body after a known head."""
        self._received = 0
        """Bytes of requests that were not answered as soon as they came."""
        self._last: bytes | HeaderList | Scope | None = None
        """The newest request: its head if known, otherwise its headers, or its scope if ASGI handled it."""
        self._quiet_since = 0.0
        """When a request was answered last, the connection was made, or the server began to drain."""
        self.client: tuple[str, int] | None = None
        self.fast_responses = 0

    # Connection

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Apply the connection limits to a new connection."""
        self.transport, self.flow = transport, Flow(transport)
        self.client = _address(transport.get_extra_info("peername"))
        self._server = _address(transport.get_extra_info("sockname"))
        self._scheme = "https" if transport.get_extra_info("sslcontext") else "http"
        # On a Unix socket, a query process relays requests whose heads it has already checked.
        self._relayed = self.client is None
        self._quiet_since = self._loop.time()
        context = self._context
        self._connections.add(self)
        if len(self._connections) > context.max_connections and not context.evict():
            self._reject_requests("connections")
        context.unproven[self] = None
        self._network = None if self.client is None else context.add_connection(self.client[0])
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

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        """Release the resources of the connection, and tell the application."""
        self._closing = True
        self._end_receiving()
        self._connections.discard(self)
        self._context.remove_connection(self, self._network)
        self._disconnect()
        self.flow.set_writable(is_writable=True)
        self.transport.close()

    def caller(self) -> ApiKey | None:
        """The API key of the newest request; None if it had no valid key."""
        last = self._last
        if isinstance(last, MutableMapping):
            key: ApiKey | None = last["state"].get("caller")
            # The application may not have looked at the request yet.
            if key is None and self._fast_path is not None:
                key = self._fast_path.caller_of(last["headers"])
            return key
        if self._fast_path is None or last is None:
            return None
        return self._fast_path.caller_of(headers_in(last) if isinstance(last, bytes) else last)

    def is_being_answered(self) -> bool:
        """Whether a complete request waits for its response."""
        request = self._request
        return isinstance(request, Exchange) and request.is_received and not request.is_complete

    def evict(self) -> None:
        """Close the connection, so that another one can be accepted."""
        self._abort()

    def pause_writing(self) -> None:
        """Note that the client is not reading the output."""
        self.flow.set_writable(is_writable=False)

    def resume_writing(self) -> None:
        """Note that the client has read most of the response."""
        self.flow.set_writable(is_writable=True)

    # Input

    def data_received(self, data: bytes) -> None:
        """Answer requests with known heads, and parse all other input."""
        if self._closing:
            return
        if self._request is None and self._fast_path is not None:
            data = self._answer_known(self._fast_path, data)
            if not data:
                return
        self._received += len(data)
        self._guard(self._parse, data)

    def _answer_known(self, fast_path: FastPath, data: bytes) -> bytes:
        """Answer the requests at the start of ``data`` whose heads are known; returns the remaining input.

        No request is in progress.
        """
        if self._input:
            data, self._input = self._input + data, b""
        while data and self.flow.is_writable:
            end_of_head = data.find(_END_OF_HEAD)
            start = 0 if end_of_head < 0 else end_of_head + len(_END_OF_HEAD)
            prepared = fast_path.known.get(data[:start])
            if prepared is None:
                break
            end = start + prepared.length
            if end > len(data):
                if end <= FAST_BODY_BYTES:
                    self._input = data
                    return b""
                if prepared.reserve():
                    self._receiver = BodyReceiver(self, prepared, data[:start], data[start:])
                    self.transport.set_protocol(self._receiver)
                    return b""
                break
            response = fast_path.respond(prepared, data[start:end], self._state.default_headers)
            if response is None:
                break
            self._send_fast_response(response, data[:start])
            data = data[end:]
        return data

    def _send_fast_response(self, response: bytes, request: bytes | HeaderList) -> None:
        self.transport.write(response)
        self._last, self._is_late = request, False
        self.fast_responses += 1
        self._state.total_requests += 1
        self._quiet_since = self._loop.time()

    def body_progressed(self, size: int) -> None:
        """Count the bytes of a body that is received in place."""
        self._received += size

    def body_received(self) -> None:
        """Answer a request whose body was received in place."""
        receiver = self._end_receiving()
        if receiver is None or self._closing:
            return
        response = None
        if self._fast_path is not None and self.flow.is_writable:
            common_headers = self._state.default_headers
            response = self._fast_path.respond(receiver.answerer, receiver.body, common_headers)
        if response is None:
            self._guard(self._parse, receiver.head + bytes(receiver.body))
        else:
            self._send_fast_response(response, receiver.head)

    def _end_receiving(self) -> BodyReceiver | None:
        """Take input again; returns the receiver of a body, if there was one."""
        receiver, self._receiver = self._receiver, None
        if receiver is not None:
            receiver.prepared.release()
            self.transport.set_protocol(self)
        return receiver

    def _guard(self, act: Callable[..., None], *arguments: bytes) -> None:
        """Call ``act``; a request that cannot be understood is refused."""
        try:
            act(*arguments)
        except BadRequest as error:
            self._context.refused["bad_request"] += 1
            self.send_error(error.problem)
        except Exception:
            logger.exception("a connection failed unexpectedly")
            self.send_error(internal_problem())

    def _parse(self, data: bytes) -> None:
        """Take input in the order of its requests. Raises BadRequest."""
        while data and not self._closing:
            request = self._request
            if isinstance(request, Exchange):
                data = self._continue_exchange(request, data)
            elif isinstance(request, AwaitedBody):
                data = self._continue_body(request, data)
            elif request is not None:
                data = self._continue_head(request, data, is_first=False)
            else:
                # Line ends before a request mean nothing (RFC 9112, section 2.2).
                data = data.lstrip(b"\r\n")
                if data:
                    data = self._continue_head(HeadReader(relayed=self._relayed), data, is_first=True)

    def _continue_head(self, reader: HeadReader, data: bytes, *, is_first: bool) -> bytes:
        """Read a head, and begin its request; returns the remaining input."""
        used = reader.feed(data)
        if used < 0:
            self._request = reader
            return b""
        self._request = None
        head = reader.take()
        if not self._is_for_fast_path(head) or self._fast_path is None:
            self._start_exchange(head)
            return data[used:]
        awaited = AwaitedBody(head, data[:used] if is_first else b"")
        if (head.length or 0) <= FAST_BODY_BYTES:
            return self._continue_body(awaited, data[used:])
        self._fast_path.learn(head.target, head.headers, self.client, awaited.head_bytes)
        self._start_exchange(head)
        return data[used:]

    def _is_for_fast_path(self, head: Head) -> bool:
        """Whether the fast path may know an answer, and the request needs nothing but that."""
        return (
            head.target.endswith(TARGET_SUFFIXES)
            and head.length is not None
            and head.keeps_alive
            and not head.expects_continue
            and head.method == ("GET" if head.target.endswith(POLL_SUFFIX) else "POST")
            and self.flow.is_writable
        )

    def _continue_body(self, awaited: AwaitedBody, data: bytes) -> bytes:
        """Answer a request once its small body is complete; returns the remaining input."""
        if self._input:
            data, self._input = self._input + data, b""
        head = awaited.head
        length = head.length or 0
        if len(data) < length:
            self._request, self._input = awaited, data
            return b""
        self._request = None
        if self._fast_path is not None and self.flow.is_writable:
            common_headers, body = self._state.default_headers, data[:length]
            response = self._fast_path(
                head.target, head.headers, body, self.client, common_headers, awaited.head_bytes
            )
            if response is not None:
                self._send_fast_response(response, head.headers)
                return data[length:]
        self._start_exchange(head)
        return data

    def _continue_exchange(self, exchange: Exchange, data: bytes) -> bytes:
        """Pass on a part of the body; later input waits for the response."""
        if exchange.is_received:
            self._input += data
            if len(self._input) > HIGH_WATER_BYTES:
                self.flow.pause_reading()
            return b""
        rest = exchange.feed(data)
        if exchange.is_received and exchange.is_complete:
            self._request = None
        return rest

    def _leave_awaited_body(self) -> None:
        """Let the application wait for the rest of a body."""
        awaited, data = self._request, self._input
        if self._closing or not (isinstance(awaited, AwaitedBody) or (awaited is None and data)):
            return
        self._request, self._input = None, b""
        if isinstance(awaited, AwaitedBody):
            head = awaited.head
        else:
            reader = HeadReader(relayed=self._relayed)
            data = data[reader.feed(data) :]
            head = reader.take()
        self._start_exchange(head)
        self._parse(data)

    # ASGI

    def _start_exchange(self, head: Head) -> None:
        """Send a request to the application. Raises BadRequest."""
        path, raw_path, query = path_and_query(head.target)
        scope: Scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": head.version,
            "server": self._server,
            "client": self.client,
            "scheme": self._scheme,
            "method": head.method,
            "root_path": "",
            "path": path,
            "raw_path": raw_path,
            "query_string": query,
            "headers": head.headers,
            "state": self._application_state.copy(),
            CLIENT_GONE: self._loop.create_future(),
        }
        self._last, self._is_late = scope, False
        common_headers = self._state.default_headers
        exchange = Exchange(
            scope, head, self.flow, common_headers, self._is_last_response, self._response_sent
        )
        self._request = exchange
        task = self._loop.create_task(exchange.run(self._application))
        self._state.tasks.add(task)
        task.add_done_callback(self._state.tasks.discard)

    def _is_last_response(self) -> bool:
        return self._draining and not self._input

    def _response_sent(self) -> None:
        """Go on with the next request."""
        self._state.total_requests += 1
        self._quiet_since = self._loop.time()
        if self.transport.is_closing():
            return
        self.flow.resume_reading()
        exchange = self._request
        if isinstance(exchange, Exchange) and exchange.is_received:
            self._request = None
            data, self._input = self._input, b""
            if data:
                self.data_received(data)

    def _disconnect(self) -> None:
        if isinstance(self._request, Exchange):
            self._request.disconnect()

    # Errors and the end of the connection

    def send_error(self, problem: Problem) -> None:
        """Respond with ``problem``, unless the response to the request has begun, and close."""
        if self._closing:
            return
        exchange = self._request
        is_started = isinstance(exchange, Exchange) and exchange.is_started
        self._disconnect()
        self.close(None if is_started else problem)

    def close(self, problem: Problem | None) -> None:
        """Close the connection, after a response with ``problem`` if there is one."""
        self._end_receiving()
        self._closing = True
        if self.transport.is_closing():
            return
        if problem is None:
            self.transport.close()
            return
        request_id = request_id_for(None)
        response = _closing_response(problem, request_id, b"/")
        self.transport.write(encode_response(response, request_id, self._state.default_headers))
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.flow.resume_reading()
        self._loop.call_later(LINGER_SECONDS, self.transport.close)

    def _abort(self) -> None:
        self._end_receiving()
        self._closing = True
        self._disconnect()
        self.transport.abort()

    def _reject_requests(self, reason: str) -> None:
        self._context.refused[reason] += 1
        self._application = _too_many_connections
        self._fast_path = None

    # Drain

    def drain(self) -> None:
        """From now on close the connection with the next response after which no request is waiting."""
        if not self._draining:
            self._draining = True
            self._fast_path = None
            self._quiet_since = self._loop.time()
            self._guard(self._leave_awaited_body)

    def close_if_idle_for(self, seconds: float) -> None:
        """Close the connection if there was no request for ``seconds``, and none is about to be read."""
        if (
            self._loop.time() - self._quiet_since >= seconds
            and self._request is None
            and self._receiver is None
            and not self._input
            and not self._unsent_bytes()
            and not has_input(self.transport.get_extra_info("socket"))
        ):
            self.transport.close()

    # Timeouts

    def check_timeouts(self, now: float, keep_alive_seconds: float) -> None:
        """Close the connection of a client that is too slow; called about once a second.

        The query process watches the clients of relayed requests, and ends the connection with them; only its
        own pace would be visible here.

        now: `time.monotonic`. keep_alive_seconds: how long a connection may be open without a request.
        """
        if self._relayed:
            return
        if isinstance(self._request, AwaitedBody) or (self._request is None and self._input):
            if self._is_late:
                self._guard(self._leave_awaited_body)
            self._is_late = True
        waiting_for = self._waiting_for()
        size = self._received
        if waiting_for is WaitingFor.READ:
            size = acknowledged_bytes(self.transport.get_extra_info("socket"))
        request = self._receiver or self._request
        if not self._clock.is_too_slow(waiting_for, request, size, now) or waiting_for is None:
            self.close_if_idle_for(keep_alive_seconds)
            return
        self._context.refused[waiting_for.value] += 1
        if waiting_for is WaitingFor.READ:
            self._abort()
        elif waiting_for is WaitingFor.UNREAD or request is None:
            self.close(None)
        else:
            part = "head" if waiting_for is WaitingFor.HEAD else "body"
            self.send_error(Problem(408, "too_slow", f"The {part} of the request came too slowly."))

    def _waiting_for(self) -> WaitingFor | None:
        """What the server waits for from the client; None if it waits for the application or nothing."""
        if self._unsent_bytes() > 0:
            return WaitingFor.READ
        if not self.flow.is_reading or self._closing:
            return None
        if self._receiver is not None:
            return WaitingFor.BODY
        request = self._request
        if isinstance(request, Exchange):
            if request.is_received or request.expects_continue:
                return None
            return WaitingFor.UNREAD if request.is_complete else WaitingFor.BODY
        if isinstance(request, HeadReader) or (request is None and self._last is None and not self._input):
            return WaitingFor.HEAD
        return None

    def _unsent_bytes(self) -> int:
        """Bytes of responses in this process; with TLS also those in the kernel, if any.

        With TLS there are two buffers, and asyncio reports the size of only one.
        """
        unsent = self.transport.get_write_buffer_size()
        if not unsent and self._scheme == "https":
            unsent = unacknowledged_bytes(self.transport.get_extra_info("socket"))
        return unsent


def _address(name: Any) -> tuple[str, int] | None:
    """Host and port of one end of a connection; None for a Unix socket, and for a client that has left."""
    return (str(name[0]), int(name[1])) if isinstance(name, tuple) else None


async def _too_many_connections(scope: Scope, _receive: Receive, send: Send) -> None:
    """Respond to every request with 429 and close the connection."""
    problem = Problem(429, "too_many_connections", "Too many connections are open.", retry_after=1.0)
    request_id = request_id_for(None)
    await send_response(send, _closing_response(problem, request_id, scope["raw_path"]), request_id)


def _closing_response(problem: Problem, request_id: bytes, raw_path: bytes) -> Response:
    """A problem response that announces the end of the connection."""
    response = problem_response(problem, request_id, raw_path)
    response.headers = [*response.headers, (b"connection", b"close")]
    return response
