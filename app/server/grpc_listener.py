"""The gRPC server of one process: its port, its limits, its certificate, and its end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import grpc
from grpc.aio import Server as GrpcServer
from grpc.aio import server as make_grpc_server

from app.processes.listener import CannotListen
from app.server.context import ServerContext
from app.server.grpc_front import GrpcFront
from app.server.tls import HANDSHAKE_SECONDS, Certificate, PemFiles

MAX_STREAMS: Final = 64
"""Largest number of simultaneous calls of one connection; further ones wait in the client."""
CONNECTION_SECONDS: Final = 300
"""After this time a connection takes no more calls, so that load balancers redistribute connections."""
CALL_SECONDS: Final = 3600
"""How long the calls of such a connection may still last."""
_IDLE_SECONDS: Final = 75
_PING_SECONDS, _PONG_SECONDS = 60, 20
_METADATA_BYTES: Final = 16 * 1024
_WINDOW_BYTES: Final = 64 * 1024


class GrpcListener:
    """Listens on ``host`` and ``port``, which other processes of the service may share (SO_REUSEPORT).

    folder: for Unix sockets, in a folder of their own that only this user may enter. largest: bytes of a
    message. certificate: for TLS; new connections get the newest one.
    """

    def __init__(
        self, host: str, port: int, folder: Path, *, largest: int, certificate: Certificate | None
    ) -> None:
        self._host, self._port = host, port
        self._certificate = certificate
        self._options = options(largest)
        self._parent = folder
        self._folder: TemporaryDirectory[str] | None = None
        self._server: GrpcServer | None = None
        self._front: GrpcFront | None = None
        self._stopping: asyncio.Task[None] | None = None

    async def start(
        self,
        service: grpc.GenericRpcHandler,
        context: ServerContext,
        wait: Callable[[str], Awaitable[None]],
    ) -> None:
        """Listen. context, wait: as of `GrpcFront`. Raises CannotListen."""
        self._folder = TemporaryDirectory(dir=self._parent, ignore_cleanup_errors=True)
        path = Path(self._folder.name) / "grpc"
        server = make_grpc_server(handlers=(service,), options=self._options)
        try:
            if self._certificate is None:
                server.add_insecure_port(f"unix:{path}")
            else:
                server.add_secure_port(f"unix:{path}", self._credentials(self._certificate))
        except RuntimeError as error:
            text = f"gRPC cannot listen at {path}; TMPDIR can name a shorter folder."
            raise CannotListen(text) from error
        await server.start()
        self._server = server
        self._front = GrpcFront(path, context, wait)
        await self._front.start(self._host, self._port)

    async def stop(self, grace: float) -> None:
        """Take no more connections and calls, tell clients so (GOAWAY), and wait for calls in progress.

        grace: seconds after which they are cancelled. A second call waits for the first.
        """
        if self._stopping is None:
            self._stopping = asyncio.create_task(self._stop(grace))
        # The stop continues when the caller is cancelled.
        await asyncio.shield(self._stopping)

    async def _stop(self, grace: float) -> None:
        if self._front is not None:
            self._front.stop()
        if self._server is not None:
            await self._server.stop(grace)
        if self._folder is not None:
            self._folder.cleanup()

    def _credentials(self, certificate: Certificate) -> grpc.ServerCredentials:
        offered = certificate.pem

        def change() -> grpc.ServerCertificateConfiguration | None:
            """The certificate for a new connection; None if it is the last one."""
            nonlocal offered
            newest = certificate.pem
            if newest is offered:
                return None
            offered = newest
            return _configuration(newest)

        has_clients = offered.client_ca is not None
        return grpc.dynamic_ssl_server_credentials(_configuration(offered), change, has_clients)


def _configuration(pem: PemFiles) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration([(pem.key, pem.chain)], pem.client_ca)


def options(largest: int) -> list[tuple[str, int]]:
    """The limits, as gRPC names them."""
    return [
        ("grpc.max_receive_message_length", largest),
        ("grpc.max_send_message_length", -1),
        ("grpc.max_concurrent_streams", MAX_STREAMS),
        ("grpc.max_metadata_size", _METADATA_BYTES),
        ("grpc.absolute_max_metadata_size", _METADATA_BYTES),
        # Only this much of a message is received before its caller is authenticated.
        ("grpc.http2.lookahead_bytes", _WINDOW_BYTES),
        ("grpc.http2.bdp_probe", 0),
        ("grpc.server_handshake_timeout_ms", int(HANDSHAKE_SECONDS * 1000)),
        ("grpc.max_connection_idle_ms", _IDLE_SECONDS * 1000),
        ("grpc.max_connection_age_ms", CONNECTION_SECONDS * 1000),
        ("grpc.max_connection_age_grace_ms", CALL_SECONDS * 1000),
        ("grpc.keepalive_time_ms", _PING_SECONDS * 1000),
        ("grpc.keepalive_timeout_ms", _PONG_SECONDS * 1000),
    ]
