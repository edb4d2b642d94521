"""The ASGI application of the control process: FastAPI, and what comes before its middleware."""

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
from app.processes.metrics import Metrics
from app.processes.periodic import PeriodicWork
from app.processes.tick import Tick
from app.serving.open_inference import openapi as inference_openapi
from app.settings import Settings

_PARTS: Final = ("certificate", "connections", "figures", "heap", "inputs", "metrics", "samples", "shadows")
"""The periodic work of a server process: timeouts of clients, `ServerBeats`, `InputWriter`,
`SampleWriter`, `ShadowRunner` and `StmsApi.tick`.
"""


class StmsApi(FastAPI):
    """All endpoints but those that a query process answers, see `app.gate.application`.

    stopping: returns whether the server is shutting down, so that endless responses end too. periodic: runs
    the periodic work of the process, and counts its failures.
    """

    def __init__(self, settings: Settings, metrics: Metrics, **options: Any) -> None:
        super().__init__(**options)
        self.settings = settings
        self.metrics = metrics
        self.stopping: Callable[[], bool] = lambda: False
        prefixes = PathPrefixes(settings.root_path, TrustedProxies(settings.proxies))
        self._prefixes = prefixes if settings.root_path or settings.proxies else None
        self._cross_origin = CrossOrigin(settings.cors_origins) if settings.cors_origins else None
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
            return self._cross_origin.respond(super().__call__, scope, receive, send, wait)
        return super().__call__(scope, receive, send)

    async def _wait_for_turn(self, scope: Scope) -> None:
        """Let a request without a key take its turn."""
        context = self.state.context
        await context.budgets.wait_without_key(context.authenticator.address_of(scope))

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
