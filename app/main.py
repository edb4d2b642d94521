"""The API process: the one place that opens everything and puts it together."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from importlib import metadata
from typing import Any

from fastapi import FastAPI
from sqlalchemy.exc import SQLAlchemyError
from starlette.types import Receive, Scope, Send

from app.api import audit, datasets, docs, health, jobs, keys, models, openapi, predict, teachers, workers
from app.api.dependencies import AppContext
from app.api.errors import install_error_handlers
from app.api.middleware import RequestMiddleware
from app.auth.audit_writer import AuditWriter
from app.auth.authenticator import Authenticator, InsecureBinding, check_binding
from app.auth.rate_limit import RateLimiter
from app.domain.entities import JobState
from app.domain.errors import Unavailable
from app.domain.ports import JobQueue
from app.http.client_address import TrustedProxies
from app.logs import mask_logs
from app.processes.listener import ProcessContext
from app.processes.metrics import Metrics
from app.processes.scoreboard import Scoreboard, State
from app.processes.tuning import MallocTrimmer, keep_freed_memory, limit_blas_threads
from app.server.fast_path import Client, HeaderList
from app.server.server import Server
from app.serving.cache import ModelCache
from app.serving.loader import DatabaseSource
from app.serving.open_inference import openapi as inference_openapi
from app.serving.open_inference.handler import InferenceHandler
from app.serving.query.handler import QueryHandler
from app.serving.refresher import Refresher
from app.serving.servable import make_servable
from app.settings import Settings
from app.store.blob_cache import BlobCache
from app.store.engine import open_database
from app.store.migrate import schema_is_current
from app.store.unit_of_work import Store

__all__ = [
    "InsecureBinding",
    "SchemaOutdated",
    "StmsApi",
    "check_database",
    "create_app",
    "run_api",
]

logger = logging.getLogger("uvicorn.error")
"""The server's own log, which it sets up."""

_PUBLISH_SECONDS = 0.5


class StmsApi(FastAPI):
    """The endpoints, with the query path in front: a query passes neither middleware nor router.

    scoreboard: of all server processes, if there are others.
    stopping: whether the server is about to end, so that endless answers end too.
    """

    def __init__(
        self, settings: Settings, metrics: Metrics, scoreboard: Scoreboard | None, **options: Any
    ) -> None:
        super().__init__(**options)
        self.settings = settings
        self.scoreboard = scoreboard
        self.metrics = metrics
        self.query_handler: QueryHandler | None = None
        self.inference_handler: InferenceHandler | None = None
        self.stopping: Callable[[], bool] = lambda: False
        self._published = 0.0
        self._malloc_trimmer = MallocTrimmer()

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Coroutine[Any, Any, None]:
        # Not async itself: whoever answers is awaited by the server, with nobody in between.
        if self.query_handler is not None and QueryHandler.matches(scope):
            return self.query_handler(scope, receive, send)
        if self.inference_handler is not None and InferenceHandler.matches(scope):
            return self.inference_handler(scope, receive, send)
        return super().__call__(scope, receive, send)

    def at_once(
        self, target: bytes, headers: list[tuple[bytes, bytes]], body: bytes, client: Client = None
    ) -> tuple[HeaderList, bytes] | None:
        """What the query path can say at once to a POST request, see `app.server.fast_path`."""
        return (
            None
            if self.query_handler is None
            else self.query_handler.try_respond(target, headers, body, client)
        )

    def tick(self) -> None:
        """Twice a second, however often it is called: publish the numbers, give memory back."""
        if time.monotonic() - self._published >= _PUBLISH_SECONDS:
            self._published = time.monotonic()
            self.metrics.publish()
            self._malloc_trimmer.poll()

    def openapi(self) -> dict[str, Any]:
        """The API's description, with what the framework does not see."""
        if self.openapi_schema is None:
            self.openapi_schema = inference_openapi.complete(openapi.complete(super().openapi()))
        return self.openapi_schema


def create_app(
    settings: Settings, *, queue: JobQueue | None = None, process: ProcessContext | None = None
) -> StmsApi:
    """The application; it opens the database and the queue when its lifespan begins.

    queue: where jobs go; by default the job engine of ``settings``.
    process: listener and slot, if there are other server processes.
    """

    @asynccontextmanager
    async def lifespan(app: StmsApi) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            await _open(app, queue, stack)
            yield

    app = StmsApi(
        settings,
        Metrics(process.scoreboard, process.slot) if process else Metrics(),
        process.scoreboard if process else None,
        title="STMS",
        description=openapi.DESCRIPTION,
        version=metadata.version("stms"),
        lifespan=lifespan,
        # Pages have rules of their own, see `app.api.docs`.
        docs_url=None,
        redoc_url=None,
    )
    app.add_middleware(RequestMiddleware, max_inflight=settings.max_inflight_requests, exempt=health.PATHS)
    install_error_handlers(app)
    # Uploads have limits of their own and are streamed, see `app.api.uploads`.
    limits = {predict: settings.max_query_bytes, datasets: None, teachers: None}
    for part in (datasets, jobs, models, teachers, predict, keys, audit, workers, health, docs):
        app.include_router(part.router, max_body_size=limits.get(part, settings.max_body_bytes))
    return app


