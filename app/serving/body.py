"""Reading a bounded request body from ASGI messages."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from typing import Any, TypeAlias

from app.domain.errors import InvalidRequest, TooLarge

Scope: TypeAlias = MutableMapping[str, Any]
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]


def declared_length(value: bytes | None, limit: int) -> int | None:
    """The Content-Length of a request, None where it has none.

    Raises InvalidRequest for anything that is not a number of bytes and TooLarge beyond ``limit``.
    """
    if value is None:
        return None
    if not value.isdigit() or len(value) > 18:
        raise InvalidRequest("Content-Length is not a number of bytes.", code="bad_content_length")
    length = int(value)
    if length > limit:
        raise too_large(limit)
    return length


async def read_body(receive: Receive, length: int | None, limit: int) -> bytes:
    """The whole body of at most ``limit`` bytes; ``length`` is what Content-Length promised.

    Raises TooLarge, and InvalidRequest when the body ends early or is longer than promised.
    """
    message = await receive()
    if message["type"] == "http.request" and not message.get("more_body", False):
        body: bytes = message.get("body", b"")
        _check_size(len(body), limit)
    else:
        pieces = bytearray()
        async for piece in stream_body(receive, limit, message):
            pieces += piece
        body = bytes(pieces)
    _check_length(len(body), length)
    return body


async def stream_body(
    receive: Receive, limit: int, first: Message | None = None, length: int | None = None
) -> AsyncIterator[bytes]:
    """The body piece by piece, never more than ``limit`` bytes; raises as `read_body`."""
    size = 0
    message = first if first is not None else await receive()
    while True:
        if message["type"] == "http.disconnect":
            raise truncated("The client went away before the body was complete.")
        piece: bytes = message.get("body", b"")
        size += len(piece)
        _check_size(size, limit)
        if piece:
            yield piece
        if not message.get("more_body", False):
            break
        message = await receive()
    _check_length(size, length)


def too_large(limit: int) -> TooLarge:
    """The error of a body beyond ``limit`` bytes."""
    return TooLarge(f"The body is larger than {limit} bytes.", code="body_too_large")


def truncated(message: str) -> InvalidRequest:
    """The error of a body that is not as long as promised."""
    return InvalidRequest(message, code="truncated_upload")


def _check_size(size: int, limit: int) -> None:
    if size > limit:
        raise too_large(limit)


def _check_length(size: int, promised: int | None) -> None:
    if promised is not None and size != promised:
        raise truncated(f"The body has {size} bytes; its Content-Length says {promised}.")
