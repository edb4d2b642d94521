"""Pages for operating the service: audit log, workers and health; `app.web.traffic` has the servers."""

from __future__ import annotations

from typing import Annotated, Any, Final

from fastapi import APIRouter, Query, Request, Response

from app.api import health
from app.api.border import BorderRoute
from app.api.dependencies import Administrator, AppContext, Context, Operator, Reader
from app.domain.checks import is_ready
from app.services import audit, quotas
from app.services.keys import key_names
from app.services.workers import list_workers
from app.web import advice
from app.web.rendering import fragment, may, page, shared_fragment

router = APIRouter(route_class=BorderRoute)

_RECORDS: Final = 100

Name = Annotated[str, Query(max_length=100)]
Text = Annotated[str, Query(max_length=500)]


@router.get("/ui/audit")
def audit_page(
    request: Request,
    context: Context,
    caller: Administrator,
    actor: Name = "",
    action: Name = "",
    object: Text = "",  # noqa: A002 - the name of the parameter
    after: Name = "",
) -> Response:
    """Actions and denied requests, newest first."""
    filters = {"actor": actor, "action": action, "object": object}
    store = context.listed_store(request, caller)
    equal: dict[str, Any] = {name: value or None for name, value in filters.items()}
    records, has_more = audit.list_records(store, limit=_RECORDS, after=after or None, **equal)
    return page(
        request,
        "audit.html",
        records=records,
        names=key_names(store, (one.object for one in records if one.object.startswith("key_"))),
        filters=filters,
        next=records[-1].id if has_more else None,
    )


@router.get("/ui/workers")
def workers_page(request: Request, context: Context, _caller: Operator) -> Response:
    """Worker processes and what each does."""
    return page(request, "workers.html", **_workers(context))


@router.get("/ui/fragments/workers")
async def workers_fragment(request: Request, context: Context, _caller: Operator) -> Response:
    """The part of `workers_page` that changes."""
    return await shared_fragment(request, "workers_part.html", lambda: _workers(context))


@router.get("/ui/health")
async def health_page(request: Request, context: Context, caller: Reader) -> Response:
    """Every check, with what to do where one fails; and what the tenant uses of its quotas."""
    return page(request, "health.html", **await _health(context), usage=_usage(context, caller))


@router.get("/ui/fragments/health")
async def health_fragment(request: Request, context: Context, _caller: Reader) -> Response:
    """The checks of `health_page`."""
    return fragment(request, "health_part.html", **await _health(context))


async def _health(context: AppContext) -> dict[str, Any]:
    checks = await health.run_checks(context)
    cures = {check.name: advice.for_check(check.name) for check in checks if not check.ok}
    return {"checks": checks, "ready": is_ready(checks), "cures": cures}


def _usage(context: AppContext, caller: Reader) -> quotas.Usage | None:
    return quotas.get_usage(context.store, context.settings, caller.tenant) if may(caller, "train") else None


def _workers(context: AppContext) -> dict[str, Any]:
    workers, now = list_workers(context.store)
    alive = {
        worker.executor_id: worker.is_alive(now, context.settings.takeover_seconds) for worker in workers
    }
    return {"workers": workers, "alive": alive}
