"""ASGI middleware around every endpoint: callers, load shedding, request ids, unhandled errors, audit log."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterator
from contextlib import contextmanager
from functools import partial
from time import perf_counter
from typing import Final

from starlette.concurrency import run_in_threadpool
from starlette.types import ASGIApp

from app.api.dependencies import AppContext
from app.api.probe_answers import ProbeAnswers
from app.auth.audit_writer import is_access_denial, request_line
from app.auth.local_requests import check_local
from app.auth.shares import Admission, counting, without_place, without_turn
from app.domain.audit_context import AuditContext, audit_context
from app.domain.entities import Caller
from app.domain.errors import NotAuthenticated, RateLimited, ServiceError, Unavailable
from app.domain.log_context import traced
from app.http.pages import error_response, needs_session, repeated_answer
from app.http.problem import NO_STORE, Problem, internal_problem, problem_of
from app.http.request_id import HEADER, request_id_for
from app.http.responses import send_response
from app.http.types import Message, Receive, Scope, Send
from app.processes.metrics import OVERFLOW_LABEL
from app.tracing import SERVER, begin

logger = logging.getLogger(__name__)

KEYLESS_SECONDS: Final = 10.0
"""Longest time until the response to a request that needs no API key begins."""

_NEEDS_KEY: Final = "/v1/"
"""Start of all paths that need an API key."""
_PROBES: Final = frozenset({"/livez", "/readyz", "/readyz/queries"})
"""Paths that every prober may ask, also on a server without keys."""
_REPEATED_PATHS: Final = frozenset({*_PROBES, "/metrics"})
"""Paths whose answers may be sent again without the endpoint."""
_PREDICT: Final = ":predict"
_READ_ONLY: Final = (_PREDICT, "/ui/ask", "/ui/theme")
"""Ends of the paths whose POST requests change nothing."""
_SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_UNCHANGED: Final = "request.unchanged"

_HTML_HEADERS: Final = (
    (
        b"content-security-policy",
        b"default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    (b"x-frame-options", b"DENY"),
)
"""Headers of every HTML response that does not set its own."""


class RequestMiddleware:
    """Identifies callers, sheds load, turns unhandled errors into a 500, and writes the audit log.

    The caller of a path that needs a key is decided from the headers, before the request takes a place and
    before any of its body is read. Other paths have few places of their own, by network, and a deadline.

    exempt: paths without a key that are answered under any load. streamed: paths whose bodies are written to
    disk as they arrive, so that they do not count in the byte budget.
    """

    def __init__(self, app: ASGIApp, exempt: Collection[str] = (), streamed: Collection[str] = ()) -> None:
        self._app = app
        self._exempt = frozenset(exempt)
        self._streamed = frozenset(streamed)
        self._probe_answers = ProbeAnswers()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        requested = next((value for name, value in scope["headers"] if name == HEADER), None)
        request_id = request_id_for(requested).decode("ascii")
        scope.setdefault("state", {})["request_id"] = request_id
        responder = _Responder(scope, send, request_id)
        with audit_context(_audit_context_of(scope, request_id)) as context, _traced(scope, responder):
            await self._respond(scope, receive, responder)
            await _record(scope, context)

    async def _respond(self, scope: Scope, receive: Receive, responder: _Responder) -> None:
        try:
            if scope["path"].startswith(_NEEDS_KEY) or needs_session(scope):
                await self._respond_to_caller(scope, receive, responder)
            else:
                await self._respond_without_key(scope, receive, responder)
        except ServiceError as error:
            await responder.send_problem(problem_of(error))
        except Exception:
            # The path as it arrived, percent-encoded: decoded it may contain line breaks.
            logger.exception("request %s: %s failed", responder.request_id, request_line(scope))
            if responder.status:
                raise
            await responder.send_problem(internal_problem())
        finally:
            if responder.admission is not None:
                responder.admission.close()

    async def _respond_to_caller(self, scope: Scope, receive: Receive, responder: _Responder) -> None:
        context = _app_context(scope)
        if context is None:
            raise Unavailable("The server is starting.")
        try:
            if needs_session(scope):
                key = await context.sessions.authenticate(scope)
            else:
                key = context.authenticator.authenticate(scope)
        except (NotAuthenticated, RateLimited, Unavailable):
            if context.authenticator.caller_of(scope["headers"]) is None:
                await context.budgets.wait_without_key(context.authenticator.address_of(scope))
            raise
        responder.refused_turn = partial(context.budgets.refused_turns.turn, Caller.of(key))
        is_upload = scope["path"] in self._streamed
        is_long = is_upload or scope["path"].endswith(_PREDICT)
        admission = responder.admission = context.budgets.of_request(key, is_long=is_long)
        scope["state"]["admission"] = admission
        admission.enter()
        await admission.start()
        if not is_upload:
            receive = counting(receive, admission)
        receive = without_place(receive, admission, is_upload=is_upload)
        app = repeated_answer(scope) or self._app
        await app(scope, receive, responder.send)

    async def _respond_without_key(self, scope: Scope, receive: Receive, responder: _Responder) -> None:
        try:
            async with asyncio.timeout(KEYLESS_SECONDS) as responder.deadline:
                try:
                    await self._answer_without_key(scope, receive, responder)
                finally:
                    responder.deadline = None
        except TimeoutError:
            await responder.send_problem(Problem(408, "too_slow", "The request took too long."))

    async def _answer_without_key(self, scope: Scope, receive: Receive, responder: _Responder) -> None:
        context = _app_context(scope)
        if context is not None:
            await _wait_for_turn(context, scope, is_probe=scope["path"] in self._exempt)
            responder.charge = context.budgets.keyless_turns.charge
            if scope["path"] not in _PROBES and not context.authenticator.requires_keys:
                check_local(dict(scope["headers"]), scope.get("http_version", "1.1"))
            if scope["path"] not in self._exempt:
                address = context.authenticator.address_of(scope)
                admission = responder.admission = context.budgets.of_keyless(address)
                if _has_body(scope):
                    admission.enter()
                await admission.start()
                receive = without_turn(receive, admission)
        if await self._probe_answers.repeat(scope, responder.send):
            return
        await self._app(scope, receive, self._probe_answers.keeping(scope, responder.send))


class _Responder:
    """Sends the response of one request, with the headers that every response has.

    status: 0 before the response starts. admission: what the request holds of the budgets, if anything.
    charge: called with the sizes of the parts of the body, if set. refused_turn: awaited before a response
    that refuses the request, if set, after what the request holds was given back. deadline: ends with the
    start of the response, if set, since from there on the server watches how the client reads.
    """

    def __init__(self, scope: Scope, send: Send, request_id: str) -> None:
        self._scope = scope
        self._send = send
        self.request_id = request_id
        self._arrived = perf_counter()
        self.status = 0
        self.admission: Admission | None = None
        self.charge: Callable[[int], None] | None = None
        self.refused_turn: Callable[[], Awaitable[None]] | None = None
        self.deadline: asyncio.Timeout | None = None

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = dict(message.get("headers", ()))
            content_type = headers.get(b"content-type", b"")
            if self.refused_turn is not None and 400 <= message["status"] < 500:
                if self.admission is not None:
                    self.admission.close()
                await self.refused_turn()
            self._start(message, headers, content_type)
        elif self.charge is not None:
            self.charge(len(message.get("body", b"")))
        await self._send(message)

    def _start(self, message: Message, headers: dict[bytes, bytes], content_type: bytes) -> None:
        """Add the common headers to ``message``, the start of the response."""
        self.status = message["status"]
        if self.deadline is not None:
            self.deadline.reschedule(None)
        added = [] if HEADER in headers else [(HEADER, self.request_id.encode("ascii"))]
        if b"cache-control" not in headers:
            added.append(NO_STORE)
        if content_type.startswith(b"text/html"):
            added += [header for header in _HTML_HEADERS if header[0] not in headers]
        message["headers"] = [*message.get("headers", ()), *added]
        self._count()
        if self.admission is not None:
            self.admission.respond()
            if content_type.startswith(b"text/event-stream"):
                self.admission.leave()

    def _count(self) -> None:
        context, problem = _app_context(self._scope), self._scope["state"].get("problem")
        if context is None:
            return
        method, route = _route_of(self._scope)
        context.metrics.responded(method, route, self.status, perf_counter() - self._arrived)
        if problem is not None:
            context.metrics.failed(problem.code)

    async def send_problem(self, problem: Problem) -> None:
        self._scope["state"]["problem"] = problem
        request_id = self.request_id.encode("ascii")
        response = error_response(problem, self._scope, request_id)
        await send_response(self.send, response, request_id)


def _has_body(scope: Scope) -> bool:
    """Whether a request announces a body."""
    headers = dict(scope["headers"])
    return b"transfer-encoding" in headers or headers.get(b"content-length", b"0") != b"0"


async def _wait_for_turn(context: AppContext, scope: Scope, *, is_probe: bool) -> None:
    """Let requests without a key take turns. Raises RateLimited beyond the limit of the client's address."""
    authenticator = context.authenticator
    address = authenticator.address_of(scope)
    await context.budgets.wait_without_key(address, is_probe=is_probe)
    if not is_probe:
        authenticator.rate_limiter.check_keyless(address)


