"""Reading a request body of bounded size from ASGI messages."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final

import numpy as np

from app.domain.errors import InvalidRequest, TooLarge
from app.http.types import Body, Message, Receive

_MAX_DEFLATE_RATIO: Final = 1032
"""Largest ratio of deflate's output to its input."""


def declared_length(value: bytes | None, limit: int) -> int | None:
    """The number of bytes in a Content-Length header; None without one.

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


def max_body_bytes(length: int | None, limit: int, *, compressed: bool) -> int:
    """The largest size in bytes that a body can have once it is decompressed, at most ``limit``.

    length: Content-Length, if there is one.
    """
    if length is None:
        return limit
    return min(limit, length * _MAX_DEFLATE_RATIO) if compressed else length


def whole_body(message: Message, length: int | None, limit: int) -> bytes | None:
    """The body if the first message contains all of it, otherwise None; raises as `read_rest`."""
    if message["type"] != "http.request" or message.get("more_body", False):
        return None
    body: bytes = message.get("body", b"")
    size = len(body)
    if size != length:
        _check_size(size, limit)
        _check_length(size, length)
    return body


async def read_rest(first: Message, receive: Receive, length: int | None, limit: int) -> Body:
    """The body of at most ``limit`` bytes that begins with the message ``first``.

    length: the Content-Length, if there is one. Each piece is copied to its position when it arrives, since
    a list of tiny pieces would take many times the memory of the body. With a known length the buffer is
    allocated in advance; the operating system provides its memory as it is filled, so a large Content-Length
    without a body costs nothing.

    Raises TooLarge, and InvalidRequest if the body ends early or is longer than declared.
    """
    if length is None:
        grown = bytearray()
        async for piece in stream_body(receive, limit, first):
            grown += piece
        return grown
    body, size = np.empty(length, np.uint8).data, 0
    async for piece in stream_body(receive, limit, first):
        _check_declared(size + len(piece), length)
        body[size : size + len(piece)] = piece
        size += len(piece)
    _check_length(size, length)
    return body


async def stream_body(
    receive: Receive, limit: int, first: Message | None = None, length: int | None = None
) -> AsyncIterator[bytes]:
    """The pieces of a body of at most ``limit`` bytes; raises as `read_rest`."""
    size = 0
    message = first if first is not None else await receive()
    while True:
        if message["type"] == "http.disconnect":
            raise truncated("The client disconnected before the body was complete.")
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
    """The error for a body of more than ``limit`` bytes."""
    return TooLarge(f"The body is larger than {limit} bytes.", code="body_too_large")


def truncated(message: str) -> InvalidRequest:
    """The error for a body that does not have its declared length."""
    return InvalidRequest(message, code="truncated_upload")


def _check_size(size: int, limit: int) -> None:
    if size > limit:
        raise too_large(limit)


def _check_declared(size: int, declared: int) -> None:
    if size > declared:
        raise truncated(f"The body continues after {declared} bytes, its Content-Length.")


def _check_length(size: int, declared: int | None) -> None:
    if declared is not None and size != declared:
        raise truncated(f"The body has {size} bytes; its Content-Length is {declared}.")
