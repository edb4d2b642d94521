"""The open parts of a running server, as the endpoints see them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Request

from app.auth.audit_writer import Witness
from app.auth.authenticator import KeyGate
from app.domain.ports import JobQueue
from app.processes.metrics import Metrics
from app.serving.cache import ModelCache
from app.serving.refresher import Refresher
from app.settings import Settings
from app.store.blob_cache import BlobCache
from app.store.unit_of_work import Store


@dataclass(frozen=True, slots=True)
class Runtime:
    """Made by the composition root at start."""

    settings: Settings
    store: Store
    queue: JobQueue
    gate: KeyGate
    cache: ModelCache
    refresher: Refresher
    metrics: Metrics
    files: BlobCache
    witness: Witness


async def _runtime(request: Request) -> Runtime:
    # async, or the framework would change threads for it
    runtime: Runtime = request.app.state.runtime
    return runtime


RuntimeDep = Annotated[Runtime, Depends(_runtime)]
