"""The minimal Python server: it reads the body and answers fixed bytes.

python -m lab.benchmarks.peers.bare PORT ANSWER_BYTES
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import uvicorn

Message = MutableMapping[str, Any]


class Bare:
    """An ASGI application that answers every request with the same bytes."""

    def __init__(self, answer_bytes: int) -> None:
        self._body = b"a" * answer_bytes
        length = str(answer_bytes).encode()
        self._headers = [(b"content-type", b"application/json"), (b"content-length", length)]

    async def __call__(
        self,
        _scope: Message,
        receive: Callable[[], Awaitable[Message]],
        send: Callable[[Message], Awaitable[None]],
    ) -> None:
        pieces = []
        more = True
        while more:
            message = await receive()
            pieces.append(message.get("body", b""))
            more = message.get("more_body", False)
        b"".join(pieces)
        await send({"type": "http.response.start", "status": 200, "headers": self._headers})
        await send({"type": "http.response.body", "body": self._body})


def serve(application: Any, port: int) -> None:
    """Run the handler with the uvicorn settings of our own server."""
    uvicorn.run(
        application,
        port=port,
        http="httptools",
        loop="uvloop",
        lifespan="off",
        access_log=False,
        server_header=False,
        log_level="warning",
    )


if __name__ == "__main__":
    serve(Bare(int(sys.argv[2])), int(sys.argv[1]))
