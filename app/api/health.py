"""``/livez``, ``/readyz``, ``/version`` and ``/metrics``, for operators. No API key is required."""

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
    """The result of one check. needed: whether the server is not ready if it fails."""

    name: str
    ok: bool
    needed: bool
    detail: str


class Readiness(View):
    """ready: no needed check failed. checks: only with ``?verbose``."""

    ready: bool
    checks: list[Check] | None = None


class Version(View):
    """Name and version of the program."""

    name: str
    version: str


class Alive(View):
    """The process responds."""

    live: bool = True


@router.get("/livez")
async def livez() -> Alive:
    """Whether the process responds at all."""
    return Alive()


@router.get("/readyz", response_model_exclude_none=True, responses={503: {"model": Readiness}})
def readyz(
    context: Context,
    response: Response,
    verbose: Annotated[str | None, Query(description="Include the result of every check.")] = None,
) -> Readiness:
    """Whether requests should be sent to this server; 503 if not.

    The server is ready without the job engine and without workers: it answers queries, and submitted jobs
    wait in the database.
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
    """Prometheus metrics of all server processes together."""
    return Response(context.metrics.render(), headers={"content-type": metrics.CONTENT_TYPE})


PATHS: Final = frozenset(route.path for route in router.routes if isinstance(route, APIRoute))
"""Paths that are answered even when the server sheds load."""


def run_checks(context: AppContext) -> list[Check]:
    """Run every check. Blocks."""
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
    """Whether all needed checks succeeded."""
    return all(check.ok for check in checks if check.needed)


class _NotReadyError(Exception):
    """Why a check failed, as a message for the operator."""


def _check(name: str, run: Callable[[], str], *, needed: bool = True) -> Check:
    try:
        return Check(name=name, ok=True, needed=needed, detail=run())
    except (_NotReadyError, ServiceError) as error:
        return Check(name=name, ok=False, needed=needed, detail=str(error))


def _database(context: AppContext) -> str:
    with context.store.read():
        return "answers"


def _schema(context: AppContext) -> str:
    try:
        current = schema_is_current(context.store.engine)
    except SQLAlchemyError as error:
        raise _NotReadyError("cannot be read") from error
    if not current:
        raise _NotReadyError("is older than this program, or missing; run: stms db upgrade")
    return "is up to date"


def _registry(context: AppContext) -> str:
    since = context.refresher.failing_since
    if since is not None:
        raise _NotReadyError(f"could not be read for {time.time() - since:.1f} s; loaded models still answer")
    return f"is up to date; {len(context.cache)} students and teachers are loaded"


def _process(context: AppContext) -> str:
    if context.metrics.processes().draining:
        raise _NotReadyError("is shutting down; try again over a new connection")
    return "accepts requests"


def _processes(context: AppContext) -> str:
    count = context.metrics.processes()
    if count.serving < count.target:
        raise _NotReadyError(f"{count.serving} of {count.target} serve; the others are being started")
    return f"{count.serving} of {count.target} serve"


def _job_engine(context: AppContext) -> str:
    context.queue.ping()
    return "answers"


def _workers(context: AppContext) -> str:
    with context.store.read() as uow:
        workers = uow.workers.all()
    now, timeout = time.time(), context.settings.takeover_seconds
    alive = sum(worker.is_alive(now, timeout) for worker in workers)
    if not alive:
        raise _NotReadyError("none has sent a heartbeat recently; submitted jobs wait")
    return f"{alive} alive"
