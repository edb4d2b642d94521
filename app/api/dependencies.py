"""What endpoints depend on: the open parts of the running server, and the API key of the caller."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, TypeVar

from fastapi import Depends, Query, Request

from app.api.sse import EventStreams
from app.auth.audit_writer import AuditWriter
from app.auth.authenticator import Authenticator, authorise
from app.auth.sessions import Sessions
from app.auth.shares import Budgets
from app.domain.entities import ApiKey
from app.domain.installation import only_serves_error
from app.domain.names import MODEL_NAME
from app.domain.ports import JobQueue
from app.processes.file_reader import FileReader
from app.processes.metrics import Metrics
from app.services.health import Probes
from app.serving.cache import ModelCache
from app.serving.columns.schema import EncodedSchemas
from app.serving.predictor import Predictor
from app.serving.query.pictures import Pictures
from app.serving.refresher import Refresher
from app.settings import Settings
from app.store.blob_cache import BlobCache
from app.store.unit_of_work import Store
from app.tracing import Tracer

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class AppContext:
    """The open parts of one server process, created by the composition root at start-up.

    opened_queue: None on a server that only answers queries.
    """

    settings: Settings
    store: Store
    opened_queue: JobQueue | None
    authenticator: Authenticator
    cache: ModelCache
    refresher: Refresher
    metrics: Metrics
    files: BlobCache
    audit_writer: AuditWriter
    predictor: Predictor
    event_streams: EventStreams
    budgets: Budgets
    probes: Probes
    reader: FileReader
    sessions: Sessions
    tracer: Tracer | None
    pictures: Pictures
    schemas: EncodedSchemas = field(default_factory=EncodedSchemas)

    @property
    def queue(self) -> JobQueue:
        """The queue of jobs. Raises OnlyServes."""
        if self.opened_queue is None:
            raise only_serves_error()
        return self.opened_queue

    def store_of(self, caller: ApiKey) -> Store:
        """The store of the caller's tenant."""
        return self.store.of_tenant(caller.tenant)

    def listed_store(self, request: Request, caller: ApiKey) -> Store:
        """The store whose rows a list shows: an operator who names no tenant sees those of all tenants."""
        if "operator" in caller.scopes and "tenant" not in request.query_params:
            return self.store.of_all_tenants()
        return self.store_of(caller)


# Dependencies are async: FastAPI runs synchronous ones, classes among them, in a thread.


def parameters_of(kind: Callable[..., T]) -> Callable[..., Awaitable[T]]:
    """A dependency that makes a dataclass whose fields are parameters of a request."""

    async def parameters(**values: Any) -> T:
        return kind(**values)

    parameters.__signature__ = inspect.signature(kind, eval_str=True)  # type: ignore[attr-defined]
    return parameters


async def _context(request: Request) -> AppContext:
    context: AppContext = request.app.state.context
    return context


Context = Annotated[AppContext, Depends(_context)]

Tenant = Annotated[
    str | None,
    Query(
        max_length=100,
        pattern=MODEL_NAME,
        description="For operators: the tenant to act in instead of the key's own.",
    ),
]


class RequiresScope:
    """Dependency that returns the caller's key, which the middleware has identified.

    The key of an operator has the tenant that the request names. Raises NotAuthorised, also if any other key
    names another tenant than its own.
    """

    def __init__(self, scope: str) -> None:
        self.scope = scope

    async def __call__(self, request: Request, tenant: Tenant = None) -> ApiKey:
        caller = self.check(request)
        return caller if tenant is None else replace(caller, tenant=tenant)

    def check(self, request: Request) -> ApiKey:
        """The caller's key, if it may do this in the tenant that the query string names, if any.

        The route asks it before the body is read, and so before parameters are validated.
        """
        caller: ApiKey = request.state.caller
        authorise(caller, self.scope)
        if request.query_params.get("tenant", caller.tenant) != caller.tenant:
            authorise(caller, "operator")
        return caller


Operator = Annotated[ApiKey, Depends(RequiresScope("operator"))]
Administrator = Annotated[ApiKey, Depends(RequiresScope("admin"))]
Trainer = Annotated[ApiKey, Depends(RequiresScope("train"))]
Downloader = Annotated[ApiKey, Depends(RequiresScope("download"))]
"""A key that may take models out of the house; each endpoint calls `authorise` for the model in question."""
Reader = Annotated[ApiKey, Depends(RequiresScope("query"))]
"""A key that may read and query models; each endpoint calls `authorise` for the model in question."""
