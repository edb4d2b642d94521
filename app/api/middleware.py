"""What happens to every request around any endpoint: its name, its limits, the last resort, its record."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.api.recording import deed_of, record
from app.domain.audit_context import acting
from app.domain.errors import Overloaded, ServiceError
from app.http.body import declared_length, read_body
from app.http.problem import NO_STORE, Problem, internal_problem, problem_of
from app.http.request_id import HEADER, request_id_of
from app.settings import Settings

logger = logging.getLogger(__name__)

_ALWAYS: Final = frozenset({"/livez", "/readyz", "/metrics", "/version"})
_STREAM: Final = b"text/event-stream"
_PAGE: Final = b"text/html"

_STREAMED = {"/v1/datasets", "/v1/teachers"}

_OF_PAGES: Final = (
    (
        b"content-security-policy",
        b"default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    (b"x-frame-options", b"DENY"),
)
"""Headers of whatever a browser would show as a page, unless it has its own."""


class RequestGate:
    """ASGI middleware: names the request, reads its bounded body, and answers what nobody caught with a 500.

    Data sets and heads pass unread: their endpoints stream them and have limits of their own.
    """

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self._app = app
        self._settings = settings
        self._inflight = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = request_id_of(scope["headers"])
        scope.setdefault("state", {})["request_id"] = request_id
        answer = _Answer(send, request_id, self._leave)
        with acting(deed_of(scope, request_id)) as deed:
            await self._answer(scope, receive, answer)
            await record(scope, deed)

    async def _answer(self, scope: Scope, receive: Receive, answer: _Answer) -> None:
        try:
            if scope["path"] in _ALWAYS:
                answer.left = True
            else:
                self._enter()
            await self._app(scope, await self._bounded(scope, receive), answer.send)
        except ServiceError as error:
            await answer.refuse(problem_of(error), scope)
        except Exception:
            logger.exception("request %s: %s %s failed", answer.request_id, scope["method"], scope["path"])
            if answer.status:
                raise
            await answer.refuse(internal_problem(), scope)
        finally:
            answer.leave()

    def _enter(self) -> None:
        self._inflight += 1
        if self._inflight > self._settings.max_inflight_requests:
            raise Overloaded(f"{self._settings.max_inflight_requests} requests are under way already.")

    def _leave(self) -> None:
        self._inflight -= 1

    async def _bounded(self, scope: Scope, receive: Receive) -> Receive:
        """The same body, read and found to be within its limit."""
        limit = self._limit(scope["method"], scope["path"])
        headers = dict(scope["headers"])
        if limit is None or not (b"content-length" in headers or b"transfer-encoding" in headers):
            return receive
        length = declared_length(headers.get(b"content-length"), limit)
        body: bytes | None = await read_body(receive, length, limit)

        async def again() -> Message:
            nonlocal body
            if body is None:
                return await receive()
            message, body = {"type": "http.request", "body": body, "more_body": False}, None
            return message

        return again

    def _limit(self, method: str, path: str) -> int | None:
        if method == "POST" and path in _STREAMED:
            return None
        return self._settings.max_query_bytes if path.endswith(":predict") else self._settings.max_body_bytes


class _Answer:
    """The way out: puts on the answer what every one has, knows how far it is, and counts out once.

    status: 0 before it has begun.
    """

    def __init__(self, send: Send, request_id: str, leave: Callable[[], None]) -> None:
        self._send = send
        self.request_id = request_id
        self._leave = leave
        self.status = 0
        self.left = False

    def leave(self) -> None:
        if not self.left:
            self.left = True
            self._leave()

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = [*message.get("headers", ()), (HEADER, self.request_id.encode("ascii"))]
            said = dict(headers)
            kind = said.get(b"content-type", b"")
            if b"cache-control" not in said:
                headers.append(NO_STORE)
            if kind.startswith(_PAGE):
                headers += [header for header in _OF_PAGES if header[0] not in said]
            message["headers"] = headers
            if kind.startswith(_STREAM):
                self.leave()
        await self._send(message)

    async def refuse(self, problem: Problem, scope: Scope) -> None:
        scope["state"]["problem"] = problem
        body = problem.body(self.request_id, scope["raw_path"].decode("latin-1"))
        headers = [*problem.headers(), (b"content-length", str(len(body)).encode())]
        await self.send({"type": "http.response.start", "status": problem.status, "headers": headers})
        await self.send({"type": "http.response.body", "body": body})
