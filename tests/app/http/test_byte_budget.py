"""The memory of large query bodies is bounded."""

from __future__ import annotations

import asyncio
import gzip
import json
from typing import Any

import pytest

from app.domain.errors import Overloaded
from app.http.byte_budget import ByteBudget, max_body_bytes
from app.processes.metrics import Metrics
from app.serving.cache import ModelCache
from app.serving.pipeline import QueryPipeline
from app.serving.query.handler import QueryHandler
from app.settings import Settings

PATH = "/v1/models/pets/classes/cat:query"


def test_small_bodies_are_not_counted():
    budget = ByteBudget(1000)
    assert [budget.reserve(64 * 1024) for _ in range(100)] == [0] * 100
    assert budget.reserved == 0


def test_large_bodies_are_accepted_up_to_the_budget():
    budget = ByteBudget(300_000)
    first, second = budget.reserve(100_000), budget.reserve(200_000)
    with pytest.raises(Overloaded, match="300000 bytes are in progress"):
        budget.reserve(100_000)
    budget.release(first)
    assert budget.reserve(100_000) == 100_000
    budget.release(second)
    budget.release(100_000)
    assert budget.reserve(10**9) == 10**9, "one alone may be larger than the budget"
    with pytest.raises(Overloaded):
        budget.reserve(100_000)


def test_the_largest_size_of_a_body_after_decompression():
    assert max_body_bytes(5, 1000, compressed=False) == 5
    assert max_body_bytes(None, 1000, compressed=False) == 1000
    assert max_body_bytes(None, 1000, compressed=True) == 1000
    assert max_body_bytes(5, 1000, compressed=True) == 1000
    assert max_body_bytes(5, 100_000, compressed=True) == 5160


class _AnyCaller:
    def authenticate(self, *_arguments: object) -> Any:
        from app.auth.authenticator import ANONYMOUS

        return ANONYMOUS


class _NoCache:
    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"the cache is not asked for {name}")


@pytest.mark.parametrize("compressed", [False, True])
def test_a_large_query_beyond_the_budget_gets_429_before_it_is_read(compressed):
    body = json.dumps({"rows": [[1.0] * 1000] * 100}).encode()
    body = gzip.compress(body) if compressed else body

    async def story() -> None:
        settings = Settings(max_inflight_bytes=2**20)
        cache: ModelCache = _NoCache()  # type: ignore[assignment]
        pipeline = QueryPipeline(settings, _AnyCaller(), cache, Metrics(), None)  # type: ignore[arg-type]
        pipeline.byte_budget.reserve(2**20)
        sent: list[Any] = []
        pieces = [
            {"type": "http.request", "body": body[:1000], "more_body": not compressed},
            {"type": "http.request", "body": body[1000:], "more_body": False},
        ]

        async def receive() -> Any:
            return pieces.pop(0)

        async def send(message: Any) -> None:
            sent.append(message)

        headers = [(b"content-length", b"%d" % len(body))]
        if compressed:
            headers.append((b"content-encoding", b"gzip"))
            pieces[0]["body"] = body
        scope = {"type": "http", "method": "POST", "path": PATH, "raw_path": PATH.encode()}
        await QueryHandler(pipeline)({**scope, "query_string": b"", "headers": headers}, receive, send)
        assert sent[0]["status"] == 429
        assert (b"retry-after", b"1") in sent[0]["headers"]
        assert len(pieces) == 1, "the rest was not read"
        assert pipeline.byte_budget.reserved == 2**20
        assert pipeline.inflight == 0
        pipeline.close()

    asyncio.run(story())
