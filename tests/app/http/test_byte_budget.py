"""The memory of large queries is bounded."""

from __future__ import annotations

import asyncio
import gzip
import json
from typing import Any

import pytest

from app.domain.errors import Overloaded
from app.http.byte_budget import HeldBytes, most_bytes
from app.processes.metrics import Metrics
from app.serving.cache import ModelCache
from app.serving.query.handler import QueryPath
from app.settings import Settings

PATH = "/v1/models/pets/classes/cat:query"


def test_small_bodies_are_not_counted():
    held = HeldBytes(1000)
    assert [held.take(64 * 1024) for _ in range(100)] == [0] * 100
    assert held.held == 0


def test_large_bodies_are_taken_while_there_is_room():
    held = HeldBytes(300_000)
    first, second = held.take(100_000), held.take(200_000)
    with pytest.raises(Overloaded, match="300000 bytes are under way"):
        held.take(100_000)
    held.give_back(first)
    assert held.take(100_000) == 100_000
    held.give_back(second)
    held.give_back(100_000)
    assert held.take(10**9) == 10**9, "one alone may be larger than the budget"
    with pytest.raises(Overloaded):
        held.take(100_000)


def test_what_a_body_may_become():
    assert most_bytes(5, 1000, packed=False) == 5
    assert most_bytes(None, 1000, packed=False) == 1000
    assert most_bytes(None, 1000, packed=True) == 1000
    assert most_bytes(5, 1000, packed=True) == 1000
    assert most_bytes(5, 100_000, packed=True) == 5160


class _Anybody:
    def admit(self, *given: object) -> Any:
        from app.auth.authenticator import ANONYMOUS

        return ANONYMOUS


class _Nothing:
    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"the cache is not asked for {name}")


@pytest.mark.parametrize("packed", [False, True])
def test_a_large_query_beyond_the_budget_is_told_429_before_it_is_read(packed):
    body = json.dumps({"rows": [[1.0] * 1000] * 100}).encode()
    body = gzip.compress(body) if packed else body

    async def story() -> None:
        settings = Settings(max_inflight_bytes=2**20)
        cache: ModelCache = _Nothing()  # type: ignore[assignment]
        path = QueryPath(settings, _Anybody(), cache, Metrics(), None)  # type: ignore[arg-type]
        path.held.take(2**20)
        sent: list[Any] = []
        pieces = [
            {"type": "http.request", "body": body[:1000], "more_body": not packed},
            {"type": "http.request", "body": body[1000:], "more_body": False},
        ]

        async def receive() -> Any:
            return pieces.pop(0)

        async def send(message: Any) -> None:
            sent.append(message)

        headers = [(b"content-length", b"%d" % len(body))]
        if packed:
            headers.append((b"content-encoding", b"gzip"))
            pieces[0]["body"] = body
        scope = {"type": "http", "method": "POST", "path": PATH, "raw_path": PATH.encode()}
        await path({**scope, "query_string": b"", "headers": headers}, receive, send)
        assert sent[0]["status"] == 429
        assert (b"retry-after", b"1") in sent[0]["headers"]
        assert len(pieces) == 1, "the rest was not read"
        assert path.held.held == 2**20
        assert path.inflight == 0
        path.close()

    asyncio.run(story())
