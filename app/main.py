"""The API process: the one place that opens everything and puts it together."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from importlib import metadata
from types import FrameType
from typing import Any

import uvicorn
from fastapi import FastAPI
from sqlalchemy.exc import SQLAlchemyError
from starlette.types import Receive, Scope, Send

from app.api import datasets, health, jobs, keys, models, openapi, predict, workers
from app.api.errors import install_error_handlers
from app.api.gate import RequestGate
from app.api.runtime import Runtime
from app.domain.entities import JobState
from app.domain.errors import Unavailable
from app.domain.ports import JobQueue
from app.serving.access import KeyGate, UnsafeExposure, check_exposure
from app.serving.cache import ModelCache
from app.serving.hot_path import QueryPath, serve_student
from app.serving.metrics import Metrics
from app.serving.refresher import Refresher
from app.serving.source import DatabaseSource
from app.settings import Settings
from app.store.engine import open_engine
from app.store.migrate import schema_is_current
from app.store.unit_of_work import Store

__all__ = ["StmsApi", "UnsafeExposure", "check_exposure", "create_app", "run_api"]

GRACE_SECONDS = 10
"""How long requests under way may take to end after SIGTERM."""

_KEEP_ALIVE_SECONDS = 75
_BACKLOG = 2048


class StmsApi(FastAPI):
    """The endpoints, with the query path in front: a query passes neither middleware nor router.

    stopping: whether the server is about to end, so that endless answers end too.
    """

    def __init__(self, settings: Settings, **options: Any) -> None:
        super().__init__(**options)
        self.settings = settings
        self.query_path: QueryPath | None = None
        self.stopping: Callable[[], bool] = lambda: False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self.query_path is not None and QueryPath.takes(scope):
            await self.query_path(scope, receive, send)
        else:
            await super().__call__(scope, receive, send)

    def openapi(self) -> dict[str, Any]:
        """The API's description, with what the framework does not see."""
        if self.openapi_schema is None:
            self.openapi_schema = openapi.complete(super().openapi())
        return self.openapi_schema


def create_app(settings: Settings, *, queue: JobQueue | None = None) -> StmsApi:
    """The application; it opens the database and the queue when its lifespan begins.

    queue: where jobs go; by default the job engine of ``settings``.
    """

    @asynccontextmanager
    async def lifespan(app: StmsApi) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            await _open(app, queue, stack)
            yield

    app = StmsApi(
        settings,
        title="STMS",
        description=openapi.DESCRIPTION,
        version=metadata.version("stms"),
        lifespan=lifespan,
    )
    app.add_middleware(RequestGate, settings=settings)
    install_error_handlers(app)
    for part in (datasets, jobs, models, predict, keys, workers, health):
        app.include_router(part.router)
    return app


def run_api(settings: Settings) -> int:
    """Serve until SIGTERM or SIGINT; returns the exit code.

    Raises UnsafeExposure when the address needs API keys and there are none, Unavailable when that cannot be
    found out, and SchemaOutdated when the database was not upgraded.
    """
    _check_database(settings)
    app = create_app(settings)
    server = uvicorn.Server(
        uvicorn.Config(
            app,
            host=settings.host,
            port=settings.port,
            http="httptools",
            access_log=False,
            server_header=False,
            log_level=settings.log_level.lower(),
            backlog=_BACKLOG,
            timeout_keep_alive=_KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=GRACE_SECONDS,
        )
    )

    def stop(_number: int, _frame: FrameType | None) -> None:
        server.should_exit = True

    # uvicorn raises the signal again once it has ended; with these handlers the end is then a clean one.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    app.stopping = lambda: server.should_exit
    server.run()
    return 0 if server.started else 1


class SchemaOutdated(Exception):
    """The database has an older schema, or none."""


async def _open(app: StmsApi, queue: JobQueue | None, stack: AsyncExitStack) -> None:
    """Open every part; the stack closes them in the opposite order."""
    settings = app.settings
    store = Store(open_engine(settings.app_database_url))
    stack.callback(store.dispose)
    if queue is None:
        from app.jobs.queue import DbosQueue

        opened = DbosQueue(settings)
        stack.callback(opened.close)
        queue = opened
    gate, metrics, source = KeyGate(settings), Metrics(), DatabaseSource(store)
    cache = ModelCache(source, budget=settings.cache_bytes, serve=serve_student)
    stack.callback(cache.close)
    refresher = Refresher(source, gate, cache, seconds=settings.refresh_seconds)
    stack.push_async_callback(refresher.stop)
    query_path = QueryPath(settings, gate, cache, metrics)
    stack.callback(query_path.close)
    metrics.watch("stms_queries_in_flight", "Queries under way.", lambda: query_path.inflight)
    metrics.watch("stms_cache_bytes", "Bytes of loaded students and teachers.", lambda: cache.size)
    metrics.watch("stms_cache_entries", "Loaded students and teachers.", lambda: len(cache))
    metrics.watch_jobs(lambda: _count_jobs(store))
    await refresher.start()
    app.state.runtime = Runtime(settings, store, queue, gate, cache, refresher, metrics)
    app.query_path = query_path


def _count_jobs(store: Store) -> Mapping[str, int] | None:
    try:
        with store.read() as uow:
            return {state.value: uow.jobs.count(state) for state in JobState}
    except Unavailable:
        return None


def _check_database(settings: Settings) -> None:
    store = Store(open_engine(settings.app_database_url))
    try:
        if not schema_is_current(store.engine):
            raise SchemaOutdated("The database has an older schema, or none. Run `stms db upgrade` first.")
        check_exposure(settings, store)
    except SQLAlchemyError as error:
        raise Unavailable("The database cannot be reached.", code="database_unavailable") from error
    finally:
        store.dispose()
