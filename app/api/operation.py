"""Endpoints for operating the service: audit log, workers, and what tenants use of their quotas."""

from __future__ import annotations

import dataclasses
import socket
from importlib import metadata
from operator import attrgetter
from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request, Response
from pydantic import Field

from app.api.border import BorderRoute
from app.api.dependencies import Administrator, AppContext, Context, Operator, Reader, Trainer
from app.api.paging import After, Limit, Moment, Page, page_of
from app.api.schemas import Body, SortedNames, Time, UnitView, View, WorkerView
from app.domain.entities import ApiKey, AuditRecord, Caller
from app.services import audit, quotas, workers

router = APIRouter(prefix="/v1", tags=["operation"], route_class=BorderRoute)

_TEXT = r"^[^\x00-\x1f]*$"
Actor = Annotated[
    str | None, Query(max_length=100, pattern=_TEXT, description="Id of an API key, cli, system.")
]
Action = Annotated[str | None, Query(max_length=60, pattern=_TEXT, description="For example dataset.delete.")]
Object = Annotated[
    str | None, Query(max_length=500, pattern=_TEXT, description="Id of the object of the action.")
]
Order = Annotated[
    Literal["asc", "desc"], Query(description="desc: the newest first; asc: the oldest, to follow the log.")
]


@router.get("/audit")
def list_audit(
    request: Request,
    response: Response,
    context: Context,
    caller: Administrator,
    actor: Actor = None,
    action: Action = None,
    object: Object = None,  # noqa: A002 - the name of the parameter
    since: Moment = None,
    until: Moment = None,
    order: Order = "desc",
    limit: Limit = 100,
    after: After = None,
) -> Page[AuditRecord]:
    """Actions and denied requests, newest first, or oldest first with ``order=asc``.

    Oldest first, the last page can be asked again with the id of its last record: what was recorded since
    follows, and nothing is left out. Requests of one caller that are denied within a second are one record,
    with their number in the details.
    """
    page, has_more = audit.list_records(
        context.listed_store(request, caller),
        limit=limit,
        after=after,
        since=since,
        until=until,
        oldest_first=order == "asc",
        actor=actor,
        action=action,
        object=object,
    )
    return page_of(request, response, page, has_more)


@router.get("/workers")
def list_workers(context: Context, _caller: Operator) -> Page[WorkerView]:
    """Worker processes with their last heartbeat and the units of work reported in it."""
    listed, now = workers.list_workers(context.store)
    views = [
        WorkerView(
            id=worker.executor_id,
            host=worker.host,
            pid=worker.pid,
            started_at=worker.started_at,
            beat_at=worker.beat_at,
            alive=worker.is_alive(now, context.settings.takeover_seconds),
            slots=worker.slots,
            threads=worker.threads,
            units=[UnitView.model_validate(unit) for unit in worker.units],
        )
        for worker in listed
    ]
    return Page(data=views, has_more=False)


class TrafficView(View):
    """Queries of one model to one server. refused_per_second: with a status from 400 to 499.

    latency: p50, p95 and p99 in seconds, of the successful queries of the last minute; null without one.
    buckets: their histogram, as that of the metric stms_query_seconds, but not cumulative. history: queries a
    second, one number every two seconds, oldest first.
    """

    model: str
    queries_per_second: float
    refused_per_second: float
    latency: dict[str, float | None]
    buckets: list[float]
    history: list[float]


class ServerView(View):
    """A group of server processes on one machine. alive: whether it has reported in the last ten seconds.

    queries, rows, failed_queries, refused, requests, errors: since the group was started; requests are those
    that are no queries, refused the queries with a status from 400 to 499, errors the responses from status
    500. unanswered: numbers of queries of the last minute without an answer, by status. latency, buckets: of
    the queries of all models. models: the ten with the most queries in the last minute. history: one entry
    every two seconds, oldest first, of six numbers: seconds since the epoch, queries a second, errors a
    second, p99 or null, refused queries a second, p50 or null.
    """

    id: str
    host: str
    pid: int
    version: str
    started_at: Time
    beat_at: Time
    alive: bool
    processes: int
    target_processes: int
    queries: float
    rows: float
    failed_queries: float
    requests: float
    errors: float
    queries_per_second: float
    errors_per_second: float
    latency: dict[str, float | None]
    history: list[list[float | None]]
    refused: float
    refused_per_second: float
    unanswered: dict[str, float]
    buckets: list[float]
    models: list[TrafficView]