def _audit_context_of(scope: Scope, request_id: str) -> AuditContext:
    """The audit context of a request; without an address before the application is open."""
    app = _app_context(scope)
    return (
        AuditContext(request_id=request_id) if app is None else app.audit_writer.context_of(scope, request_id)
    )


async def _record(scope: Scope, context: AuditContext) -> None:
    """Write the outcome of a request to the audit log, unless a use case did so together with its change.

    Errors of requests that change something are recorded, and of other requests those that deny access.
    """
    app = _app_context(scope)
    if app is None:
        return
    changes = scope["method"] not in _SAFE_METHODS and not scope["path"].endswith(_READ_ONLY)
    problem: Problem | None = scope["state"].get("problem")
    if problem is not None and (changes or is_access_denial(problem)):
        app.audit_writer.record_denial(scope, problem.code, context.request_id or "")
    elif changes and not context.recorded:
        await run_in_threadpool(
            app.audit_writer.write_now, _UNCHANGED, request_line(scope), "unchanged", context
        )


@contextmanager
def _traced(scope: Scope, responder: _Responder) -> Iterator[None]:
    """Record the request as a span, if it is sampled and its caller is not refused."""
    context = _app_context(scope)
    tracer = None if context is None else context.tracer
    header = None if tracer is None else dict(scope["headers"]).get(b"traceparent")
    if (
        context is not None
        and header is not None
        and context.authenticator.caller_of(scope["headers"]) is None
    ):
        # Only a caller with a valid key chooses the trace, and that there is one.
        header = None
    parent = None if tracer is None else tracer.sample(header)
    if tracer is None or parent is None:
        yield
        return
    span = begin("request", parent, kind=SERVER)
    try:
        with traced(span.context):
            yield
    finally:
        method, route = _route_of(scope)
        span.name = f"{method} {route}"
        span.attributes |= {
            "http.request.method": scope["method"],
            "http.route": route,
            "http.response.status_code": responder.status,
            "stms.request.id": responder.request_id,
        }
        if responder.status >= 500:
            span.error = str(responder.status)
        if responder.status != 401:
            tracer.finish(span)


def _route_of(scope: Scope) -> tuple[str, str]:
    """Method and path template of a request, or `OVERFLOW_LABEL` for both if it has reached no endpoint."""
    template = getattr(scope.get("route"), "path", None)
    if template is None:
        template = scope["path"] if scope["path"] in _REPEATED_PATHS else None
    return (OVERFLOW_LABEL, OVERFLOW_LABEL) if template is None else (scope["method"], template)


def _app_context(scope: Scope) -> AppContext | None:
    app = scope.get("app")
    return None if app is None else getattr(app.state, "context", None)
