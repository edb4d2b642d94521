"""``/livez /readyz /version /metrics``: what those who run the service ask. No key is needed."""

from __future__ import annotations

import time
from collections.abc import Callable
from importlib import metadata
from typing import Annotated, Final

from fastapi import APIRouter, Query, Response
from fastapi.routing import APIRoute
from sqlalchemy.exc import SQLAlchemyError

from app.api.dependencies import AppContext, Context
from app.api.schemas import View
from app.domain.errors import ServiceError
from app.processes import metrics
from app.store.migrate import schema_is_current

router = APIRouter(tags=["operation"])


class Check(View):
    """One thing looked at. needed: whether the server is not ready without it."""

    name: str
    ok: bool
    needed: bool
    detail: str


class Readiness(View):
    """ready: all that is needed is there. checks: only if asked for by ``?verbose``."""

    ready: bool
    checks: list[Check] | None = None


class Version(View):
    """Which program this is."""

    name: str
    version: str


class Alive(View):
    """The process answers."""

    live: bool = True


@router.get("/livez")
async def livez() -> Alive:
    """Whether the process answers at all."""
    return Alive()


@router.get("/readyz", response_model_exclude_none=True, responses={503: {"model": Readiness}})
def readyz(
    context: Context,
    response: Response,
    verbose: Annotated[str | None, Query(description="With every check by name.")] = None,
) -> Readiness:
    """Whether requests should be sent here; 503 if not.

    Without the job engine or a worker the server is ready all the same: it answers queries, and jobs that are
    submitted wait in the database.
    """
    checks = run_checks(context)
    ready = is_ready(checks)
    if not ready:
        response.status_code = 503
        response.headers["retry-after"] = "2"
    response.headers["cache-control"] = "no-store"
    return Readiness(ready=ready, checks=None if verbose is None else checks)


@router.get("/version")
async def version() -> Version:
    """Name and version of the program."""
    return Version(name="stms", version=metadata.version("stms"))


@router.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
def get_metrics(context: Context) -> Response:
    """Counters for Prometheus, of all server processes together."""
    return Response(context.metrics.render(), headers={"content-type": metrics.CONTENT_TYPE})


PATHS: Final = frozenset(route.path for route in router.routes if isinstance(route, APIRoute))
"""Paths that are answered even when the server sheds load."""


def run_checks(context: AppContext) -> list[Check]:
    """Every check, made now; blocks."""
    return [
        _check("database", lambda: _database(context)),
        _check("schema", lambda: _schema(context)),
        _check("registry", lambda: _registry(context)),
        _check("process", lambda: _process(context)),
        _check("processes", lambda: _processes(context), needed=False),
        _check("job_engine", lambda: _job_engine(context), needed=False),
        _check("workers", lambda: _workers(context), needed=False),
    ]


def is_ready(checks: list[Check]) -> bool:
    """Whether all that is needed is there."""
    return all(check.ok for check in checks if check.needed)


class _NotReadyError(Exception):
    """Why a check fails, in words for the operator."""


def _check(name: str, look: Callable[[], str], *, needed: bool = True) -> Check:
    try:
        return Check(name=name, ok=True, needed=needed, detail=look())
    except (_NotReadyError, ServiceError) as error:
        return Check(name=name, ok=False, needed=needed, detail=str(error))


def _database(context: AppContext) -> str:
    with context.store.read():
        return "answers"


def _schema(context: AppContext) -> str:
    try:
        current = schema_is_current(context.store.engine)
    except SQLAlchemyError as error:
        raise _NotReadyError("cannot be looked at") from error
    if not current:
        raise _NotReadyError("is older than this program, or missing; run: stms db upgrade")
    return "is the newest"


def _registry(context: AppContext) -> str:
    since = context.refresher.failing_since
    if since is not None:
        raise _NotReadyError(f"could not be read for {time.time() - since:.1f} s; loaded models still answer")
    return f"is followed; {len(context.cache)} students and teachers are loaded"


def _process(context: AppContext) -> str:
    if context.metrics.processes().draining:
        raise _NotReadyError("is about to end; ask again over a new connection")
    return "takes requests"


def _processes(context: AppContext) -> str:
    seen = context.metrics.processes()
    if seen.serving < seen.target:
        raise _NotReadyError(f"{seen.serving} of {seen.target} serve; the others are being started")
    return f"{seen.serving} of {seen.target} serve"


def _job_engine(context: AppContext) -> str:
    context.queue.ping()
    return "answers"


def _workers(context: AppContext) -> str:
    with context.store.read() as uow:
        ages = [time.time() - worker.beat_at for worker in uow.workers.all()]
    alive = sum(age <= context.settings.takeover_seconds for age in ages)
    if not alive:
        raise _NotReadyError("none was heard of lately; submitted jobs wait")
    return f"{alive} alive"
