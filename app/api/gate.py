"""What happens to every request before any endpoint: its name, the limit of its body, the last resort."""

from __future__ import annotations

import logging

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.api.problem import Problem, internal_problem, problem_of
from app.api.request_id import HEADER, request_id_of
from app.domain.errors import ServiceError
from app.serving.body import declared_length, read_body
from app.settings import Settings

logger = logging.getLogger(__name__)


class RequestGate:
    """ASGI middleware: names the request, reads its bounded body, and answers what nobody caught with a 500.

    Data sets pass unread: their endpoint streams them and has a limit of its own.
    """

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self._app = app
        self._settings = settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = request_id_of(scope["headers"])
        scope.setdefault("state", {})["request_id"] = request_id
        answer = _Answer(send, request_id)
        try:
            await self._app(scope, await self._bounded(scope, receive), answer.send)
        except ServiceError as error:
            await answer.refuse(problem_of(error), scope)
        except Exception:
            logger.exception("request %s: %s %s failed", request_id, scope["method"], scope["path"])
            if answer.started:
                raise
            await answer.refuse(internal_problem(), scope)

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
        if method == "POST" and path == "/v1/datasets":
            return None
        return self._settings.max_query_bytes if path.endswith(":predict") else self._settings.max_body_bytes


class _Answer:
    """The way out: puts the request's name on the answer and knows whether it has begun."""

    def __init__(self, send: Send, request_id: str) -> None:
        self._send = send
        self._request_id = request_id
        self.started = False

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.started = True
            message["headers"] = [*message.get("headers", ()), (HEADER, self._request_id.encode("ascii"))]
        await self._send(message)

    async def refuse(self, problem: Problem, scope: Scope) -> None:
        body = problem.body(self._request_id, scope["raw_path"].decode("latin-1"))
        headers = [*problem.headers(), (b"content-length", str(len(body)).encode())]
        await self.send({"type": "http.response.start", "status": problem.status, "headers": headers})
        await self.send({"type": "http.response.body", "body": body})
