"""What a query process answers itself: queries, packages, the Open Inference Protocol and its own probes.

Everything else goes to the control process as it came.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Any, Final, TypeAlias

import msgspec

from app.domain.checks import Check, is_ready
from app.http.client_address import TrustedProxies
from app.http.cors import CrossOrigin, covers
from app.http.head_requests import answer_head
from app.http.path_prefix import PathPrefixes
from app.http.problem import NO_STORE
from app.http.request_id import HEADER, request_id_for
from app.http.responses import Response, send_response
from app.http.types import Receive, Scope, Send
from app.processes.metrics import Metrics
from app.processes.periodic import PeriodicWork
from app.processes.tick import Tick
from app.server.fast_path import FastPath
from app.serving.open_inference.handler import InferenceHandler
from app.serving.packages.handler import PackageHandler
from app.serving.packages.paths import is_package_request
from app.serving.pipeline import QueryPipeline
from app.serving.query.handler import QueryHandler
from app.settings import Settings

PARTS: Final = ("certificate", "connections", "heap", "inputs", "metrics", "samples", "shadows")
"""The periodic work of a query process: TLS, timeouts of clients, its tick, `InputWriter`,
`SampleWriter` and `ShadowRunner`.
"""
_JSON: Final = (b"content-type", b"application/json")
_PROBES: Final = (b"/livez", b"/readyz/queries")
_QUERIES_OF_PROBES: Final = (b"", b"verbose", b"verbose=", b"verbose=1", b"verbose=true")
"""Other parameters are left to the control process, which checks them."""

Handler: TypeAlias = Callable[[Scope, Receive, Send], Coroutine[Any, Any, None]]
"""An ASGI application whose coroutine the server awaits directly."""


class Gate:
    """The application of a query process.

    relay: asks the control process. lifespan: opens what answers queries, and calls `serve`. fast_path: for
    the server. periodic: runs the periodic work of the process, and counts its failures.
    """

    def __init__(
        self,
        settings: Settings,
        metrics: Metrics,
        relay: Handler,
        lifespan: Callable[[Gate], AbstractAsyncContextManager[None]],
    ) -> None:
        self.metrics = metrics
        self.fast_path = FastPath()
        self.periodic = PeriodicWork(PARTS)
        metrics.add_labelled_counter(
            "stms_periodic_failures", "Failures of periodic work, by part.", self.periodic.failures
        )
        self._relay = relay
        self.lifespan = lifespan
        proxies = TrustedProxies(settings.proxies)
        has_prefixes = bool(settings.root_path or settings.proxies)
        self._prefixes = PathPrefixes(settings.root_path, proxies) if has_prefixes else None
        self._cross_origin = CrossOrigin(settings.cors_origins) if settings.cors_origins else None
        self._pipeline: QueryPipeline | None = None
        self._queries: QueryHandler | None = None
        self._inference: InferenceHandler | None = None
        self._packages: PackageHandler | None = None
        self._checks: Callable[[], list[Check]] = list
        self.tick = Tick(metrics, self.periodic)

    def serve(
        self,
        pipeline: QueryPipeline,
        queries: QueryHandler,
        inference: InferenceHandler,
        packages: PackageHandler,
        checks: Callable[[], list[Check]],
    ) -> None:
        """Start to answer. checks: whether queries should be sent to this process."""
        self._pipeline, self._queries, self._inference = pipeline, queries, inference
        self._packages, self._checks = packages, checks
        pipeline.cross_origin = self._cross_origin
        self.fast_path.connect(pipeline.authenticator, queries.prepare, inference.prepare, packages.prepare)

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
        return application(inner, receive, inner_send)

    def _own(self, scope: Scope) -> Handler | None:
        """What answers a request in this process."""
        application: Handler | None = None
        if self._queries is not None and QueryHandler.matches(scope):
            application = self._queries
        elif self._inference is not None and InferenceHandler.matches(scope):
            application = self._inference
        elif self._packages is not None and is_package_request(scope):
            application = self._packages
        elif _is_probe(scope):
            return self._answer_probe
        if application is None or self._cross_origin is None or not covers(scope["raw_path"]):
            return application
        wait = partial(self._wait_for_turn, scope, is_probe=False)
        return partial(self._cross_origin.respond, application, wait_for_turn=wait)

    async def _answer_probe(self, scope: Scope, _receive: Receive, send: Send) -> None:
        document: dict[str, Any] = {"live": True}
        status, headers = 200, [_JSON, NO_STORE]
        if scope["raw_path"] != b"/livez":
            checks = self._checks()
            document = {"ready": bool(checks) and is_ready(checks)}
            if scope["query_string"]:
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
            async with self.lifespan(self):
                await send({"type": "lifespan.startup.complete"})
                await receive()
        except BaseException as error:
            await send({"type": "lifespan.startup.failed", "message": str(error)})
            raise
        await send({"type": "lifespan.shutdown.complete"})


def _is_probe(scope: Scope) -> bool:
    is_known = scope["raw_path"] in _PROBES and scope["query_string"] in _QUERIES_OF_PROBES
    return is_known and scope["method"] in ("GET", "HEAD")
