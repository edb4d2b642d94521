"""The API process: the composition root that creates all parts and connects them."""

from __future__ import annotations

import hashlib
import logging
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from importlib import metadata
from typing import Final

from sqlalchemy.exc import SQLAlchemyError

from app.api import bundles, datasets, docs, health, jobs, keys, models, openapi, operation, predict, teachers
from app.api.app import StmsApi
from app.api.dependencies import AppContext
from app.api.errors import install_error_handlers
from app.api.middleware import RequestMiddleware
from app.api.sse import EventStreams
from app.auth.audit_writer import AuditWriter
from app.auth.authenticator import Authenticator, check_binding
from app.auth.rate_limit import RateLimiter
from app.auth.sessions import Sessions
from app.auth.shares import Budgets
from app.domain.errors import Unavailable
from app.domain.ports import JobQueue
from app.http.client_address import TrustedProxies
from app.logs import mask_logs
from app.processes.database_metrics import DatabaseMetrics
from app.processes.file_reader import FileReader
from app.processes.listener import ProcessContext
from app.processes.metrics import Metrics
from app.processes.open_files import affordable_connections, raise_open_files
from app.processes.os_process import memory_limit
from app.processes.scoreboard import Scoreboard, State
from app.processes.tuning import favour_event_loop, keep_freed_memory, limit_blas_threads
from app.server.server import Server
from app.services.first_key import FirstKey, provide_first_key
from app.services.health import Probes, database_health
from app.serving.cache import ModelCache
from app.serving.input_tally import InputTallies
from app.serving.input_writer import InputWriter
from app.serving.loader import DatabaseSource
from app.serving.open_inference.handler import InferenceHandler
from app.serving.pipeline import QueryPipeline
from app.serving.predictor import Predictor
from app.serving.query.handler import QueryHandler
from app.serving.refresher import Refresher
from app.serving.servable import make_servable
from app.serving.server_beats import ServerBeats
from app.settings import Settings
from app.store.blob_cache import BlobCache
from app.store.engine import Timeouts, open_database, open_engine
from app.store.migrate import require_current_schema
from app.store.unit_of_work import Store
from app.tracing import open_tracer
from app.web.dashboard import Dashboard

logger = logging.getLogger("uvicorn.error")
"""The log that the server sets up."""

_PROBE_SECONDS: Final = 2.0
"""Longest statement, lock wait, pause and network delay of a health check."""


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
        # Generated clients call their functions so: verb and resource.
        generate_unique_id_function=lambda route: route.name,
        # A redirect would repeat the Host header of the request.
        redirect_slashes=False,
        # `app.api.docs` serves these pages with its own security headers.
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
    )
    # Uploads are streamed, with limits of their own: see `app.api.uploads`.
    streamed = [bundles.PREFIX, datasets.router.prefix, teachers.router.prefix, Dashboard.STREAMED]
    app.add_middleware(RequestMiddleware, exempt=health.PATHS, streamed=streamed)
    install_error_handlers(app)
    # `app.api.border` bounds their bodies.
    for part in (datasets, jobs, models, bundles, teachers, predict, keys, operation, health, docs):
        app.include_router(part.router)
    app.include_router(datasets.labels_router)
    if settings.dashboard:
        app.state.pages = Dashboard()
        app.include_router(app.state.pages.streamed)
        app.include_router(app.state.pages.router)
    return app


def run_api(settings: Settings, process: ProcessContext | None = None) -> int:
    """Serve until SIGTERM, SIGINT or SIGHUP; returns the exit code.

    process: what a parent of several processes passes to each; by default this process is the only one.
    Makes the first API key, as `check_database`. Raises NoFirstKey if that is impossible, InsecureBinding if
    the address requires API keys and there is no valid one, Unavailable if the database cannot be reached,
    SchemaOutdated if it was not upgraded, and CannotListen.
    """
    # The time to read a whole number grows with the square of its digits; Python permits no lower limit.
    sys.set_int_max_str_digits(sys.int_info.str_digits_check_threshold)
    check_database(settings)
    keep_freed_memory()
    limit_blas_threads()
    favour_event_loop()
    open_files = raise_open_files()
    affordable = affordable_connections(open_files, settings.database_pool_size)
    process = process or ProcessContext.single(settings)
    process.slot.claim(State.STARTING)
    app = create_app(settings, process=process)
    server = Server(
        app,
        process,
        grace=settings.drain_seconds,
        listen_seconds=settings.drain_listen_seconds,
        max_connections=min(settings.max_connections, affordable),
        log_level=settings.log_level,
        tick=app.tick,
        fast_path=app.fast_path,
        max_connections_per_address=settings.max_connections_per_address,
        key_share=settings.key_share,
        proxies=TrustedProxies(settings.proxies),
        periodic=app.periodic,
    )
    app.metrics.add_labelled_counter(
        "stms_connections_refused", "Connections and requests refused by the server.", server.context.refused
    )
    mask_logs(settings.log_format)
    if affordable < settings.max_connections:
        logger.warning(
            "at most %d connections are held at once, not the %d of STMS_MAX_CONNECTIONS, because this"
            " process may open only %d files; raise the hard limit: ulimit -Hn in a shell, LimitNOFILE= of"
            " systemd, --ulimit nofile= of a container",
            affordable,
            settings.max_connections,
            open_files,
        )
    # Before a request needs it, since that takes long.
    threading.Thread(target=app.encoded_openapi, name="stms-openapi", daemon=True).start()
    app.stopping = lambda: server.should_exit
    server.run()
    return 0 if server.started else 1


