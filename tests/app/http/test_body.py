"""Bodies in one message or in many, against the length that was promised and the limit."""

from __future__ import annotations

import asyncio
import tracemalloc

import pytest

from app.domain.errors import InvalidRequest, TooLarge
from app.http.body import declared_length, read_body, read_buffer
from app.http.types import Message

LIMIT = 1 << 20


def read(pieces: list[bytes], length: int | None = None, *, broken: bool = False) -> bytes:
    messages: list[Message] = [
        {"type": "http.request", "body": piece, "more_body": broken or i < len(pieces) - 1}
        for i, piece in enumerate(pieces)
    ]
    if broken:
        messages.append({"type": "http.disconnect"})

    async def receive() -> Message:
        return messages.pop(0)

    return bytes(asyncio.run(read_buffer(receive, length, LIMIT)))


@pytest.mark.parametrize("pieces", [[b""], [b"abc"], [b"a", b"", b"bc"], [b"", b"abc"], [b"ab", b"c", b""]])
@pytest.mark.parametrize("promised", [True, False])
def test_pieces_are_put_together(pieces: list[bytes], promised: bool):
    whole = b"".join(pieces)
    assert read(pieces, len(whole) if promised else None) == whole


@pytest.mark.parametrize("pieces", [[b"abc"], [b"a", b"bc"]])
@pytest.mark.parametrize("length", [0, 2, 4])
def test_a_broken_promise_is_refused(pieces: list[bytes], length: int):
    with pytest.raises(InvalidRequest) as caught:
        read(pieces, length)
    assert caught.value.reason == "truncated_upload"


def test_a_client_that_goes_away_has_sent_no_body():
    for length in (None, 100):
        with pytest.raises(InvalidRequest, match="went away"):
            read([b"abc"], length, broken=True)


def test_the_limit_holds_in_every_form():
    for pieces in ([bytes(LIMIT + 1)], [bytes(LIMIT), b"a"]):
        with pytest.raises(TooLarge):
            read(pieces)
    assert len(read([bytes(LIMIT)])) == LIMIT


@pytest.mark.parametrize("promised", [False, True])
def test_many_tiny_pieces_take_no_more_memory_than_the_body(promised: bool):
    def peak(n: int) -> int:
        left = n

        async def receive() -> Message:
            nonlocal left
            left -= 1
            # Each a bytes object of its own, as they come from a socket.
            return {"type": "http.request", "body": bytes([left % 251, 1]), "more_body": left > 0}

        async def size() -> int:
            return len(await read_buffer(receive, 2 * n if promised else None, LIMIT))

        tracemalloc.start()
        try:
            assert asyncio.run(size()) == 2 * n
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    peak(10)
    # A list of the pieces alone would take 8 MB.
    assert peak(200_000) < peak(10) + 1_500_000


def test_a_body_can_be_had_as_bytes():
    async def receive() -> Message:
        return {"type": "http.request", "body": b"abc"}

    assert asyncio.run(read_body(receive, 3, LIMIT)) == b"abc"


@pytest.mark.parametrize("value", [b"", b"-1", b"1.5", b"9" * 19, b"\xb2"])
def test_a_length_that_is_no_number_is_refused(value: bytes):
    with pytest.raises(InvalidRequest):
        declared_length(value, LIMIT)


def test_a_length_is_held_against_the_limit():
    assert declared_length(None, LIMIT) is None
    assert declared_length(b"12", LIMIT) == 12
    with pytest.raises(TooLarge):
        declared_length(b"%d" % (LIMIT + 1), LIMIT)
