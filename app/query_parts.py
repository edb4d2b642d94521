"""What every process that answers queries is made of: its registry, its models in memory, and its limits."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import sys
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from typing import TYPE_CHECKING, Any, Final

from app.auth.audit_writer import AuditWriter
from app.auth.authenticator import Authenticator
from app.auth.rate_limit import RateLimiter
from app.auth.shares import Budgets
from app.encoders.pool import EncoderPool
from app.http.client_address import TrustedProxies
from app.logs import mask_logs
from app.processes.command import KILL_SECONDS
from app.processes.listener import ProcessContext
from app.processes.metrics import Metrics
from app.processes.open_files import affordable_connections, raise_open_files
from app.processes.os_process import ProcessName, kill_after_parent, set_process_name
from app.processes.periodic import PeriodicWork
from app.processes.scoreboard import Scoreboard, State
from app.processes.tuning import favour_event_loop, favour_others, keep_freed_memory, limit_blas_threads
from app.server.server import Server
from app.server.tls import Certificate
from app.services.own_encoders import encoder_file
from app.services.quotas import has_bytes
from app.serving.cache import ModelCache
from app.serving.loader import DatabaseSource
from app.serving.pipeline import QueryPipeline
from app.serving.query.pictures import Pictures
from app.serving.refresher import Refresher
from app.serving.sample_writer import SampleWriter
from app.serving.servable import make_servable
from app.serving.shadow_runner import ShadowRunner
from app.serving.tally_writer import InputWriter
from app.settings import Settings
from app.store.blob_cache import BlobCache
from app.store.opening import open_store
from app.store.unit_of_work import Store
from app.tracing import open_tracer

if TYPE_CHECKING:
    from app.auth.tokens import Tokens

logger = logging.getLogger("uvicorn.error")
"""The log that the server sets up."""

_TOKEN_KEYS_SECONDS: Final = 3.0
"""How long a process waits at its start for the keys of token issuers."""


@dataclass(frozen=True, slots=True)
class QueryParts:
    """The parts, see `open_query_parts`."""

    settings: Settings
    store: Store
    files: BlobCache
    authenticator: Authenticator
    audit_writer: AuditWriter
    metrics: Metrics
    cache: ModelCache
    refresher: Refresher
    budgets: Budgets
    pipeline: QueryPipeline
    pictures: Pictures


async def open_query_parts(
    settings: Settings,
    metrics: Metrics,
    scoreboard: Scoreboard,
    periodic: PeriodicWork,
    stack: AsyncExitStack,
) -> QueryParts:
    """Open the database and read the registry; the stack closes all parts in reverse order."""
    # Last of all: the queries since the last tick are counted, too.
    stack.callback(metrics.publish)
    store = open_store(settings, "api")
    stack.callback(store.dispose)
    files = BlobCache.of(settings)
    # The poll of the registry must not wait for a connection behind other requests.
    registry_store = open_store(settings, "api", pool_size=1)
    stack.callback(registry_store.dispose)
    tokens = await _open_tokens(settings, metrics, stack)
    authenticator = Authenticator(settings, RateLimiter(settings, scoreboard), tokens)
    shown = settings.metrics_models
    metrics.shows_models = lambda: not authenticator.has_customers if shown is None else shown
    audit_writer = AuditWriter(store, authenticator)
    cache = ModelCache(
        DatabaseSource(store, files),
        budget=settings.cache_bytes,
        serve=make_servable,
        move_seconds=settings.move_seconds,
    )
    stack.callback(cache.close)
    registry = DatabaseSource(registry_store, files, samples=settings.query_samples != "off")
    stack.callback(registry.close)
    refresher = Refresher(
        registry,
        authenticator,
        cache,
        seconds=settings.refresh_seconds,
        slot=metrics.slot,
        scoreboard=scoreboard,
    )
    stack.push_async_callback(refresher.stop)
    budgets = Budgets(settings, lambda: authenticator.has_tenants)
    pipeline = QueryPipeline(settings, authenticator, cache, metrics, audit_writer, budgets)
    _trace(pipeline, settings, stack)
    stack.callback(pipeline.close)
    _register_metrics(metrics, budgets, cache, authenticator.rate_limiter, refresher)
    await refresher.start()
    _start_audit(audit_writer, metrics, stack)
    _count_queries(settings, store, pipeline, metrics, periodic, stack)
    return QueryParts(
        settings,
        store,
        files,
        authenticator,
        audit_writer,
        metrics,
        cache,
        refresher,
        budgets,
        pipeline,
        _open_pictures(settings, store, pipeline, stack),
    )


def _start_audit(audit_writer: AuditWriter, metrics: Metrics, stack: AsyncExitStack) -> None:
    """Write the audit log until the stack closes."""
    audit_writer.start()
    stack.push_async_callback(audit_writer.stop)
    metrics.add_counter(
        "stms_audit_failures", "Attempts to write the audit log that failed.", lambda: audit_writer.failures
    )


def _trace(pipeline: QueryPipeline, settings: Settings, stack: AsyncExitStack) -> None:
    """Let a pipeline trace its queries until the stack closes, if there is a collector."""
    version = metadata.version("stms")
    pipeline.tracer = open_tracer(settings.trace_endpoint, settings.trace_rate, "api", version)
    if pipeline.tracer is not None:
        stack.callback(pipeline.tracer.close)


def _open_pictures(
    settings: Settings, store: Store, pipeline: QueryPipeline, stack: AsyncExitStack
) -> Pictures:
    """What encodes the pictures of queries, until the stack closes."""
    pictures = Pictures(lambda: EncoderPool.of(settings, encoder_file(store)), store, pipeline.limits)
    stack.push_async_callback(pictures.close)
    return pictures


def _count_queries(
    settings: Settings,
    store: Store,
    pipeline: QueryPipeline,
    metrics: Metrics,
    periodic: PeriodicWork,
    stack: AsyncExitStack,
) -> None:
    """Write what is counted and sampled of queries, and ask shadows, until the stack closes."""
    cache = pipeline.cache
    cache.watches.keeps_rows = settings.query_samples == "rows"
    has_room = partial(has_bytes, store, settings)
    input_writer = InputWriter(
        store, cache.tallies, metrics, periodic, has_room=has_room, watches=cache.watches
    )
    input_writer.start()
    stack.push_async_callback(input_writer.stop)
    if settings.query_samples != "off":
        sample_writer = SampleWriter(store, cache.watches, periodic, has_room=has_room)
        sample_writer.start()
        stack.push_async_callback(sample_writer.stop)
    metrics.add_counter(
        "stms_samples_dropped",
        "Answers that a monitor has chosen and that could not be kept.",
        lambda: cache.watches.dropped,
    )
    shadow_runner = ShadowRunner(store, cache, pipeline.limits, periodic)
    shadow_runner.start()
    stack.push_async_callback(shadow_runner.stop)


def prepare_process(process: ProcessContext, settings: Settings, *, is_control: bool) -> None:
    """Claim the slot of this process, and set memory, threads and logging up."""
    set_process_name(ProcessName.CONTROL if is_control else ProcessName.QUERY)
    kill_after_parent(settings.drain_seconds + KILL_SECONDS)
    # The time to read a whole number grows with the square of its digits; Python permits no lower limit.
    sys.set_int_max_str_digits(sys.int_info.str_digits_check_threshold)
    process.slot.claim(State.STARTING)
    process.slot.is_control = is_control
    keep_freed_memory()
    limit_blas_threads()
    if is_control:
        favour_others()
    else:
        favour_event_loop()
    mask_logs(settings.log_format)


def make_server(
    app: Any,
    process: ProcessContext,
    settings: Settings,
    metrics: Metrics,
    *,
    most: int,
    files_beside: int = 0,
    certificate: Certificate | None = None,
    **options: Any,
) -> Server:
    """The server of this process; it is not running yet.

    most: connections. files_beside: those that something else in the process may open. options: of `Server`.
    """
    open_files = raise_open_files()
    affordable = affordable_connections(open_files - files_beside, settings.database_pool_size)
    server = Server(
        app,
        process,
        grace=settings.drain_seconds,
        max_connections=min(most, affordable),
        log_level=settings.log_level,
        proxies=TrustedProxies(settings.proxies),
        certificate=certificate,
        **options,
    )
    metrics.add_labelled_counter(
        "stms_connections_refused", "Connections and requests refused by the server.", server.context.refused
    )
    if settings.tls_certificate is not None:
        metrics.add_gauge(
            "stms_tls_expires_seconds",
            "Time until the certificate of the server ends: the shortest of all processes.",
            # The control process renders the metric, and has no certificate.
            lambda: 0.0 if certificate is None else certificate.expires_at - time.time(),
            combine=lambda values: min(filter(None, values), default=0.0),
        )
    if affordable < most:
        logger.warning(
            "at most %d connections are held at once, not the %d of STMS_MAX_CONNECTIONS, because this"
            " process may open only %d files; raise the hard limit: ulimit -Hn in a shell, LimitNOFILE= of"
            " systemd, --ulimit nofile= of a container",
            affordable,
            most,
            open_files,
        )
    return server


def group_of(scoreboard: Scoreboard) -> str:
    """An id that all processes of a scoreboard share. Its salt is secret, so the id does not show it."""
    return f"srv_{hashlib.sha256(bytes(scoreboard.salt)).hexdigest()[:16]}"


async def _open_tokens(settings: Settings, metrics: Metrics, stack: AsyncExitStack) -> Tokens | None:
    """What recognises tokens, with the keys of those issuers that answer soon; None without issuers."""
    if not settings.token_issuers:
        return None
    from app.auth.jwks import IssuerKeys
    from app.auth.tokens import Tokens

    tokens = Tokens([(issuer, IssuerKeys(issuer)) for issuer in settings.token_issuers])
    metrics.add_labelled_counter("stms_tokens", "Tokens that were verified or refused.", tokens.outcomes)
    metrics.add_counter(
        "stms_token_keys_unread",
        "Attempts to read the keys of token issuers that failed.",
        lambda: tokens.failures,
    )
    tokens.start()
    stack.callback(tokens.stop)
    await asyncio.to_thread(tokens.wait, _TOKEN_KEYS_SECONDS)
    return tokens


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
