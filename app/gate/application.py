"""What a query process answers itself: queries, the Open Inference Protocol and its own probes.

Everything else goes to the control process as it came.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Any, Final

import msgspec

from app.domain.checks import Check, is_ready
from app.gate.relay import Relay
from app.http.client_address import TrustedProxies
from app.http.cors import CrossOrigin, covers
from app.http.head_requests import answer_head
from app.http.path_prefix import PathPrefixes
from app.http.problem import NO_STORE
from app.http.request_id import HEADER, request_id_for
from app.http.responses import Response, send_response
from app.http.types import Application, HeaderList, Receive, Scope, Send
from app.processes.metrics import Metrics
from app.processes.periodic import PeriodicWork
from app.processes.tuning import MallocTrimmer
from app.server.fast_path import Client, FastPath
from app.serving.open_inference.handler import InferenceHandler
from app.serving.pipeline import QueryPipeline
from app.serving.prepared import PreparedRequest
from app.serving.query.handler import QueryHandler
from app.settings import Settings

PARTS: Final = ("connections", "heap", "inputs", "metrics")
"""The periodic work of a query process: timeouts of clients, its tick, and `InputWriter`."""
_TICK_SECONDS: Final = 0.5
_JSON: Final = (b"content-type", b"application/json")


class Gate:
    """The application of a query process.

    relay: the control process. lifespan: opens what answers queries, and calls `serve`. fast_path: for the
    server. periodic: runs the periodic work of the process, and counts its failures.
    """

    def __init__(
        self,
        settings: Settings,
        metrics: Metrics,
        relay: Relay,
        lifespan: Callable[[Gate], AbstractAsyncContextManager[None]],
    ) -> None:
        self.metrics = metrics
        self.fast_path = FastPath()
        self.periodic = PeriodicWork(PARTS)
        metrics.add_labelled_counter(
            "stms_periodic_failures", "Failures of periodic work, by part.", self.periodic.failures
        )
        self._relay = relay
        self._lifespan = lifespan
        proxies = TrustedProxies(settings.proxies)
        has_prefixes = bool(settings.root_path or settings.proxies)
        self._prefixes = PathPrefixes(settings.root_path, proxies) if has_prefixes else None
        self._cross_origin = CrossOrigin(settings.cors_origins) if settings.cors_origins else None
        self._pipeline: QueryPipeline | None = None
        self._queries: QueryHandler | None = None
        self._inference: InferenceHandler | None = None
        self._checks: Callable[[], list[Check]] = list
        self._next_tick = 0.0
        self._malloc_trimmer = MallocTrimmer()

    def serve(
        self,
        pipeline: QueryPipeline,
        queries: QueryHandler,
        inference: InferenceHandler,
        checks: Callable[[], list[Check]],
    ) -> None:
        """Start to answer. checks: whether queries should be sent to this process."""
        self._pipeline, self._queries, self._inference = pipeline, queries, inference
        self._checks = checks
        pipeline.cross_origin = self._cross_origin
        authenticator, fast_path = pipeline.authenticator, self.fast_path
        authenticator.on_change = fast_path.forget
        fast_path.caller_of = authenticator.caller_of
        fast_path.has_tenants = lambda: authenticator.has_tenants

        def prepare(target: bytes, headers: HeaderList, client: Client) -> PreparedRequest | None:
            handler = inference if target.startswith(InferenceHandler.PREFIX) else queries
            return handler.prepare(target, headers, client)

        fast_path.prepare = prepare

    def tick(self) -> None:
        """Publish the metrics and trim the heap, twice a second however often this is called."""
        now = time.monotonic()
        if now >= self._next_tick:
            self._next_tick = now + _TICK_SECONDS
            self.periodic.run("metrics", self.metrics.publish)
            self.periodic.run("heap", self._malloc_trimmer.poll)

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Coroutine[Any, Any, None]:
        # Not async itself: the server awaits the handler's coroutine directly.
        if scope["type"] == "lifespan":
            return self._run_lifespan(receive, send)
        inner, inner_send = scope, send
        if self._prefixes is not None:
            inner, inner_send = self._prefixes.applied(scope, send)
        application = self._own(inner)
        if application is None:
            return self._relay(scope, receive, send)
        if inner["method"] == "HEAD":
            return answer_head(application, inner, receive, inner_send)
        return _called(application, inner, receive, inner_send)

    def _own(self, scope: Scope) -> Application | None:
        """What answers a request in this process."""
        application: Application | None = None
        if self._queries is not None and QueryHandler.matches(scope):
            application = self._queries
        elif self._inference is not None and InferenceHandler.matches(scope):
            application = self._inference
        elif scope["method"] in ("GET", "HEAD") and scope["raw_path"] in (b"/livez", b"/readyz/queries"):
            return self._answer_probe
        if application is None or self._cross_origin is None or not covers(scope["raw_path"]):
            return application
        wait = partial(self._wait_for_turn, scope, is_probe=False)
        return partial(_respond_to_origin, self._cross_origin, application, wait)

    async def _answer_probe(self, scope: Scope, _receive: Receive, send: Send) -> None:
        document: dict[str, Any] = {"live": True}
        status, headers = 200, [_JSON, NO_STORE]
        if scope["raw_path"] != b"/livez":
            checks = self._checks()
            document = {"ready": bool(checks) and is_ready(checks)}
            if scope["query_string"].startswith(b"verbose"):
                document["checks"] = checks
            if not document["ready"]:
                status, headers = 503, [*headers, (b"retry-after", b"2")]
        await self._wait_for_turn(scope, is_probe=True)
        requested = next((value for name, value in scope["headers"] if name == HEADER), None)
        response = Response(msgspec.json.encode(document), headers, status)
        await send_response(send, response, request_id_for(requested))

    async def _wait_for_turn(self, scope: Scope, *, is_probe: bool) -> None:
        """Let a request without a key take its turn."""
        if self._pipeline is not None:
            address = self._pipeline.authenticator.address_of(scope)
            await self._pipeline.budgets.wait_without_key(address, is_probe=is_probe)

    async def _run_lifespan(self, receive: Receive, send: Send) -> None:
        await receive()
        try:
            async with self._lifespan(self):
                await send({"type": "lifespan.startup.complete"})
                await receive()
        except BaseException as error:
            await send({"type": "lifespan.startup.failed", "message": str(error)})
            raise
        await send({"type": "lifespan.shutdown.complete"})


async def _called(application: Application, scope: Scope, receive: Receive, send: Send) -> None:
    await application(scope, receive, send)


async def _respond_to_origin(
    cross_origin: CrossOrigin,
    application: Application,
    wait: Callable[[], Coroutine[Any, Any, None]],
    scope: Scope,
    receive: Receive,
    send: Send,
) -> None:
    await cross_origin.respond(application, scope, receive, send, wait)
