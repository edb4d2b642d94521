"""The composition root of a query process: it owns the port, answers queries, and relays the rest."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from app.domain.checks import is_ready
from app.gate.application import Gate
from app.gate.relay import Relay
from app.http.types import Scope
from app.processes.listener import ProcessContext
from app.processes.metrics import Metrics
from app.processes.open_files import affordable_connections, raise_open_files
from app.processes.scoreboard import Scoreboard, State
from app.query_parts import QueryParts, make_server, open_query_parts, prepare_process
from app.server.context import ServerContext
from app.server.grpc_front import FILES_OF_CONNECTION
from app.server.tls import Certificate, certificate_of
from app.serving.open_inference.handler import InferenceHandler
from app.serving.open_inference.operations import Operations
from app.serving.packages.handler import PackageHandler
from app.serving.query.handler import QueryHandler
from app.serving.query_health import query_checks
from app.serving.row_decoder import IS_COMPILED
from app.settings import Settings

if TYPE_CHECKING:
    from app.server.grpc_listener import GrpcListener

logger = logging.getLogger("uvicorn.error")

_PROBES: Final = (b"/readyz", b"/metrics")
"""Those that the control process answers."""
_START_SECONDS: Final = 30.0
_POLL_SECONDS: Final = 0.02
_PART_FOR_GRPC: Final = 4
"""gRPC has one part in this many of the connections that HTTP may have, and of its files."""


def run_query_process(settings: Settings, process: ProcessContext, control: Path) -> int:
    """Serve until SIGTERM, SIGINT or SIGHUP; returns the exit code.

    control: path of the control process's socket. Raises BadCertificate, and BadSecretFile for its key.
    """
    prepare_process(process, settings, is_control=False)
    certificate = certificate_of(settings)
    most_of_grpc = _connections_of_grpc(settings)
    grpc_listener = _grpc_listener(settings, control.parent, certificate)
    relay = Relay(control, lambda: process.slot.state is State.DRAINING)

    @asynccontextmanager
    async def lifespan(gate: Gate) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            parts = await open_query_parts(settings, gate.metrics, process.scoreboard, gate.periodic, stack)
            operations = connect(gate, parts, stack)
            relay.wait_for_turn = partial(_wait_for_turn, parts)
            stack.callback(relay.close)
            await parts.refresher.follow_signals()
            decoder = "compiled code" if IS_COMPILED else "Python, for want of a C compiler at installation"
            logger.info("Rows and texts are decoded by %s.", decoder)
            if settings.bundle is None:
                # The models of bundles are checked before any process starts, and most requests are queries.
                await _wait_for_start(process.scoreboard)
            if grpc_listener is not None:
                limits = ServerContext(
                    process.slot,
                    most_of_grpc,
                    math.ceil(settings.max_connections_per_address / _PART_FOR_GRPC),
                    proxies=server.context.proxies,
                    refused=server.context.refused,
                )
                await _listen_for_grpc(grpc_listener, operations, limits, stack)
            yield

    gate = Gate(settings, Metrics(process.scoreboard, process.slot), relay, lifespan)
    server = make_server(
        gate,
        process,
        settings,
        gate.metrics,
        most=settings.max_connections,
        files_beside=most_of_grpc * FILES_OF_CONNECTION,
        listen_seconds=settings.drain_listen_seconds,
        tick=gate.tick,
        fast_path=gate.fast_path,
        max_connections_per_address=settings.max_connections_per_address,
        key_share=settings.key_share,
        periodic=gate.periodic,
        certificate=certificate,
        beside=None if grpc_listener is None else grpc_listener.stop,
    )
    server.run()
    return 0 if server.started else 1


def connect(gate: Gate, parts: QueryParts, stack: AsyncExitStack) -> Operations:
    """Let a gate answer queries; returns what answers those of the Open Inference Protocol."""
    operations = Operations(
        parts.pipeline, parts.store, parts.files, parts.audit_writer, lambda: is_ready(query_checks(parts))
    )
    stack.callback(operations.close)
    packages = PackageHandler(parts.pipeline, parts.audit_writer, parts.settings.max_package_bytes)
    queries, inference = QueryHandler(parts.pipeline, parts.pictures), InferenceHandler(operations)
    gate.serve(parts.pipeline, queries, inference, packages, lambda: query_checks(parts))
    return operations


async def _wait_for_turn(parts: QueryParts, scope: Scope) -> None:
    """Let a request without a key take its turn before it is relayed.

    Thousands of clients that come and go would else fill the queue in which those with a key wait for the
    control process.
    """
    authenticator = parts.authenticator
    if authenticator.caller_of(scope["headers"]) is None:
        address = authenticator.address_of(scope)
        await parts.budgets.wait_without_key(address, is_probe=scope["raw_path"] in _PROBES)


def _connections_of_grpc(settings: Settings) -> int:
    """The most connections of gRPC, each of which may have many calls; 0 if no port is set."""
    if settings.grpc_port is None:
        return 0
    beside = FILES_OF_CONNECTION / _PART_FOR_GRPC
    affordable = affordable_connections(raise_open_files(), settings.database_pool_size, beside)
    return max(1, min(settings.max_connections, affordable) // _PART_FOR_GRPC)


def _grpc_listener(settings: Settings, folder: Path, certificate: Certificate | None) -> GrpcListener | None:
    """What listens for gRPC; None if the settings name no port. Only then its modules are imported."""
    if settings.grpc_port is None:
        return None
    from app.server.grpc_listener import GrpcListener
    from app.serving.open_inference.grpc.service import OVERHEAD

    return GrpcListener(
        settings.host,
        settings.grpc_port,
        folder,
        largest=settings.max_query_bytes + OVERHEAD,
        certificate=certificate,
    )


async def _listen_for_grpc(
    listener: GrpcListener, operations: Operations, limits: ServerContext, stack: AsyncExitStack
) -> None:
    from app.serving.open_inference.grpc.service import InferenceService

    metrics, wait = operations.pipeline.metrics, operations.pipeline.budgets.wait_without_key
    service = InferenceService(operations, lambda: metrics.processes().draining)
    stack.push_async_callback(listener.stop, 0.0)
    await listener.start(service, limits, wait)


async def _wait_for_start(scoreboard: Scoreboard) -> None:
    """At the start of the whole service accept no connections before requests of every kind are answered."""
    deadline = time.monotonic() + _START_SECONDS
    while not scoreboard.has_started and time.monotonic() < deadline:
        await asyncio.sleep(_POLL_SECONDS)
