"""The limit on the number of requests in progress."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine
from typing import Any

import pytest

from app.api.middleware import RequestMiddleware


class Requests:
    """Requests to the middleware around a stub application that responds when `release` is set."""

    def __init__(self, limit: int) -> None:
        self.middleware = RequestMiddleware(self._app, limit, ["/livez"])
        self.inside = 0
        self.release = asyncio.Event()

    async def _app(self, scope: Any, receive: Any, send: Any) -> None:
        self.inside += 1
        kind = b"text/event-stream; charset=utf-8" if scope["path"] == "/events" else b"text/plain"
        start = {"type": "http.response.start", "status": 200, "headers": [(b"content-type", kind)]}
        if scope["path"] == "/fails":
            raise RuntimeError("on purpose")
        if scope["path"] == "/events":
            await send(start)
        if scope["path"] != "/livez":
            await self.release.wait()
        if scope["path"] != "/events":
            await send(start)
        await send({"type": "http.response.body", "body": b""})

    async def ask(self, path: str) -> tuple[int, dict[bytes, bytes], bytes]:
        sent: list[dict[str, Any]] = []

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message: Any) -> None:
            sent.append(message)

        scope = {"type": "http", "method": "GET", "path": path, "raw_path": path.encode(), "headers": []}
        await self.middleware(scope, receive, send)
        return sent[0]["status"], dict(sent[0]["headers"]), sent[1]["body"]

    async def enter(self, *paths: str) -> list[asyncio.Task[Any]]:
        """Requests that are under way now."""
        wanted = self.inside + len(paths)
        tasks = [asyncio.create_task(self.ask(path)) for path in paths]
        while self.inside < wanted:
            await asyncio.sleep(0)
        return tasks


def run(scenario: Coroutine[Any, Any, None]) -> None:
    asyncio.run(scenario)


def test_a_request_over_the_limit_is_429_with_retry_after():
    async def scenario() -> None:
        requests = Requests(2)
        tasks = await requests.enter("/a", "/b")
        status, headers, body = await requests.ask("/c")
        assert (status, headers[b"retry-after"]) == (429, b"1")
        assert headers[b"content-type"] == b"application/problem+json"
        document = json.loads(body)
        assert document["code"] == "overloaded"
        assert document["detail"] == "2 requests are in progress already."
        assert (await requests.ask("/livez"))[0] == 200, "health checks are always answered"
        requests.release.set()
        assert [(await task)[0] for task in tasks] == [200, 200]
        assert (await requests.ask("/c"))[0] == 200

    run(scenario())


def test_event_streams_do_not_count_once_they_have_started():
    async def scenario() -> None:
        requests = Requests(1)
        streams = []
        for _ in range(5):
            streams += await requests.enter("/events")
        [task] = await requests.enter("/a")
        assert (await requests.ask("/events"))[0] == 429
        requests.release.set()
        for each in [*streams, task]:
            assert (await each)[0] == 200
        assert requests.middleware._inflight == 0

    run(scenario())


@pytest.mark.parametrize("path", ["/fails", "/v1/datasets"])
def test_a_request_that_fails_or_is_cancelled_is_no_longer_counted(path):
    async def scenario() -> None:
        requests = Requests(1)
        for _ in range(3):
            task = asyncio.create_task(requests.ask(path))
            await asyncio.sleep(0.01)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        assert requests.middleware._inflight == 0
        requests.release.set()
        assert (await requests.ask("/a"))[0] == 200

    run(scenario())
