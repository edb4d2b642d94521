"""What endpoints depend on: the open parts of the running server, and the API key of the caller."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Request

from app.auth.audit_writer import AuditWriter
from app.auth.authenticator import Authenticator
from app.domain.entities import ApiKey
from app.domain.ports import JobQueue
from app.processes.metrics import Metrics
from app.serving.cache import ModelCache
from app.serving.refresher import Refresher
from app.settings import Settings
from app.store.blob_cache import BlobCache
from app.store.unit_of_work import Store


@dataclass(frozen=True, slots=True)
class AppContext:
    """The open parts of one server process, created by the composition root at start-up."""

    settings: Settings
    store: Store
    queue: JobQueue
    authenticator: Authenticator
    cache: ModelCache
    refresher: Refresher
    metrics: Metrics
    files: BlobCache
    audit_writer: AuditWriter


# Both dependencies are async: FastAPI runs synchronous ones in a thread.
async def _context(request: Request) -> AppContext:
    context: AppContext = request.app.state.context
    return context


Context = Annotated[AppContext, Depends(_context)]


class RequiresScope:
    """Dependency that returns the caller's key. Raises NotAuthenticated, NotAuthorised and RateLimited."""

    def __init__(self, scope: str) -> None:
        self._scope = scope

    async def __call__(self, request: Request, context: Context) -> ApiKey:
        return context.authenticator.authenticate(request.scope, self._scope)


Administrator = Annotated[ApiKey, Depends(RequiresScope("admin"))]
Trainer = Annotated[ApiKey, Depends(RequiresScope("train"))]
Reader = Annotated[ApiKey, Depends(RequiresScope("query"))]
"""A key that may read and query models; each endpoint calls `authorise` for the model in question."""
