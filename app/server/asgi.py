"""ASGI applications that replace or wrap the service's application on single connections."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeAlias

from app.http.problem import Problem
from app.http.request_id import HEADER, new_request_id
from app.http.types import Message, Receive, Scope, Send

Application: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]


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
    headers, body = encode_problem(problem, scope["raw_path"].decode("latin-1"))
    await send({"type": "http.response.start", "status": problem.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def encode_problem(problem: Problem, path: str) -> tuple[list[tuple[bytes, bytes]], bytes]:
    """Headers and body of a problem response that closes the connection, with a new request id."""
    request_id = new_request_id()
    body = problem.body(request_id, path)
    headers = [
        *problem.headers(),
        (b"content-length", b"%d" % len(body)),
        (b"connection", b"close"),
        (HEADER, request_id.encode()),
    ]
    return headers, body