@router.get("/servers")
def list_servers(context: Context, _caller: Operator) -> Page[ServerView]:
    """Groups of server processes with their live figures, at most some seconds old."""
    servers, now = workers.list_servers(context.store)
    views = [
        ServerView(
            id=row.id,
            host=row.host,
            pid=row.pid,
            version=row.program,
            started_at=row.started_at,
            beat_at=row.beat_at,
            alive=row.is_alive(now),
            **row.figures,
        )
        for row in servers
    ]
    return Page(data=views, has_more=False)


class WhoAmI(View):
    """The asking API key, without its secret, and the server that answers.

    models: that a query key may query; empty for all. expires_at: null if the key does not expire.
    """

    id: str
    name: str
    tenant: str
    scopes: SortedNames
    models: SortedNames
    expires_at: Time | None
    server: str
    version: str


@router.get("/whoami")
async def whoami(caller: Reader) -> WhoAmI:
    """What the asking API key may do, and which server answers."""
    return WhoAmI(
        id=caller.id,
        name=caller.name,
        tenant=caller.tenant,
        scopes=caller.scopes,
        models=caller.models,
        expires_at=caller.expires_at,
        server=socket.gethostname(),
        version=metadata.version("stms"),
    )


class AmountView(View):
    """Units that are used, and how many are allowed."""

    used: int
    allowed: int


class KeyUsageView(View):
    """What the asking API key has open in the server process that answered."""

    streams: AmountView
    uploads: AmountView
    upload_bytes: AmountView


class UsageView(View):
    """What a tenant uses of its quotas. key: only of the asking key's own tenant."""

    tenant: str
    stored_bytes: AmountView
    datasets: AmountView
    versions: AmountView
    unfinished_jobs: AmountView
    keys: AmountView
    key: KeyUsageView | None


_Quota = Annotated[int | None, Field(ge=0, le=10**15, description="Null: the default of the settings.")]


class QuotasBody(Body):
    """Quotas of a tenant to change; null means the default of the settings."""

    stored_bytes: _Quota = None
    datasets: _Quota = None
    versions: _Quota = None
    unfinished_jobs: _Quota = None
    keys: _Quota = None


@router.get("/usage")
def list_usage(
    request: Request,
    response: Response,
    context: Context,
    caller: Trainer,
    limit: Limit = 100,
    after: Annotated[str | None, Query(max_length=100, pattern=_TEXT)] = None,
) -> Page[UsageView]:
    """What the key's tenant uses and may use; for an operator who names no tenant, that of all tenants."""
    if "operator" in caller.scopes and "tenant" not in request.query_params:
        page, has_more = quotas.list_usage(context.store, context.settings, limit=limit, after=after)
    else:
        page, has_more = [quotas.get_usage(context.store, context.settings, caller.tenant)], False
    views = [_view(request, context, usage) for usage in page]
    return page_of(request, response, views, has_more, attrgetter("tenant"))


@router.patch("/quotas")
def set_quotas(body: QuotasBody, request: Request, context: Context, caller: Operator) -> UsageView:
    """Change quotas of the tenant that ``?tenant=`` names. What exists already stays."""
    store = context.store_of(caller)
    usage = quotas.set_quotas(store, context.settings, caller.tenant, body.model_dump(exclude_unset=True))
    return _view(request, context, usage)


def _view(request: Request, context: AppContext, usage: quotas.Usage) -> UsageView:
    used, allowed = dataclasses.asdict(usage.used), dataclasses.asdict(usage.allowed)
    caller: ApiKey = request.state.caller
    return UsageView(
        tenant=usage.tenant,
        key=_key_view(context, Caller.of(caller)) if caller.tenant == usage.tenant else None,
        **{name: AmountView(used=used[name], allowed=allowed[name]) for name in used},
    )


def _key_view(context: AppContext, caller: Caller) -> KeyUsageView:
    streams, budgets = context.event_streams, context.budgets
    return KeyUsageView(
        streams=AmountView(used=streams.count(caller.key), allowed=streams.max_per_key),
        uploads=AmountView(used=budgets.uploads.held(caller), allowed=budgets.uploads.share),
        upload_bytes=AmountView(used=budgets.upload_bytes.held(caller), allowed=budgets.upload_bytes.share),
    )
