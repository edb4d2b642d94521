"""A balancer that learns late that a server ends, as those of Kubernetes do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress


class LateProxy:
    """Forwards each connection to one of its servers, in turn.

    ports: of loopback, from which `leave_out` takes one. refused: connections that a server has refused.
    cut: those that a server closed without an answer.
    """

    def __init__(self, ports: list[int]) -> None:
        self.ports = list(ports)
        self.refused = self.cut = self.forwarded = 0
        self.port = 0
        self._open = 0

    def leave_out(self, port: int) -> None:
        """Send nothing to a server any more."""
        self.ports.remove(port)

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[None]:
        """Listen at `port`, which is chosen by the system."""
        server = await asyncio.start_server(self._forward, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        async with server:
            yield
        while self._open:
            await asyncio.sleep(0.01)

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open += 1
        try:
            await self._pass_on(reader, writer)
        finally:
            self._open -= 1

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        port = self.ports[self.forwarded % len(self.ports)]
        self.forwarded += 1
        try:
            above = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            self.refused += 1
            writer.close()
            return
        up = asyncio.create_task(_copy(reader, above[1]))
        down = asyncio.create_task(_copy(above[0], writer))
        done, _ = await asyncio.wait((up, down), return_when=asyncio.FIRST_COMPLETED)
        self.cut += down in done and not down.result()
        for end in (writer, above[1]):
            end.close()
        await asyncio.wait((up, down))


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> int:
    """Pass bytes on until the end; returns their number."""
    size = 0
    with suppress(OSError):
        while data := await reader.read(65536):
            size += len(data)
            writer.write(data)
            await writer.drain()
    return size
