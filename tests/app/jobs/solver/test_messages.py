from __future__ import annotations

import io
import struct

import msgspec
import pytest

from app.jobs.solver import messages
from app.jobs.solver.messages import BrokenFrame, Frame, read_frame, write_frame


def written(header: dict, *blobs: bytes) -> bytes:
    stream = io.BytesIO()
    write_frame(stream, header, blobs)
    return stream.getvalue()


def packed(header: object) -> bytes:
    encoded = msgspec.json.encode(header)
    return struct.pack(">I", len(encoded)) + encoded


def test_frames_come_back_as_they_were_sent():
    stream = io.BytesIO(written({"type": "a", "x": [1, "ü"]}, b"", b"\0\xff") + written({"type": "b"}))
    assert read_frame(stream) == Frame({"type": "a", "x": [1, "ü"]}, (b"", b"\0\xff"))
    assert read_frame(stream) == Frame({"type": "b"})
    assert read_frame(stream) is None


@pytest.mark.parametrize("cut", [1, 3, 4, 10, -1])
def test_a_frame_cut_short_is_the_end(cut):
    assert read_frame(io.BytesIO(written({"type": "a"}, b"bytes")[:cut])) is None


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
def test_what_is_no_frame_is_refused(content):
    with pytest.raises(BrokenFrame):
        read_frame(io.BytesIO(content))
