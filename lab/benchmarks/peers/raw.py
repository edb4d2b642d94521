"""The limit of a Python server: uvloop and httptools without anything else answer fixed bytes.

python -m lab.benchmarks.peers.raw PORT ANSWER_BYTES
"""

from __future__ import annotations

import asyncio
import sys
from typing import cast

import httptools
import uvloop


class Raw(asyncio.Protocol):
    """Parses requests, and writes the same response to each."""

    def __init__(self, response: bytes) -> None:
        self._response = response

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._parser = httptools.HttpRequestParser(self)

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_message_complete(self) -> None:
        """Answer a request."""
        self._transport.write(self._response)


async def serve(port: int, answer_bytes: int) -> None:
    """Answer until the process is stopped."""
    lines = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {answer_bytes}\r\n\r\n"
    response = lines.encode() + b"a" * answer_bytes
    server = await asyncio.get_running_loop().create_server(lambda: Raw(response), "127.0.0.1", port)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1]), int(sys.argv[2])))
