"""A TCP proxy that resets or stalls its connections on demand."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
from collections.abc import Coroutine
from typing import Any

_CHUNK = 1 << 16
_RESET = struct.pack("ii", 1, 0)
"""SO_LINGER with timeout 0: closing the socket sends RST instead of FIN."""


class Proxy:
    """Forwards connections from a free port of 127.0.0.1 to ``host:port``, in its own thread."""

    def __init__(self, port: int, host: str = "127.0.0.1") -> None:
        self._target = (host, port)
        self._writers: set[asyncio.StreamWriter] = set()
        self._loop = asyncio.new_event_loop()
        self._flowing = asyncio.Event()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self._thread.start()
        self._server = self._call(asyncio.start_server(self._accept, "127.0.0.1", 0))
        self.port = int(self._server.sockets[0].getsockname()[1])
        self.resume()

    def reset(self) -> int:
        """Reset every connection on both sides. Returns their number."""
        return int(self._call(self._reset()))

    def stall(self) -> None:
        """Stop forwarding. Open connections stay open, and new ones are accepted but not connected."""
        self._loop.call_soon_threadsafe(self._flowing.clear)

    def resume(self) -> None:
        """Forward again."""
        self._loop.call_soon_threadsafe(self._flowing.set)

    def close(self) -> None:
        """Stop the proxy and close all connections."""
        self._call(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _call(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    async def _reset(self) -> int:
        broken = list(self._writers)
        for writer in broken:
            connection = writer.get_extra_info("socket")
            # The other side may have closed the connection meanwhile.
            with contextlib.suppress(OSError):
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            writer.transport.abort()
        return len(broken) // 2

    async def _close(self) -> None:
        self._server.close()
        self._flowing.set()
        await self._reset()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._remember_task()
        self._writers.add(writer)
        try:
            await self._flowing.wait()
            onward_reader, onward = await asyncio.open_connection(*self._target)
        except (OSError, asyncio.CancelledError):
            self._drop(writer)
            return
        self._writers.add(onward)
        try:
            await asyncio.gather(self._pass(reader, onward), self._pass(onward_reader, writer))
        except (OSError, asyncio.CancelledError):
            # One side broke the connection; the other side is closed below. Cancellation happens only in
            # `close`, and asyncio's server would log a cancelled task as an error.
            return
        finally:
            self._drop(writer)
            self._drop(onward)

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(_CHUNK):
            await self._flowing.wait()
            writer.write(data)
            await writer.drain()
        writer.write_eof()

    def _remember_task(self) -> None:
        task = asyncio.current_task()
        if task is not None:
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _drop(self, writer: asyncio.StreamWriter) -> None:
        self._writers.discard(writer)
        writer.transport.abort()
