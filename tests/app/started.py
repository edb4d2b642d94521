"""A started application without sockets, for tests of the whole application."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import suppress
from typing import Any

import httpx

from app.api.app import StmsApi
from app.api.dependencies import AppContext
from app.domain.errors import Unavailable
from tests.system.in_process import gated


class Client:
    """A blocking client; the event loop runs only during a request. headers: sent with every request."""

    def __init__(self, app: StmsApi, headers: Mapping[str, str] | None = None) -> None:
        self.control, self.app = app, gated(app)
        self._runner = asyncio.Runner()
        self._lifespan = self.app.lifespan(self.app)
        self.run(self._lifespan.__aenter__())
        # Probes see each change of a test at once.
        probes = self.context.probes
        probes.database.seconds = probes.metrics_text.seconds = probes.open_metrics.seconds = 0.0
        self._http = httpx.AsyncClient(
            transport=httpx.ASGITransport(self.app), base_url="http://localhost", headers=headers
        )

    @property
    def context(self) -> AppContext:
        context: AppContext = self.control.state.context
        return context

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self._runner.run(work)

    async def exchange(
        self,
        method: str,
        path: str,
        receive: Callable[[], Awaitable[Any]],
        headers: Mapping[str, str] | None = None,
        address: str = "127.0.0.1",
        query: str = "",
    ) -> list[dict[str, Any]]:
        """The messages of the response to a request whose body ``receive`` gives, as ASGI says."""
        sent: list[dict[str, Any]] = []

        async def send(message: dict[str, Any]) -> None:
            sent.append(message)

        all_headers = {"host": "localhost"} | dict(headers or {})
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "root_path": "",
            "headers": [(name.encode(), value.encode()) for name, value in all_headers.items()],
            "client": (address, 1),
            "server": ("127.0.0.1", 80),
        }
        await self.app(scope, receive, send)
        return sent

    def refresh(self) -> None:
        """Follow the registry, as far as it can be read, until no reference is moving."""
        with suppress(Unavailable):
            self.run(self.context.refresher.refresh())
        self.run(self.context.cache.settle(None))

    def request(self, method: str, path: str, **options: Any) -> httpx.Response:
        response: httpx.Response = self.run(self._http.request(method, path, **options))
        return response

    def get(self, path: str, **options: Any) -> httpx.Response:
        return self.request("GET", path, **options)

    def post(self, path: str, **options: Any) -> httpx.Response:
        return self.request("POST", path, **options)

    def put(self, path: str, **options: Any) -> httpx.Response:
        return self.request("PUT", path, **options)

    def delete(self, path: str, **options: Any) -> httpx.Response:
        return self.request("DELETE", path, **options)

    def forget_cookies(self) -> None:
        """Send no cookies of earlier responses."""
        self._http.cookies.clear()

    def close(self) -> None:
        self.run(self._http.aclose())
        self.run(self._lifespan.__aexit__(None, None, None))
        self._runner.close()
