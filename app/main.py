"""The API process: the composition root that creates all parts and connects them."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext
from importlib import metadata
from typing import Final

from app.api import (
    bundles,
    classes,
    dataset_fetch,
    datasets,
    docs,
    encoders,
    evaluations,
    gates,
    health,
    jobs,
    keys,
    models,
    monitors,
    openapi,
    operation,
    predict,
    presigned_uploads,
    retraining,
    revisions,
    schedules,
    shadows,
    subjects,
    suspects,
    teachers,
    token_revocations,
    webhooks,
)
from app.api.app import StmsApi
from app.api.dependencies import AppContext
from app.api.errors import install_error_handlers
from app.api.middleware import RequestMiddleware
from app.api.sse import EventStreams
from app.auth.authenticator import Authenticator
from app.auth.proxy_users import ProxyUsers
from app.auth.sessions import Sessions
from app.bundle_server import open_bundle_server
from app.database_check import check_database
from app.domain.installation import has_jobs
from app.domain.ports import JobQueue
from app.gate.peer import RelayedRequests
from app.http.client_address import TrustedProxies
from app.processes.database_metrics import DatabaseMetrics
from app.processes.file_reader import FileReader
from app.processes.listener import ProcessContext
from app.processes.metrics import Metrics
from app.processes.os_process import memory_limit
from app.processes.scoreboard import Scoreboard
from app.query_parts import group_of, make_server, open_query_parts, prepare_process
from app.services.health import Probes, database_health
from app.serving.predictor import Predictor
from app.serving.server_beats import ServerBeats
from app.settings import Settings
from app.store.engine import Timeouts, open_engine
from app.store.opening import objects_of
from app.store.unit_of_work import Store
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
    streamed = [bundles.PREFIX, datasets.router.prefix, teachers.router.prefix, *Dashboard.STREAMED]
    streamed += [dataset_fetch.PATH, encoders.router.prefix]
    app.add_middleware(RequestMiddleware, exempt=health.PATHS, streamed=streamed)
    install_error_handlers(app)
    _include_routers(app)
    return app


def _include_routers(app: StmsApi) -> None:
    """Add the endpoints that a server with these settings has."""
    # `app.api.border` bounds their bodies.
    for part in (models, bundles, predict, operation, health, docs):
        app.include_router(part.router)
    if app.settings.bundle is None:
        training = (
            datasets,
            dataset_fetch,
            presigned_uploads,
            jobs,
            suspects,
            evaluations,
            gates,
            classes,
            retraining,
            *(revisions, schedules, subjects),
            teachers,
        )
        for part in (*training, encoders, keys, token_revocations, webhooks):
            app.include_router(part.router)
        app.include_router(datasets.labels_router)
        app.include_router(monitors.router)
        app.include_router(monitors.feedback_router)
        app.include_router(shadows.router)
    if app.settings.dashboard:
        app.state.pages = Dashboard()
        app.include_router(app.state.pages.streamed)
        app.include_router(app.state.pages.router)


def run_control(settings: Settings, process: ProcessContext) -> int:
    """Run the control process until SIGTERM, SIGINT or SIGHUP; returns the exit code.

    process: its listener is reached by query processes only. Raises as `check_database`, and for a server of
    bundles as `open_bundle_server`.
    """
    check_database(settings)
    prepare_process(process, settings, is_control=True)
    app = create_app(settings, process=process)
    server = make_server(
        RelayedRequests(app),
        process,
        settings,
        app.metrics,
        most=settings.max_connections * settings.api_processes,
        tick=app.tick,
        periodic=app.periodic,
    )
    app.stopping = lambda: server.should_exit
    with open_bundle_server(settings, logger.info) if settings.bundle else nullcontext():
        server.run()
    return 0 if server.started else 1


async def _open(app: StmsApi, scoreboard: Scoreboard, queue: JobQueue | None, stack: AsyncExitStack) -> None:
    """Open all parts; the stack closes them in reverse order."""
    settings, metrics = app.settings, app.metrics
    parts = await open_query_parts(settings, metrics, scoreboard, app.periodic, stack)
    store, authenticator = parts.store, parts.authenticator
    app.state.query_parts = parts
    probes = _open_probes(settings, queue, metrics, stack)
    queue = queue or _open_queue(settings, stack)
    _start_beats(store, app, scoreboard, stack)
    predictor = Predictor(settings, parts.budgets)
    stack.callback(predictor.close)
    proxies = TrustedProxies(settings.proxies)
    sessions = Sessions(store, authenticator, proxies, ProxyUsers(settings, proxies))
    stack.callback(sessions.close)
    context = AppContext(
        settings,
        store,
        queue,
        authenticator,
        parts.cache,
        parts.refresher,
        metrics,
        parts.files,
        parts.audit_writer,
        predictor,
        _open_streams(app, store, authenticator, stack),
        parts.budgets,
        probes,
        _open_reader(settings, metrics, stack),
        sessions,
        parts.pipeline.tracer,
        parts.pictures,
    )
    app.state.context = context


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
    engine = open_engine(settings.app_database_url, pool_size=1, timeouts=timeouts, part="health")
    store = Store(engine, objects=objects_of(settings, _PROBE_SECONDS))
    stack.callback(store.dispose)
    queue = queue or _open_queue(settings, stack)
    probes = Probes(lambda: database_health(store, queue, settings.takeover_seconds), metrics.render)
    stack.callback(probes.close)
    metrics.add_collector(DatabaseMetrics(probes.metrics))
    return probes


def _open_queue(settings: Settings, stack: AsyncExitStack) -> JobQueue | None:
    """The durable queue of jobs; None for a server that only answers queries."""
    if not has_jobs(settings.bundle):
        return None
    from app.jobs.engine.client import DbosQueue

    queue = DbosQueue(settings)
    stack.callback(queue.close)
    return queue


def _start_beats(store: Store, app: StmsApi, scoreboard: Scoreboard, stack: AsyncExitStack) -> None:
    """Start what writes the figures of all processes into the database."""
    metrics, limit = app.metrics, memory_limit()
    metrics.add_gauge(
        "stms_memory_limit_bytes", "Memory that all processes together may use.", lambda: limit, combine=max
    )
    beats = ServerBeats(store, metrics, group_of(scoreboard), app.periodic)
    beats.start()
    stack.push_async_callback(beats.stop)


def _open_reader(settings: Settings, metrics: Metrics, stack: AsyncExitStack) -> FileReader:
    reader = FileReader.of(settings)
    stack.callback(reader.close)
    metrics.add_gauge("stms_files_reading", "Uploaded files that are being read.", lambda: reader.reading)
    metrics.add_gauge("stms_files_waiting", "Uploaded files that wait to be read.", lambda: reader.waiting)
    metrics.add_labelled_counter("stms_files_unread", "Uploaded files not read by reason.", reader.failures)
    return reader