async def _open(app: StmsApi, scoreboard: Scoreboard, queue: JobQueue | None, stack: AsyncExitStack) -> None:
    """Open all parts; the stack closes them in reverse order."""
    settings = app.settings
    store = Store(open_database(settings, "api"))
    stack.callback(store.dispose)
    probes = _open_probes(settings, queue, app.metrics, stack)
    queue = queue or _open_queue(settings, stack)
    files = BlobCache.of(settings)
    metrics, source = app.metrics, DatabaseSource(store, files)
    # The poll of the registry must not wait for a connection behind other requests.
    registry_store = Store(open_database(settings, "api", pool_size=1))
    stack.callback(registry_store.dispose)
    registry = DatabaseSource(registry_store, files)
    authenticator = Authenticator(settings, RateLimiter(settings, scoreboard))
    shown = settings.metrics_models
    metrics.shows_models = lambda: not authenticator.has_customers if shown is None else shown
    audit_writer = AuditWriter(store, authenticator)
    cache = ModelCache(
        source, budget=settings.cache_bytes, serve=make_servable, move_seconds=settings.move_seconds
    )
    stack.callback(cache.close)
    refresher = Refresher(registry, authenticator, cache, seconds=settings.refresh_seconds)
    stack.push_async_callback(refresher.stop)
    budgets = Budgets(settings, lambda: authenticator.has_tenants)
    pipeline = QueryPipeline(settings, authenticator, cache, metrics, audit_writer, budgets)
    _open_pipeline(pipeline, settings, stack)
    _register_metrics(metrics, budgets, cache, authenticator.rate_limiter, refresher)
    await refresher.start()
    _start_writers(audit_writer, store, app, scoreboard, cache.tallies, stack)
    predictor = Predictor(settings)
    stack.callback(predictor.close)
    sessions = Sessions(store, authenticator, TrustedProxies(settings.proxies))
    stack.callback(sessions.close)
    context = AppContext(
        settings,
        store,
        queue,
        authenticator,
        cache,
        refresher,
        metrics,
        files,
        audit_writer,
        predictor,
        _open_streams(app, store, authenticator, stack),
        budgets,
        probes,
        _open_reader(settings, metrics, stack),
        sessions,
        pipeline.tracer,
    )
    app.state.context = context

    inference_handler = InferenceHandler(
        pipeline, store, files, audit_writer, lambda: health.is_ready(health.query_checks(context))
    )
    stack.callback(inference_handler.close)
    app.serve_queries(QueryHandler(pipeline), inference_handler)


def _open_streams(
    app: StmsApi, store: Store, authenticator: Authenticator, stack: AsyncExitStack
) -> EventStreams:
    streams = EventStreams(store, app.settings.max_streams_per_key, app.stopping, authenticator.is_valid)
    stack.callback(streams.close)
    app.metrics.add_gauge("stms_event_streams", "Open event streams of jobs.", streams.count)
    return streams


def _open_probes(
    settings: Settings, queue: JobQueue | None, metrics: Metrics, stack: AsyncExitStack
) -> Probes:
    """The health checks, which share no connection with anything else. queue: only for tests."""
    timeouts = Timeouts(*[_PROBE_SECONDS] * 4)
    store = Store(open_engine(settings.app_database_url, pool_size=1, timeouts=timeouts, part="health"))
    stack.callback(store.dispose)
    queue = queue or _open_queue(settings, stack)
    probes = Probes(lambda: database_health(store, queue, settings.takeover_seconds), metrics.render)
    stack.callback(probes.close)
    metrics.add_collector(DatabaseMetrics(probes.metrics))
    return probes


