"""The API process: the composition root that creates all parts and connects them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from importlib import metadata

from sqlalchemy.exc import SQLAlchemyError

from app.api import audit, datasets, docs, health, jobs, keys, models, openapi, predict, teachers, workers
from app.api.app import StmsApi
from app.api.dependencies import AppContext
from app.api.errors import install_error_handlers
from app.api.middleware import RequestMiddleware
from app.auth.audit_writer import AuditWriter
from app.auth.authenticator import Authenticator, check_binding
from app.auth.rate_limit import RateLimiter
from app.domain.entities import JobState
from app.domain.errors import Unavailable
from app.domain.ports import JobQueue
from app.http.client_address import TrustedProxies
from app.logs import mask_logs
from app.processes.listener import ProcessContext
from app.processes.metrics import Metrics
from app.processes.scoreboard import Scoreboard, State
from app.processes.tuning import keep_freed_memory, limit_blas_threads
from app.server.server import Server
from app.serving.cache import ModelCache
from app.serving.loader import DatabaseSource
from app.serving.open_inference.handler import InferenceHandler
from app.serving.pipeline import QueryPipeline
from app.serving.query.handler import QueryHandler
from app.serving.refresher import Refresher
from app.serving.servable import make_servable
from app.settings import Settings
from app.store.blob_cache import BlobCache
from app.store.engine import open_database
from app.store.migrate import require_current_schema
from app.store.unit_of_work import Store


def create_app(
    settings: Settings, *, queue: JobQueue | None = None, process: ProcessContext | None = None
) -> StmsApi:
    """Create the application; its lifespan opens the database and the queue.

    queue: where jobs are submitted; by default the job engine of ``settings``.
    process: socket and scoreboard slot of this process; by default it has a private scoreboard.
    """
    scoreboard = process.scoreboard if process else Scoreboard.private()

    @asynccontextmanager
    async def lifespan(app: StmsApi) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            await _open(app, scoreboard, queue, stack)
            yield

    app = StmsApi(
        settings,
        Metrics(scoreboard, process.slot if process else scoreboard.slots[0]),
        title="STMS",
        description=openapi.DESCRIPTION,
        version=metadata.version("stms"),
        lifespan=lifespan,
        # `app.api.docs` serves these pages with its own security headers.
        docs_url=None,
        redoc_url=None,
    )
    app.add_middleware(RequestMiddleware, max_inflight=settings.max_inflight_requests, exempt=health.PATHS)
    install_error_handlers(app)
    # Uploads are streamed, with limits of their own: see `app.api.uploads`.
    limits = {predict: settings.max_query_bytes, datasets: None, teachers: None}
    for part in (datasets, jobs, models, teachers, predict, keys, audit, workers, health, docs):
        app.include_router(part.router, max_body_size=limits.get(part, settings.max_body_bytes))
    return app


def run_api(settings: Settings, process: ProcessContext | None = None) -> int:
    """Serve until SIGTERM, SIGINT or SIGHUP; returns the exit code.

    process: what a parent of several processes passes to each; by default this process is the only one.
    Raises InsecureBinding if the address requires API keys and there are none, Unavailable if the database
    cannot be reached, SchemaOutdated if it was not upgraded, and CannotListen.
    """
    check_database(settings)
    keep_freed_memory()
    limit_blas_threads()
    process = process or ProcessContext.single(settings)
    process.slot.claim(State.STARTING)
    app = create_app(settings, process=process)
    server = Server(
        app,
        process,
        grace=settings.drain_seconds,
        max_connections=settings.max_connections,
        log_level=settings.log_level,
        tick=app.tick,
        fast_path=app.fast_path,
        max_connections_per_address=settings.max_connections_per_address,
        proxies=TrustedProxies(settings.proxies),
    )
    app.metrics.add_labelled_counter(
        "stms_connections_refused", "Connections and requests refused by the server.", server.context.refused
    )
    mask_logs()
    app.stopping = lambda: server.should_exit
    server.run()
    return 0 if server.started else 1


async def _open(app: StmsApi, scoreboard: Scoreboard, queue: JobQueue | None, stack: AsyncExitStack) -> None:
    """Open all parts; the stack closes them in reverse order."""
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
    authenticator = Authenticator(settings, RateLimiter(settings, scoreboard))
    audit_writer = AuditWriter(store, authenticator)
    cache = ModelCache(source, budget=settings.cache_bytes, serve=make_servable)
    stack.callback(cache.close)
    refresher = Refresher(source, authenticator, cache, seconds=settings.refresh_seconds)
    stack.push_async_callback(refresher.stop)
    pipeline = QueryPipeline(settings, authenticator, cache, metrics, audit_writer)
    stack.callback(pipeline.close)
    metrics.add_gauge("stms_queries_in_flight", "Queries in progress.", lambda: pipeline.inflight)
    metrics.add_gauge("stms_cache_bytes", "Bytes of loaded students and teachers.", lambda: cache.size)
    metrics.add_gauge("stms_cache_entries", "Loaded students and teachers.", lambda: len(cache))
    metrics.add_counter("stms_cache_hits", "Look-ups of students that were in memory.", lambda: cache.hits)
    metrics.add_counter(
        "stms_cache_misses",
        "Look-ups of students and teachers that were not in memory.",
        lambda: cache.misses,
    )
    metrics.add_job_states(lambda: _count_jobs(store))
    metrics.add_labelled_counter(
        "stms_refused", "Requests refused by reason.", authenticator.rate_limiter.refused
    )
    await refresher.start()
    audit_writer.start()
    stack.push_async_callback(audit_writer.stop)
    context = AppContext(
        settings, store, queue, authenticator, cache, refresher, metrics, files, audit_writer
    )
    app.state.context = context
    inference_handler = InferenceHandler(
        pipeline, store, files, audit_writer, lambda: health.is_ready(health.run_checks(context))
    )
    stack.callback(inference_handler.close)
    app.serve_queries(QueryHandler(pipeline), inference_handler)


def _count_jobs(store: Store) -> Mapping[str, int] | None:
    try:
        with store.read() as uow:
            return {state.value: uow.jobs.count(state) for state in JobState}
    except Unavailable:
        return None


def check_database(settings: Settings) -> None:
    """Raise the errors of `run_api` that concern the database, without starting anything."""
    store = Store(open_database(settings, "api"))
    try:
        require_current_schema(store.engine)
        check_binding(settings, store)
    except SQLAlchemyError as error:
        raise Unavailable("The database cannot be reached.", code="database_unavailable") from error
    finally:
        store.dispose()
