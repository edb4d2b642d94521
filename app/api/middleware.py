"""ASGI middleware around every endpoint: request ids, load shedding, unhandled errors, and the audit log."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from typing import Final

from starlette.concurrency import run_in_threadpool
from starlette.types import ASGIApp

from app.api.dependencies import AppContext
from app.api.errors import body_too_large
from app.auth.audit_writer import is_access_denial, request_line
from app.domain.audit_context import AuditContext, audit_context
from app.domain.errors import Overloaded, ServiceError
from app.http.problem import NO_STORE, Problem, internal_problem, problem_of
from app.http.request_id import HEADER, request_id_for
from app.http.responses import problem_response, send_response
from app.http.types import Message, Receive, Scope, Send

logger = logging.getLogger(__name__)

READ_ONLY_TAG: Final = "queries"
"""OpenAPI tag of the POST endpoints that change nothing."""

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
    """Gives each request an id, sheds load, turns unhandled errors into a 500, and writes the audit log.

    max_inflight: requests in progress before new ones get 429. exempt: paths that are not counted.
    """

    def __init__(self, app: ASGIApp, max_inflight: int, exempt: Collection[str] = ()) -> None:
        self._app = app
        self._max_inflight = max_inflight
        self._exempt = frozenset(exempt)
        self._inflight = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        requested = next((value for name, value in scope["headers"] if name == HEADER), None)
        request_id = request_id_for(requested).decode("ascii")
        scope.setdefault("state", {})["request_id"] = request_id
        responder = _Responder(scope, send, request_id, self._leave)
        with audit_context(_audit_context_of(scope, request_id)) as context:
            await self._respond(scope, receive, responder)
            await _record(scope, context)

    async def _respond(self, scope: Scope, receive: Receive, responder: _Responder) -> None:
        try:
            if scope["path"] in self._exempt:
                responder.left = True
            else:
                self._enter()
            await self._app(scope, receive, responder.send)
        except ServiceError as error:
            await responder.send_problem(problem_of(error))
        except Exception:
            logger.exception("request %s: %s %s failed", responder.request_id, scope["method"], scope["path"])
            if responder.status:
                raise
            await responder.send_problem(internal_problem())
        finally:
            responder.leave()

    def _enter(self) -> None:
        self._inflight += 1
        if self._inflight > self._max_inflight:
            raise Overloaded(f"{self._max_inflight} requests are in progress already.")

    def _leave(self) -> None:
        self._inflight -= 1


class _Responder:
    """Sends the response of one request, with the headers that every response has.

    status: 0 before the response starts. left: whether the request no longer counts as in progress.
    """

    def __init__(self, scope: Scope, send: Send, request_id: str, leave: Callable[[], None]) -> None:
        self._scope = scope
        self._send = send
        self.request_id = request_id
        self._leave = leave
        self._replaced = False
        self.status = 0
        self.left = False

    def leave(self) -> None:
        if not self.left:
            self.left = True
            self._leave()

    async def send(self, message: Message) -> None:
        if self._replaced:
            return
        if message["type"] == "http.response.start":
            headers = dict(message.get("headers", ()))
            content_type = headers.get(b"content-type", b"")
            if message["status"] == 413 and content_type.startswith(b"text/plain"):
                # Starlette's body limit answers 413 with plain text instead of a problem document.
                await self.send_problem(body_too_large(self._scope))
                self._replaced = True
                return
            self._start(message, headers, content_type)
        await self._send(message)

    def _start(self, message: Message, headers: dict[bytes, bytes], content_type: bytes) -> None:
        """Add the common headers to ``message``, the start of the response."""
        self.status = message["status"]
        added = [] if HEADER in headers else [(HEADER, self.request_id.encode("ascii"))]
        if b"cache-control" not in headers:
            added.append(NO_STORE)
        if content_type.startswith(b"text/html"):
            added += [header for header in _HTML_HEADERS if header[0] not in headers]
        message["headers"] = [*message.get("headers", ()), *added]
        if content_type.startswith(b"text/event-stream"):
            self.leave()

    async def send_problem(self, problem: Problem) -> None:
        self._scope["state"]["problem"] = problem
        request_id = self.request_id.encode("ascii")
        response = problem_response(problem, request_id, self._scope["raw_path"])
        await send_response(self.send, response, request_id)


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
    read_only = READ_ONLY_TAG in getattr(scope.get("route"), "tags", ())
    changes = scope["method"] not in _SAFE_METHODS and not read_only
    problem: Problem | None = scope["state"].get("problem")
    if problem is not None and (changes or is_access_denial(problem)):
        app.audit_writer.record_denial(scope, problem.code, context.request_id or "")
    elif changes and not context.recorded:
        await run_in_threadpool(
            app.audit_writer.write_now, _UNCHANGED, request_line(scope), "unchanged", context
        )


def _app_context(scope: Scope) -> AppContext | None:
    app = scope.get("app")
    return None if app is None else getattr(app.state, "context", None)
