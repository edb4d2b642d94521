"""The socket for clients of gRPC: it limits their connections, and relays bytes to gRPC itself.

gRPC only has a limit for all connections together, and each new call costs the event loop some tenths
of a millisecond. Here each network has a share of the connections, and new connections wait for their turn.
Only then does gRPC, which listens on a Unix socket, see them.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

from app.http.client_address import socket_name
from app.processes.listener import listen
from app.server.context import ServerContext

logger = logging.getLogger("uvicorn.error")
"""The log that the server sets up."""

FILES_OF_CONNECTION: Final = 3
"""Open files of one connection: that of the client, and both ends of the connection to gRPC."""


class GrpcFront:
    """Accepts connections of clients, and relays them to gRPC.

    path: of the Unix socket of gRPC, in a folder that no other user may enter; sockets of the relay are in
    the same folder. context: the limits; it counts refused connections. wait: returns when a connection from
    an address has its turn. connections: open ones. waiting: those before their turn, the oldest first.
    """

    def __init__(self, path: Path, context: ServerContext, wait: Callable[[str], Awaitable[None]]) -> None:
        self._path, self._wait = path, wait
        self._server: asyncio.Server | None = None
        self.context = context
        self.connections: set[ClientSide] = set()
        self.waiting: dict[ClientSide, None] = {}

    async def start(self, host: str, port: int) -> None:
        """Listen on a port, which other processes of the service may share. Raises CannotListen."""
        listener = listen(host, port, is_shared=True)
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: ClientSide(self), sock=listener)

    def stop(self) -> None:
        """Accept no more connections; relayed ones continue, and waiting ones are closed."""
        if self._server is not None:
            self._server.close()
        for connection in list(self.waiting):
            connection.close()

    def make_room(self) -> None:
        """If there are too many connections, close the one that has waited longest.

        Networks take turns, so it probably belongs to a network with many connections.
        """
        if len(self.connections) > self.context.max_connections:
            self.context.refused["connections"] += 1
            next(iter(self.waiting)).close()

    async def connect(self, client: ClientSide, host: str, port: int) -> GrpcSide:
        """Wait for the turn of a client, and connect it to gRPC. Raises OSError."""
        await self._wait(host)
        name = self._path.with_name(socket_name(host, port))
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.setblocking(False)
            connection.bind(str(name))
            loop = asyncio.get_running_loop()
            await loop.sock_connect(connection, str(self._path))
            _, side = await loop.create_unix_connection(lambda: GrpcSide(client), sock=connection)
        except BaseException:
            connection.close()
            raise
        finally:
            # Once it is connected, gRPC knows the name without the file.
            name.unlink(missing_ok=True)
        return side


class _Side(asyncio.Protocol):
    """One side of a relayed connection. other: receives its data; None unless it is open."""

    transport: asyncio.Transport

    def __init__(self, other: _Side | None = None) -> None:
        self.other = other

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Remember the transport."""
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        """Send on the received data."""
        if self.other is not None:
            self.other.transport.write(data)

    def pause_writing(self) -> None:
        """Receive no more from the other side than this one can send."""
        if self.other is not None:
            self.other.transport.pause_reading()

    def resume_writing(self) -> None:
        """Receive again."""
        if self.other is not None:
            self.other.transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        """End the other side, too, as soon as it has sent its data."""
        if self.other is not None:
            self.other.other = None
            self.other.transport.close()


class GrpcSide(_Side):
    """The connection to gRPC."""

    def __init__(self, client: ClientSide) -> None:
        super().__init__(client)


class ClientSide(_Side):
    """The connection of a client; before its turn no more than the first piece is received."""

    def __init__(self, front: GrpcFront) -> None:
        super().__init__()
        self._front = front
        self._network: str | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._early = b""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Apply the limits, and let the client wait for its turn."""
        super().connection_made(transport)
        front, context = self._front, self._front.context
        # The address is unknown if the client has left already.
        host, port = (transport.get_extra_info("peername") or ("", 0))[:2]
        self._network = context.add_connection(host)
        front.connections.add(self)
        front.waiting[self] = None
        front.make_room()
        if self._network is not None and context.connections[self._network] > context.max_per_address:
            context.refused["connections_of_address"] += 1
            self.close()
        elif not transport.is_closing():
            self._connecting = asyncio.get_running_loop().create_task(self._connect(host, port))

    def data_received(self, data: bytes) -> None:
        """Send on the received data, or keep it until it can be sent."""
        if self.other is None:
            self._early += data
            self.transport.pause_reading()
        else:
            self.other.transport.write(data)

    def connection_lost(self, exc: Exception | None) -> None:
        """Release the resources of the connection."""
        self._end_waiting()
        self._front.connections.discard(self)
        self._front.context.release_network(self._network)
        super().connection_lost(exc)

    def close(self) -> None:
        """Close the connection immediately."""
        self._end_waiting()
        self.transport.abort()

    def _end_waiting(self) -> None:
        self._front.waiting.pop(self, None)
        if self._connecting is not None:
            self._connecting.cancel()

    async def _connect(self, host: str, port: int) -> None:
        try:
            side = await self._front.connect(self, host, port)
        except OSError as error:
            logger.error("a connection could not be passed on to gRPC: %s", error)
            self.close()
            return
        del self._front.waiting[self]
        self.other = side
        side.transport.write(self._early)
        self._early = b""
        self.transport.resume_reading()
