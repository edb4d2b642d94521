"""Responses as ASGI messages and as bytes."""

from __future__ import annotations

from dataclasses import dataclass
from http import HTTPStatus

from app.http.problem import Problem
from app.http.request_id import HEADER
from app.http.types import Header, HeaderList, Send


@dataclass(slots=True)
class Response:
    """A complete response. headers: without Content-Length and X-Request-ID, which are added on sending."""

    body: bytes
    headers: HeaderList
    status: int = 200


def problem_response(problem: Problem, request_id: bytes, raw_path: bytes) -> Response:
    """The problem+json document about a request. raw_path: of the request, percent-encoded as it arrived."""
    body = problem.body(request_id.decode("ascii"), raw_path.decode("latin-1"))
    return Response(body, problem.headers(), problem.status)


async def send_response(send: Send, response: Response, request_id: bytes) -> None:
    """Send a response as two ASGI messages."""
    headers = headers_of(response, request_id)
    await send({"type": "http.response.start", "status": response.status, "headers": headers})
    await send({"type": "http.response.body", "body": response.body})


def headers_of(response: Response, request_id: bytes) -> list[Header]:
    """All headers of a response."""
    return [
        *response.headers,
        (b"content-length", b"%d" % len(response.body)),
        (HEADER, request_id),
    ]


def encode_response(response: Response, request_id: bytes, more: HeaderList = ()) -> bytes:
    """A response as HTTP/1.1 bytes, for errors before there is a request. more: headers that come first."""
    status = HTTPStatus(response.status)
    lines = b"".join(b"%s: %s\r\n" % header for header in (*more, *headers_of(response, request_id)))
    head = f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode("ascii")
    return head + lines + b"\r\n" + response.body
