"""A query process and the control process as one application without sockets."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from app.api.app import StmsApi
from app.gate.application import Gate
from app.processes.metrics import Metrics
from app.query_process import connect


def gated(app: StmsApi) -> Gate:
    """A gate whose requests go to ``app`` in place of a relay, and that answers queries from its parts."""

    @asynccontextmanager
    async def lifespan(gate: Gate) -> AsyncIterator[None]:
        async with app.router.lifespan_context(app), AsyncExitStack() as stack:
            connect(gate, app.state.query_parts, stack)
            yield

    return Gate(app.settings, Metrics(), app, lifespan)
