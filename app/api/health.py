"""``/livez``, ``/readyz``, ``/version`` and ``/metrics``, for operators. No API key is required."""

from __future__ import annotations

import time
from importlib import metadata
from typing import Annotated, Final

from fastapi import APIRouter, Query, Request, Response
from fastapi.routing import APIRoute

from app.api.border import BorderRoute
from app.api.dependencies import AppContext, Context
from app.api.metrics_format import OPEN_METRICS, TEXT, prefers_open_metrics
from app.api.schemas import View
from app.domain.checks import Check, CheckFailed, check, is_ready
from app.domain.errors import Unavailable
from app.services.health import DatabaseHealth
from app.serving.query_health import accepts_requests, query_checks

router = APIRouter(tags=["operation"], route_class=BorderRoute)

_METRICS: Final[dict[str, dict[str, object]]] = {"text/plain": {}, "application/openmetrics-text": {}}


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


Verbose = Annotated[
    str | None, Query(pattern="^[a-z0-9]{0,20}$", description="Include the result of every check.")
]


@router.get("/readyz", response_model_exclude_none=True, responses={503: {"model": Readiness}})
async def readyz(context: Context, response: Response, verbose: Verbose = None) -> Readiness:
    """Whether requests of every kind should be sent to this server; 503 if not.

    The server is ready without the job engine and without workers: it answers queries, and submitted jobs
    wait in the database. It is not ready without the database, although loaded models answer; see
    `/readyz/queries`. What depends on the database is checked at most once a second.
    """
    return _readiness(await run_checks(context), response, verbose)


@router.get("/readyz/queries", response_model_exclude_none=True, responses={503: {"model": Readiness}})
async def readyz_queries(context: Context, response: Response, verbose: Verbose = None) -> Readiness:
    """Whether queries should be sent to this server; 503 if not.

    Loaded models answer without the database, so that nothing here depends on it: the server is ready once
    it has read the keys, until it is shut down, or until the registry could not be read for longer than
    STMS_MAX_STALE_SECONDS. Readiness probes of orchestrators should ask this path.
    """
    return _readiness(query_checks(context), response, verbose)


@router.get("/version")
async def get_program_version() -> Version:
    """Name and version of the program."""
    return Version(name="stms", version=metadata.version("stms"))


@router.get("/identity", include_in_schema=False)
async def identity(
    request: Request,
    context: Context,
    key: Annotated[str, Query(pattern=r"^key_[0-9a-f]{24}$")],
    nonce: Annotated[str, Query(pattern=r"^[0-9a-f]{64}$")],
) -> Response:
    """Show a program that knows an API key that this server knows it, before the program sends the key.

    The port is part of the proof, so that a listener at another port cannot pass it on.
    """
    proof = context.authenticator.proof(key, nonce, (request.scope.get("server") or ("", 0))[1] or 0)
    if proof is None and not context.authenticator.requires_keys:
        proof = "no-keys"
    return Response(status_code=204, headers={} if proof is None else {"stms-proof": proof})


@router.get("/metrics", response_class=Response, responses={200: {"content": _METRICS}})
async def get_metrics(request: Request, context: Context) -> Response:
    """Prometheus metrics of all server processes together, at most a second old.

    By Accept in the text format 0.0.4 or as OpenMetrics 1.0.0.
    """
    await context.probes.refresh()
    is_open = prefers_open_metrics(request.headers.get("accept", "").encode("latin-1"))
    text = await (context.probes.open_metrics if is_open else context.probes.metrics_text).get()
    if text is None:
        raise Unavailable("The metrics could not be rendered in time.", code="metrics_unavailable")
    return Response(text, headers={"content-type": OPEN_METRICS if is_open else TEXT, "vary": "accept"})


PATHS: Final = frozenset(
    route.path
    for route in router.routes
    if isinstance(route, APIRoute) and route.path not in {"/version", "/identity"}
)
"""Paths that are answered even when the server sheds load."""


async def run_checks(context: AppContext) -> list[Check]:
    """The results of all checks; those of the database are at most a second old."""
    found = await context.probes.database.get()
    if found is None:
        unknown = Check("database", False, True, "has not answered in time")
        found = DatabaseHealth((unknown,), None)
    return [
        *found.checks,
        check("registry", lambda: _registry(context)),
        check("process", lambda: accepts_requests(context.metrics)),
        check("processes", lambda: _processes(context), needed=False),
    ]


def _readiness(checks: list[Check], response: Response, verbose: str | None) -> Readiness:
    ready = is_ready(checks)
    if not ready:
        response.status_code = 503
        response.headers["retry-after"] = "2"
    response.headers["cache-control"] = "no-store"
    return Readiness(ready=ready, checks=None if verbose is None else checks)


def _registry(context: AppContext) -> str:
    since = context.refresher.failing_since
    if since is not None:
        raise CheckFailed(f"could not be read for {time.time() - since:.1f} s; loaded models still answer")
    return f"is up to date; students and teachers loaded: {len(context.cache)}"


def _processes(context: AppContext) -> str:
    count = context.metrics.processes()
    if count.serving < count.target:
        raise CheckFailed(f"{count.serving} of {count.target} serve; the others are being started")
    return f"{count.serving} of {count.target} serve"
