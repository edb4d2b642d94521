"""The limits on the numbers of requests in progress, with and without a key."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from app.api import middleware
from app.api.middleware import RequestMiddleware
from app.auth.authenticator import Authenticator
from app.auth.places import without_key
from app.auth.shares import Budgets
from app.domain.audit_context import AuditContext
from app.processes.metrics import Metrics
from app.settings import Settings

ADDRESS = "203.0.113.9"


class _NoAuditWriter:
    def context_of(self, _scope: Any, request_id: str) -> AuditContext:
        return AuditContext(request_id=request_id)

    def record_denial(self, *_arguments: Any) -> None:
        """Record nothing."""


class Requests:
    """Requests to the middleware around a stub application that responds when `release` is set."""

    def __init__(self, limit: int) -> None:
        self.middleware = RequestMiddleware(self._app, ["/livez"], ["/v1/upload"])
        settings = Settings(max_inflight_requests=limit)
        authenticator = Authenticator(settings)
        authenticator.replace([])
        self.budgets = Budgets(settings)
        context = SimpleNamespace(
            authenticator=authenticator,
            budgets=self.budgets,
            audit_writer=_NoAuditWriter(),
            metrics=Metrics(),
            tracer=None,
        )
        self.app = SimpleNamespace(state=SimpleNamespace(context=context))
        self.inside = 0
        self.release = asyncio.Event()

    async def _app(self, scope: Any, receive: Any, send: Any) -> None:
        self.inside += 1
        kind = b"text/event-stream; charset=utf-8" if scope["path"] == "/v1/events" else b"text/plain"
        start = {"type": "http.response.start", "status": 200, "headers": [(b"content-type", kind)]}
        if scope["path"] == "/v1/fails":
            raise RuntimeError("on purpose")
        if scope["path"] == "/v1/events":
            await send(start)
        if scope["path"] != "/livez":
            await self.release.wait()
        if scope["path"] != "/v1/events":
            await send(start)
        await send({"type": "http.response.body", "body": b""})

    async def ask(
        self,
        path: str,
        *,
        address: str = ADDRESS,
        headers: Mapping[str, str] | None = None,
        seconds: float = 0.0,
    ) -> tuple[int, dict[bytes, bytes], bytes]:
        """seconds: in which the client takes the beginning of the response."""
        sent: list[dict[str, Any]] = []

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message: Any) -> None:
            sent.append(message)
            await asyncio.sleep(seconds if len(sent) == 1 else 0)

        scope = {"type": "http", "method": "GET", "path": path, "raw_path": path.encode(), "app": self.app}
        sent_headers = {"host": "localhost"} | dict(headers or {})
        encoded = [(name.encode(), value.encode()) for name, value in sent_headers.items()]
        scope |= {"query_string": b"", "headers": encoded, "client": (address, 1)}
        await self.middleware(scope, receive, send)
        return sent[0]["status"], dict(sent[0]["headers"]), sent[1]["body"]

    async def enter(self, *paths: str, **options: Any) -> list[asyncio.Task[Any]]:
        """Requests that are under way now."""
        wanted = self.inside + len(paths)
        tasks = [asyncio.create_task(self.ask(path, **options)) for path in paths]
        while self.inside < wanted:
            await asyncio.sleep(0)
        return tasks


async def test_a_request_over_the_limit_is_429_with_retry_after():
    requests = Requests(2)
    tasks = await requests.enter("/v1/a", "/v1/b")
    status, headers, body = await requests.ask("/v1/c")
    assert (status, headers[b"retry-after"]) == (429, b"1")
    assert headers[b"content-type"] == b"application/problem+json"
    document = json.loads(body)
    assert document["code"] == "overloaded"
    assert document["detail"] == "2 requests are in progress already."
    assert (await requests.ask("/livez"))[0] == 200, "health checks are always answered"
    requests.release.set()
    assert [(await task)[0] for task in tasks] == [200, 200]
    assert (await requests.ask("/v1/c"))[0] == 200


async def test_event_streams_do_not_count_once_they_have_started():
    requests = Requests(1)
    streams = []
    for _ in range(5):
        streams += await requests.enter("/v1/events")
    [task] = await requests.enter("/v1/a")
    assert (await requests.ask("/v1/events"))[0] == 429
    requests.release.set()
    for each in [*streams, task]:
        assert (await each)[0] == 200
    assert requests.budgets.requests.used == 0


@pytest.mark.parametrize("path", ["/v1/fails", "/v1/datasets"])
async def test_a_request_that_fails_or_is_cancelled_is_no_longer_counted(path):
    requests = Requests(1)
    for _ in range(3):
        task = asyncio.create_task(requests.ask(path))
        await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert requests.budgets.requests.used == 0
    requests.release.set()
    assert (await requests.ask("/v1/a"))[0] == 200


async def test_requests_without_a_key_wait_for_few_places_by_network_until_a_deadline(monkeypatch):
    requests = Requests(24)
    monkeypatch.setattr(middleware, "KEYLESS_SECONDS", 0.5)
    tasks = await requests.enter("/version", "/docs")
    third = asyncio.create_task(requests.ask("/openapi.json"))
    [other] = await requests.enter("/version", address="203.0.113.10")
    [own] = await requests.enter("/v1/a")
    assert requests.inside == 4, "the third of the first network waits"
    assert [(await task)[0] for task in [*tasks, third, other]] == [408] * 4
    assert (await requests.ask("/livez"))[0] == 200
    requests.release.set()
    assert (await own)[0] == 200
    assert (await requests.ask("/openapi.json"))[0] == 200
    assert requests.budgets.keyless_places.used == 0


async def test_a_client_without_a_key_may_read_for_longer_than_the_deadline(monkeypatch):
    requests = Requests(24)
    requests.release.set()
    monkeypatch.setattr(middleware, "KEYLESS_SECONDS", 0.1)
    assert (await requests.ask("/openapi.json", seconds=0.4))[0] == 200


@pytest.mark.parametrize("announced", [{"content-length": "9000"}, {"transfer-encoding": "chunked"}])
async def test_bodies_of_one_network_that_are_waited_for_are_few(announced: Mapping[str, str]):
    requests = Requests(64)
    tasks = await requests.enter(*["/version"] * 2, headers=announced)
    budgets = requests.budgets
    budgets.keyless_bodies.add(without_key(ADDRESS), 6)
    status, _, body = await requests.ask("/version", headers=announced)
    assert (status, json.loads(body)["code"]) == (429, "share_exceeded")
    assert "of this network" in json.loads(body)["detail"]
    assert budgets.refused["keyless_of_network"] == 1
    requests.release.set()
    assert (await requests.ask("/version", headers=announced, address="203.0.113.10"))[0] == 200
    for without_body in ({}, {"content-length": "0"}):
        assert (await requests.ask("/version", headers=without_body))[0] == 200
    for task in tasks:
        assert (await task)[0] == 200
    assert budgets.keyless_bodies.used == 6
