"""Frames of HTTP/2 by hand (RFC 9113), for what no client library does."""

from __future__ import annotations

import socket
import struct
from collections.abc import Mapping
from dataclasses import dataclass

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY = 0, 1, 3, 4, 6, 7
END_STREAM, END_HEADERS = 1, 4
INFER = "/inference.GRPCInferenceService/ModelInfer"


def frame(kind: int, flags: int, stream: int, content: bytes = b"") -> bytes:
    return struct.pack(">I", len(content))[1:] + struct.pack(">BBI", kind, flags, stream) + content


def headers(stream: int, metadata: Mapping[str, str], path: str = INFER, flags: int = END_HEADERS) -> bytes:
    """The head of a call: literal fields without an index (RFC 7541, 6.2.2), of at most 126 bytes each."""
    fields = {":method": "POST", ":scheme": "http", ":path": path, ":authority": "localhost"}
    fields |= {"content-type": "application/grpc", "te": "trailers", **metadata}
    encoded = [
        b"\0" + bytes([len(part)]) + part.encode() if place == 0 else bytes([len(part)]) + part.encode()
        for name_and_value in fields.items()
        for place, part in enumerate(name_and_value)
    ]
    return frame(HEADERS, flags, stream, b"".join(encoded))


@dataclass(frozen=True)
class Frame:
    kind: int
    flags: int
    stream: int
    content: bytes


class Connection:
    """A connection that has sent the preface and its settings."""

    def __init__(self, port: int, preface: bytes = PREFACE + frame(SETTINGS, 0, 0)) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=30)
        self.socket.sendall(preface)
        self._input = self.socket.makefile("rb")

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *_: object) -> None:
        self._input.close()
        self.socket.close()

    def send(self, *frames: bytes) -> None:
        self.socket.sendall(b"".join(frames))

    def next(self) -> Frame | None:
        """The next frame; None at the end. Raises TimeoutError and ConnectionError."""
        head = self._input.read(9)
        if len(head) < 9:
            return None
        kind, flags, stream = struct.unpack(">BBI", head[3:])
        return Frame(kind, flags, stream, self._input.read(int.from_bytes(head[:3])))

    def until_end_of(self, stream: int) -> bytes:
        """All header blocks of a stream until the server ends it."""
        blocks = b""
        while (found := self.next()) is not None:
            if found.stream == stream and found.kind == HEADERS:
                blocks += found.content
            if found.stream == stream and (found.kind == RST_STREAM or found.flags & END_STREAM):
                return blocks
        raise AssertionError("The connection ended.")

    def is_closed_by_server(self) -> bool:
        """Whether the server closes the connection, after the frames that it still sends."""
        try:
            while self.next() is not None:
                pass
        except TimeoutError:
            return False
        except ConnectionError:
            return True
        return True
