"""Reading of bodies in one message or many, against their declared length and the limit."""

from __future__ import annotations

import asyncio
import tracemalloc

import pytest

from app.domain.errors import InvalidRequest, TooLarge
from app.http.body import declared_length, read_rest, whole_body
from app.http.types import Body, Message, Receive
from tests.refusals import refused_as

LIMIT = 1 << 20


async def read_all(receive: Receive, length: int | None) -> Body:
    first = await receive()
    body = whole_body(first, length, LIMIT)
    return await read_rest(first, receive, length, LIMIT) if body is None else body


def read(pieces: list[bytes], length: int | None = None, *, broken: bool = False) -> bytes:
    messages: list[Message] = [
        {"type": "http.request", "body": piece, "more_body": broken or i < len(pieces) - 1}
        for i, piece in enumerate(pieces)
    ]
    if broken:
        messages.append({"type": "http.disconnect"})

    async def receive() -> Message:
        return messages.pop(0)

    return bytes(asyncio.run(read_all(receive, length)))


@pytest.mark.parametrize("pieces", [[b""], [b"abc"], [b"a", b"", b"bc"], [b"", b"abc"], [b"ab", b"c", b""]])
@pytest.mark.parametrize("declared", [True, False])
def test_pieces_are_concatenated(pieces: list[bytes], declared: bool):
    whole = b"".join(pieces)
    assert read(pieces, len(whole) if declared else None) == whole


@pytest.mark.parametrize("pieces", [[b"abc"], [b"a", b"bc"]])
@pytest.mark.parametrize("length", [0, 2, 4])
def test_a_wrong_content_length_is_refused(pieces: list[bytes], length: int):
    with refused_as(InvalidRequest, "truncated_upload"):
        read(pieces, length)


def test_a_disconnect_during_the_body_is_an_error():
    for length in (None, 100):
        with pytest.raises(InvalidRequest, match="disconnected"):
            read([b"abc"], length, broken=True)


def test_the_limit_applies_to_whole_and_to_chunked_bodies():
    for pieces in ([bytes(LIMIT + 1)], [bytes(LIMIT), b"a"]):
        with pytest.raises(TooLarge):
            read(pieces)
    assert len(read([bytes(LIMIT)])) == LIMIT


@pytest.mark.long
@pytest.mark.parametrize("declared", [False, True])
def test_many_tiny_pieces_take_no_more_memory_than_the_body(declared: bool):
    def peak(n: int) -> int:
        left = n

        async def receive() -> Message:
            nonlocal left
            left -= 1
            # Each a bytes object of its own, as they come from a socket.
            return {"type": "http.request", "body": bytes([left % 251, 1]), "more_body": left > 0}

        async def size() -> int:
            return len(await read_all(receive, 2 * n if declared else None))

        tracemalloc.start()
        try:
            assert asyncio.run(size()) == 2 * n
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    peak(10)
    # A list of the pieces alone would take 8 MB.
    assert peak(200_000) < peak(10) + 1_500_000


@pytest.mark.parametrize("value", [b"", b"-1", b"1.5", b"9" * 19, b"\xb2"])
def test_a_content_length_that_is_no_number_is_refused(value: bytes):
    with refused_as(InvalidRequest, "bad_content_length"):
        declared_length(value, LIMIT)


def test_a_content_length_beyond_the_limit_is_refused():
    assert declared_length(None, LIMIT) is None
    assert declared_length(b"12", LIMIT) == 12
    with pytest.raises(TooLarge):
        declared_length(b"%d" % (LIMIT + 1), LIMIT)
