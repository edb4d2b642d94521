from __future__ import annotations

import io
import struct

import msgspec
import pytest

from app.jobs.errors import InvalidMessage
from app.jobs.solver import messages
from app.jobs.solver.messages import Message, read_message, write_message


def written(header: dict, *blobs: bytes) -> bytes:
    stream = io.BytesIO()
    write_message(stream, header, blobs)
    return stream.getvalue()


def packed(header: object) -> bytes:
    encoded = msgspec.json.encode(header)
    return struct.pack(">I", len(encoded)) + encoded


def test_messages_are_read_as_they_were_written():
    stream = io.BytesIO(written({"type": "a", "x": [1, "ü"]}, b"", b"\0\xff") + written({"type": "b"}))
    assert read_message(stream) == Message({"type": "a", "x": [1, "ü"]}, (b"", b"\0\xff"))
    assert read_message(stream) == Message({"type": "b"})
    assert read_message(stream) is None


@pytest.mark.parametrize("cut", [1, 3, 4, 10, -1])
def test_a_truncated_message_is_the_end_of_the_stream(cut):
    assert read_message(io.BytesIO(written({"type": "a"}, b"bytes")[:cut])) is None


@pytest.mark.parametrize(
    "content",
    [
        struct.pack(">I", 4) + b"nope",
        packed([1]),
        packed({"type": "a"}),
        packed({"type": "a", "sizes": "many"}),
        packed({"type": "a", "sizes": [-1]}),
        packed({"type": "a", "sizes": [messages.MAX_BLOB_BYTES + 1]}),
        packed({"type": 3, "sizes": []}),
        packed({"sizes": []}),
        struct.pack(">I", messages.MAX_HEADER_BYTES + 1),
    ],
)
def test_invalid_bytes_are_refused(content):
    with pytest.raises(InvalidMessage):
        read_message(io.BytesIO(content))
