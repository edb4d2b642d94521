"""Errors in the form of gRPC: the only place where a failed call gets its status."""

from __future__ import annotations

import math
from http import HTTPStatus
from typing import Final

import grpc
from grpc.aio import ServicerContext

from app.http.problem import NO_STORE, Problem
from app.serving.open_inference.grpc.messages import serialized

STATUS_OF: Final = {
    400: grpc.StatusCode.INVALID_ARGUMENT,
    401: grpc.StatusCode.UNAUTHENTICATED,
    403: grpc.StatusCode.PERMISSION_DENIED,
    404: grpc.StatusCode.NOT_FOUND,
    409: grpc.StatusCode.FAILED_PRECONDITION,
    412: grpc.StatusCode.FAILED_PRECONDITION,
    413: grpc.StatusCode.RESOURCE_EXHAUSTED,
    415: grpc.StatusCode.INVALID_ARGUMENT,
    422: grpc.StatusCode.INVALID_ARGUMENT,
    428: grpc.StatusCode.FAILED_PRECONDITION,
    429: grpc.StatusCode.RESOURCE_EXHAUSTED,
    503: grpc.StatusCode.UNAVAILABLE,
}
"""gRPC statuses for the HTTP statuses of `app.http.problem`; INTERNAL for all others."""

CODE: Final = "stms-code"
REQUEST_ID: Final = "x-request-id"
_LEFT_OUT: Final = (b"content-type", NO_STORE[0], b"www-authenticate", b"allow")
"""Headers that mean nothing here."""
_MAX_DETAIL: Final = 1000
"""Bytes of a detail: percent-encoded they take three times as much, and clients accept 8 KiB in all."""
_RETRY_INFO: Final = "type.googleapis.com/google.rpc.RetryInfo"


def detail_of(problem: Problem) -> str:
    """The sentence of a problem for people, cut; what it quotes of a request need not be encodable."""
    return problem.detail.encode("utf-8", "replace")[:_MAX_DETAIL].decode("utf-8", "ignore")


def metadata_of(problem: Problem, request_id: bytes) -> list[tuple[str, str | bytes]]:
    """The trailing metadata of a call that failed."""
    metadata: list[tuple[str, str | bytes]] = [(CODE, problem.code), (REQUEST_ID, request_id.decode())]
    metadata += [
        (name.decode(), value.decode()) for name, value in problem.headers() if name not in _LEFT_OUT
    ]
    if problem.retry_after is not None:
        delay = serialized("RetryInfo", retry_delay={"seconds": max(1, math.ceil(problem.retry_after))})
        details = serialized(
            "Status",
            code=status_of(problem).value[0],
            message=detail_of(problem),
            details=[{"type_url": _RETRY_INFO, "value": delay}],
        )
        metadata.append(("grpc-status-details-bin", details))
    return metadata


def status_of(problem: Problem) -> grpc.StatusCode:
    """The status of a call with this problem."""
    return STATUS_OF.get(problem.status, grpc.StatusCode.INTERNAL)


async def refuse(context: ServicerContext[bytes, bytes], problem: Problem, request_id: bytes) -> None:
    """End a call with a problem; raises gRPC's exception for this."""
    await context.abort(status_of(problem), detail_of(problem), tuple(metadata_of(problem, request_id)))


def shutting_down() -> Problem:
    """The problem of a stream that ends because its process does."""
    detail = "The server is shutting down; repeat what has no answer over a new connection."
    return Problem(HTTPStatus.SERVICE_UNAVAILABLE, "shutting_down", detail, retry_after=1.0)


def key_ended() -> Problem:
    """The problem of a stream whose API key was revoked, or has expired."""
    return Problem(HTTPStatus.UNAUTHORIZED, "invalid_key", "The API key is not valid any more.")