def _open_queue(settings: Settings, stack: AsyncExitStack) -> JobQueue:
    from app.jobs.engine.client import DbosQueue

    queue = DbosQueue(settings)
    stack.callback(queue.close)
    return queue


def _register_metrics(
    metrics: Metrics, budgets: Budgets, cache: ModelCache, limiter: RateLimiter, refresher: Refresher
) -> None:
    metrics.add_gauge("stms_queries_in_flight", "Queries in progress.", lambda: budgets.queries.used)
    metrics.add_gauge("stms_cache_bytes", "Bytes of loaded students and teachers.", lambda: cache.size)
    metrics.add_gauge("stms_cache_entries", "Loaded students and teachers.", lambda: len(cache))
    metrics.add_counter("stms_cache_hits", "Look-ups of students that were in memory.", lambda: cache.hits)
    metrics.add_counter(
        "stms_cache_misses",
        "Look-ups of students and teachers that were not in memory.",
        lambda: cache.misses,
    )
    metrics.add_counter(
        "stms_explained_rows_outside",
        "Explained rows with a value outside the range of the training rows.",
        lambda: cache.row_count.outside,
    )
    metrics.add_gauge("stms_references", "References that are followed.", lambda: cache.reference_count)
    metrics.add_labelled_counter(
        "stms_reference_moves_failed", "Moved references that were not preloaded.", cache.moves_failed
    )
    metrics.add_gauge(
        "stms_reference_lag_seconds",
        "Age of the served state of the registry, in seconds: the largest of all processes.",
        lambda: refresher.lag_seconds,
        combine=max,
    )
    metrics.add_gauge(
        "stms_registry_failing_seconds",
        "For how long the registry could not be read: the largest of all processes.",
        lambda: refresher.failing_seconds,
        combine=max,
    )
    metrics.add_labelled_counter("stms_refused", "Requests refused by reason.", limiter.refused)
    metrics.add_labelled_counter(
        "stms_shed", "Requests refused for lack of capacity, by budget.", budgets.refused
    )


def _start_writers(
    audit_writer: AuditWriter,
    store: Store,
    app: StmsApi,
    scoreboard: Scoreboard,
    tallies: InputTallies,
    stack: AsyncExitStack,
) -> None:
    """Start what writes into the database in the background: the audit log, the figures of the server, and
    counts of the inputs of queries.
    """
    metrics = app.metrics
    audit_writer.start()
    stack.push_async_callback(audit_writer.stop)
    metrics.add_counter(
        "stms_audit_failures", "Attempts to write the audit log that failed.", lambda: audit_writer.failures
    )
    limit = memory_limit()
    metrics.add_gauge(
        "stms_memory_limit_bytes", "Memory that all processes together may use.", lambda: limit, combine=max
    )
    # The salt is secret, and the same in all processes of the group.
    group = f"srv_{hashlib.sha256(bytes(scoreboard.salt)).hexdigest()[:16]}"
    beats = ServerBeats(store, metrics, group, app.periodic)
    beats.start()
    stack.push_async_callback(beats.stop)
    writer = InputWriter(store, tallies, metrics, app.periodic)
    writer.start()
    stack.push_async_callback(writer.stop)


def _open_pipeline(pipeline: QueryPipeline, settings: Settings, stack: AsyncExitStack) -> None:
    """Close the pipeline in the end, and give it the tracer, which is closed after it."""
    version = metadata.version("stms")
    pipeline.tracer = open_tracer(settings.trace_endpoint, settings.trace_rate, "api", version)
    if pipeline.tracer is not None:
        stack.callback(pipeline.tracer.close)
    stack.callback(pipeline.close)


def _open_reader(settings: Settings, metrics: Metrics, stack: AsyncExitStack) -> FileReader:
    reader = FileReader.of(settings)
    stack.callback(reader.close)
    metrics.add_gauge("stms_files_reading", "Uploaded files that are being read.", lambda: reader.reading)
    metrics.add_gauge("stms_files_waiting", "Uploaded files that wait to be read.", lambda: reader.waiting)
    metrics.add_labelled_counter("stms_files_unread", "Uploaded files not read by reason.", reader.failures)
    return reader


def check_database(settings: Settings) -> FirstKey:
    """Raise the errors of `run_api` that concern the database, without starting anything.

    Makes or stores the first API key if keys are required and there never was one.
    """
    store = Store(open_database(settings, "api"))
    try:
        require_current_schema(store.engine)
        first = provide_first_key(store, settings)
        check_binding(settings, store)
    except SQLAlchemyError as error:
        raise Unavailable("The database cannot be reached.", code="database_unavailable") from error
    finally:
        store.dispose()
    return first
