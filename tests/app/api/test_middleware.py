"""The limit on requests under way, whatever they are for."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine
from typing import Any

import pytest

from app.api.middleware import RequestMiddleware


class Visitors:
    """Requests to the middleware around a stub application that responds when `let_go` is set."""

    def __init__(self, limit: int) -> None:
        self.middleware = RequestMiddleware(self._app, limit, ["/livez"])
        self.inside = 0
        self.let_go = asyncio.Event()

    async def _app(self, scope: Any, receive: Any, send: Any) -> None:
        self.inside += 1
        kind = b"text/event-stream; charset=utf-8" if scope["path"] == "/events" else b"text/plain"
        start = {"type": "http.response.start", "status": 200, "headers": [(b"content-type", kind)]}
        if scope["path"] == "/fails":
            raise RuntimeError("on purpose")
        if scope["path"] == "/events":
            await send(start)
        if scope["path"] != "/livez":
            await self.let_go.wait()
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


def run(story: Coroutine[Any, Any, None]) -> None:
    asyncio.run(story)


def test_one_too_many_is_told_429_and_when_to_come_back():
    async def story() -> None:
        visitors = Visitors(2)
        tasks = await visitors.enter("/a", "/b")
        status, headers, body = await visitors.ask("/c")
        assert (status, headers[b"retry-after"]) == (429, b"1")
        assert headers[b"content-type"] == b"application/problem+json"
        document = json.loads(body)
        assert document["code"] == "overloaded"
        assert document["detail"] == "2 requests are in progress already."
        assert (await visitors.ask("/livez"))[0] == 200, "who runs the service is always answered"
        visitors.let_go.set()
        assert [(await task)[0] for task in tasks] == [200, 200]
        assert (await visitors.ask("/c"))[0] == 200

    run(story())


def test_streams_of_events_take_no_place_once_they_have_begun():
    async def story() -> None:
        visitors = Visitors(1)
        streams = []
        for _ in range(5):
            streams += await visitors.enter("/events")
        [task] = await visitors.enter("/a")
        assert (await visitors.ask("/events"))[0] == 429
        visitors.let_go.set()
        for each in [*streams, task]:
            assert (await each)[0] == 200
        assert visitors.middleware._inflight == 0

    run(story())


@pytest.mark.parametrize("path", ["/fails", "/v1/datasets"])
def test_a_request_that_fails_or_goes_away_leaves_its_place(path):
    async def story() -> None:
        visitors = Visitors(1)
        for _ in range(3):
            task = asyncio.create_task(visitors.ask(path))
            await asyncio.sleep(0.01)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        assert visitors.middleware._inflight == 0
        visitors.let_go.set()
        assert (await visitors.ask("/a"))[0] == 200

    run(story())
