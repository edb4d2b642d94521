"""Reading a bounded request body from ASGI messages."""

from __future__ import annotations

from collections.abc import AsyncIterator

import numpy as np

from app.domain.errors import InvalidRequest, TooLarge
from app.http.types import Body, Message, Receive


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
    return bytes(await read_buffer(receive, length, limit))


async def read_buffer(receive: Receive, length: int | None, limit: int) -> Body:
    """As `read_body`, without a last copy of a body that came in pieces."""
    message = await receive()
    whole = whole_body(message, length, limit)
    return await read_rest(message, receive, length, limit) if whole is None else whole


def whole_body(message: Message, length: int | None, limit: int) -> bytes | None:
    """The body, if the first message has all of it, else None; raises as `read_body`."""
    if message["type"] != "http.request" or message.get("more_body", False):
        return None
    body: bytes = message.get("body", b"")
    size = len(body)
    if size != length:
        _check_size(size, limit)
        _check_length(size, length)
    return body


async def read_rest(first: Message, receive: Receive, length: int | None, limit: int) -> Body:
    """The body that begins with the message ``first``; raises as `read_body`.

    Each piece goes to its place as it comes: a list of them would cost many times the body if they are tiny.
    Where the length is known the place is made at once. Its memory is taken from the system as it is filled,
    so a promised length alone costs nothing.
    """
    if length is None:
        grown = bytearray()
        async for piece in stream_body(receive, limit, first):
            grown += piece
        return grown
    body, size = np.empty(length, np.uint8).data, 0
    async for piece in stream_body(receive, limit, first):
        _check_promise(size + len(piece), length)
        body[size : size + len(piece)] = piece
        size += len(piece)
    _check_length(size, length)
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


def _check_promise(size: int, promised: int) -> None:
    if size > promised:
        raise truncated(f"The body goes on after {promised} bytes, which its Content-Length says.")


def _check_length(size: int, promised: int | None) -> None:
    if promised is not None and size != promised:
        raise truncated(f"The body has {size} bytes; its Content-Length says {promised}.")
