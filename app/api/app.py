"""The ASGI application: FastAPI, with the handlers of queries in front of it."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Final

from fastapi import FastAPI

from app.api import openapi
from app.http.client_address import TrustedProxies
from app.http.cors import CrossOrigin, covers
from app.http.head_requests import answer_head
from app.http.path_prefix import PathPrefixes
from app.http.types import Receive, Scope, Send
from app.processes.fair_turns import FairTurns
from app.processes.metrics import Metrics
from app.processes.periodic import PeriodicWork
from app.processes.tick import Tick
from app.server.fast_path import FastPath
from app.serving.open_inference import openapi as inference_openapi
from app.serving.open_inference.handler import InferenceHandler
from app.serving.packages.handler import PackageHandler
from app.serving.packages.paths import is_package_request
from app.serving.query.handler import QueryHandler
from app.settings import Settings

_PARTS: Final = ("connections", "figures", "heap", "inputs", "metrics")
"""The periodic work of a server process: timeouts of clients, `ServerBeats`, `InputWriter`, and
`StmsApi.tick`."""


class StmsApi(FastAPI):
    """The endpoints; queries bypass middleware and router.

    The handlers are None, and the fast path declines, until the application has started.
    stopping: returns whether the server is shutting down, so that endless responses end too. large_bodies:
    turns of the API keys to have a large body parsed, one at a time. periodic: runs the periodic work of the
    process, and counts its failures.
    """

    def __init__(self, settings: Settings, metrics: Metrics, **options: Any) -> None:
        super().__init__(**options)
        self.settings = settings
        self.metrics = metrics
        self.query_handler: QueryHandler | None = None
        self.inference_handler: InferenceHandler | None = None
        self.package_handler: PackageHandler | None = None
        self.fast_path = FastPath()
        self.stopping: Callable[[], bool] = lambda: False
        prefixes = PathPrefixes(settings.root_path, TrustedProxies(settings.proxies))
        self._prefixes = prefixes if settings.root_path or settings.proxies else None
        self._cross_origin = CrossOrigin(settings.cors_origins) if settings.cors_origins else None
        self.large_bodies = FairTurns(1, per_caller=1)
        self.periodic = PeriodicWork(_PARTS)
        metrics.add_labelled_counter(
            "stms_periodic_failures", "Failures of periodic work, by part.", self.periodic.failures
        )
        self._encoded_openapi = b""
        self._openapi_lock = threading.Lock()
        self.tick = Tick(metrics, self.periodic)

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Coroutine[Any, Any, None]:
        # Not async itself: the server awaits the handler's coroutine directly.
        if scope["type"] == "http":
            if self._prefixes is not None:
                scope, send = self._prefixes.applied(scope, send)
            if scope["method"] == "HEAD":
                return answer_head(self._answer_pages, scope, receive, send)
        return self._answer_pages(scope, receive, send)

    def _answer_pages(self, scope: Scope, receive: Receive, send: Send) -> Coroutine[Any, Any, None]:
        """Answer pages of other origins, too, if they may ask."""
        if self._cross_origin is not None and scope["type"] == "http" and covers(scope["raw_path"]):
            wait = partial(self._wait_for_turn, scope)
            return self._cross_origin.respond(self._answer, scope, receive, send, wait)
        return self._answer(scope, receive, send)

    def _answer(self, scope: Scope, receive: Receive, send: Send) -> Coroutine[Any, Any, None]:
        if self.query_handler is not None and QueryHandler.matches(scope):
            return self.query_handler(scope, receive, send)
        if self.inference_handler is not None and InferenceHandler.matches(scope):
            return self.inference_handler(scope, receive, send)
        if self.package_handler is not None and is_package_request(scope):
            return self.package_handler(scope, receive, send)
        return super().__call__(scope, receive, send)

    async def _wait_for_turn(self, scope: Scope) -> None:
        """Let a request without a key take its turn."""
        if self.query_handler is not None:
            pipeline = self.query_handler.pipeline
            await pipeline.budgets.wait_without_key(pipeline.authenticator.address_of(scope))

    def serve_queries(
        self, queries: QueryHandler, inference: InferenceHandler, packages: PackageHandler
    ) -> None:
        """Start to answer queries, on the fast path as well."""
        self.query_handler, self.inference_handler = queries, inference
        self.package_handler = packages
        queries.pipeline.cross_origin = self._cross_origin
        self.fast_path.connect(queries.pipeline.authenticator, queries.prepare, inference.prepare)

    def openapi(self) -> dict[str, Any]:
        """The OpenAPI document, including the handlers that FastAPI does not know."""
        if self.openapi_schema is None:
            self.openapi_schema = inference_openapi.complete(openapi.complete(super().openapi()))
            openapi.move_rules(self.openapi_schema)
        return self.openapi_schema

    def encoded_openapi(self, prefix: str = "") -> bytes:
        """The OpenAPI document in JSON for a server below ``prefix``. The first call takes long."""
        with self._openapi_lock:
            if not self._encoded_openapi:
                text = json.dumps(self.openapi(), ensure_ascii=False, separators=(",", ":"))
                self._encoded_openapi = text.encode()
            document = self._encoded_openapi
        servers = json.dumps({"servers": [{"url": prefix}]}, separators=(",", ":")).encode()
        return servers[:-1] + b"," + document[1:] if prefix else document