def run_api(settings: Settings, process: ProcessContext | None = None) -> int:
    """Serve until SIGTERM, SIGINT or SIGHUP; returns the exit code.

    process: given by a parent that runs several processes; by default this is the only one.
    Raises InsecureBinding when the address needs API keys and there are none, Unavailable when that cannot be
    found out, SchemaOutdated when the database was not upgraded, and CannotListen.
    """
    check_database(settings)
    keep_freed_memory()
    limit_blas_threads()
    here = process or ProcessContext.single(settings)
    here.slot.claim(State.STARTING)
    app = create_app(settings, process=here)
    server = Server(
        app,
        here.listener,
        scoreboard=here.scoreboard,
        slot=here.slot,
        grace=settings.drain_seconds,
        max_connections=settings.max_connections,
        log_level=settings.log_level,
        tick=app.tick,
        at_once=app.at_once,
        max_connections_per_address=settings.max_connections_per_address,
        proxies=TrustedProxies(settings.proxies),
    )
    app.metrics.add_labelled_counter(
        "stms_connections_refused", "Refused by the server.", server.house.refused
    )
    mask_logs()
    app.stopping = lambda: server.should_exit
    logger.info("Process %d listens at %s port %d.", os.getpid(), *here.listener.getsockname()[:2])
    server.run()
    return 0 if server.started else 1


class SchemaOutdated(Exception):
    """The database has an older schema, or none."""


async def _open(app: StmsApi, queue: JobQueue | None, stack: AsyncExitStack) -> None:
    """Open every part; the stack closes them in the opposite order."""
    settings = app.settings
    store = Store(open_database(settings, "api"))
    stack.callback(store.dispose)
    if queue is None:
        from app.jobs.engine.client import DbosQueue

        opened = DbosQueue(settings)
        stack.callback(opened.close)
        queue = opened
    files = BlobCache(settings.cache_folder, settings.cache_disk_bytes)
    metrics, source = app.metrics, DatabaseSource(store, files)
    authenticator = Authenticator(settings, RateLimiter(settings, app.scoreboard))
    audit_writer = AuditWriter(store, authenticator)
    cache = ModelCache(source, budget=settings.cache_bytes, serve=make_servable)
    stack.callback(cache.close)
    refresher = Refresher(source, authenticator, cache, seconds=settings.refresh_seconds)
    stack.push_async_callback(refresher.stop)
    query_handler = QueryHandler(settings, authenticator, cache, metrics, audit_writer)
    stack.callback(query_handler.close)
    metrics.add_gauge("stms_queries_in_flight", "Queries under way.", lambda: query_handler.inflight)
    metrics.add_gauge("stms_cache_bytes", "Bytes of loaded students and teachers.", lambda: cache.size)
    metrics.add_gauge("stms_cache_entries", "Loaded students and teachers.", lambda: len(cache))
    metrics.add_counter("stms_cache_hits", "Students that were loaded when asked for.", lambda: cache.hits)
    metrics.add_counter("stms_cache_misses", "Students and teachers that were not.", lambda: cache.misses)
    metrics.add_job_states(lambda: _count_jobs(store))
    metrics.add_labelled_counter(
        "stms_refused", "Requests refused, by reason.", authenticator.rate_limiter.refused
    )
    await refresher.start()
    audit_writer.start()
    stack.push_async_callback(audit_writer.stop)
    app.state.context = AppContext(
        settings, store, queue, authenticator, cache, refresher, metrics, files, audit_writer
    )
    app.query_handler = query_handler
    app.inference_handler = InferenceHandler(app.state.context, query_handler)
    stack.callback(app.inference_handler.close)


def _count_jobs(store: Store) -> Mapping[str, int] | None:
    try:
        with store.read() as uow:
            return {state.value: uow.jobs.count(state) for state in JobState}
    except Unavailable:
        return None


def check_database(settings: Settings) -> None:
    """Whether the service may start: raises as `run_api`, without starting anything."""
    store = Store(open_database(settings, "api"))
    try:
        if not schema_is_current(store.engine):
            raise SchemaOutdated("The database has an older schema, or none. Run `stms db upgrade` first.")
        check_binding(settings, store)
    except SQLAlchemyError as error:
        raise Unavailable("The database cannot be reached.", code="database_unavailable") from error
    finally:
        store.dispose()
