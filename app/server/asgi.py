"""ASGI applications that replace or wrap the service's application on single connections."""

from __future__ import annotations

from collections.abc import Callable

from app.http.problem import Problem
from app.http.request_id import request_id_for
from app.http.responses import Response, problem_response, send_response
from app.http.types import Application, Message, Receive, Scope, Send


def with_connection_close(application: Application, is_last: Callable[[], bool]) -> Application:
    """Wrap an application: a response gets ``Connection: close`` if ``is_last()`` when it starts."""

    async def wrapped(scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_close(message: Message) -> None:
            if message["type"] == "http.response.start" and is_last():
                message = {**message, "headers": [*message.get("headers", ()), (b"connection", b"close")]}
            await send(message)

        await application(scope, receive, send_with_close)

    return wrapped


async def too_many_connections(scope: Scope, _receive: Receive, send: Send) -> None:
    """Respond to every request with 429 and close the connection."""
    problem = Problem(429, "too_many_connections", "Too many connections are open.", retry_after=1.0)
    request_id = request_id_for(None)
    await send_response(send, closing_response(problem, request_id, scope["raw_path"]), request_id)


def closing_response(problem: Problem, request_id: bytes, raw_path: bytes) -> Response:
    """A problem response that announces the end of the connection."""
    response = problem_response(problem, request_id, raw_path)
    response.headers = [*response.headers, (b"connection", b"close")]
    return response
