"""The composition root of a query process: it owns the port, answers queries, and relays the rest."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Final

from app.domain.checks import is_ready
from app.gate.application import Gate
from app.gate.relay import Relay
from app.processes.listener import ProcessContext
from app.processes.metrics import Metrics
from app.processes.scoreboard import Scoreboard, State
from app.query_parts import QueryParts, make_server, open_query_parts, prepare_process
from app.server.tls import certificate_of
from app.serving.open_inference.handler import InferenceHandler
from app.serving.open_inference.operations import Operations
from app.serving.packages.handler import PackageHandler
from app.serving.query.handler import QueryHandler
from app.serving.query_health import query_checks
from app.settings import Settings

_START_SECONDS: Final = 30.0
_POLL_SECONDS: Final = 0.02


def run_query_process(settings: Settings, process: ProcessContext, control: Path) -> int:
    """Serve until SIGTERM, SIGINT or SIGHUP; returns the exit code.

    control: path of the control process's socket. Raises BadCertificate, and BadSecretFile for its key.
    """
    prepare_process(process, settings.log_format, is_control=False)
    relay = Relay(control, lambda: process.slot.state is State.DRAINING)

    @asynccontextmanager
    async def lifespan(gate: Gate) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            parts = await open_query_parts(settings, gate.metrics, process.scoreboard, gate.periodic, stack)
            connect(gate, parts, stack)
            stack.callback(relay.close)
            parts.refresher.follow_signals()
            await _wait_for_start(process.scoreboard)
            yield

    gate = Gate(settings, Metrics(process.scoreboard, process.slot), relay, lifespan)
    server = make_server(
        gate,
        process,
        settings,
        gate.metrics,
        most=settings.max_connections,
        listen_seconds=settings.drain_listen_seconds,
        tick=gate.tick,
        fast_path=gate.fast_path,
        max_connections_per_address=settings.max_connections_per_address,
        key_share=settings.key_share,
        periodic=gate.periodic,
        certificate=certificate_of(settings),
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
    queries, inference = QueryHandler(parts.pipeline), InferenceHandler(operations)
    gate.serve(parts.pipeline, queries, inference, packages, lambda: query_checks(parts))
    return operations


async def _wait_for_start(scoreboard: Scoreboard) -> None:
    """At the start of the whole service accept no connections before requests of every kind are answered."""
    deadline = time.monotonic() + _START_SECONDS
    while not scoreboard.has_started and time.monotonic() < deadline:
        await asyncio.sleep(_POLL_SECONDS)
