"""What one request takes of places and bytes, when it takes it, and when it gives it back."""

from __future__ import annotations

import asyncio
import gzip
import json
from typing import Any

import pytest

from app.auth.authenticator import ANONYMOUS
from app.auth.places import SharedBudget, Turns
from app.auth.shares import Admission, Budgets, without_place, without_turn
from app.domain.entities import Caller
from app.domain.errors import Overloaded
from app.http.body import max_body_bytes
from app.processes.metrics import Metrics
from app.serving.cache import ModelCache
from app.serving.pipeline import QueryPipeline
from app.serving.query.handler import QueryHandler
from app.settings import Settings

PATH = "/v1/models/pets/classes/cat:query"
SLOW, OTHER = Caller("a", "slow"), Caller("b", "other")


def budget_of(limit: int) -> SharedBudget:
    return SharedBudget(limit, limit, "queries", "queries", {})


def test_a_query_without_a_place_is_refused_before_anything_is_done_for_it():
    budgets = Budgets(Settings(max_inflight_queries=1))
    admission = budgets.of_query(ANONYMOUS)
    admission.enter()
    with pytest.raises(Overloaded):
        budgets.of_query(ANONYMOUS)
    admission.close()
    budgets.of_query(ANONYMOUS)


@pytest.mark.parametrize("is_upload", [False, True])
async def test_a_request_holds_no_place_while_it_waits_for_its_body(is_upload: bool):
    budget, pieces = budget_of(1), [b"a", b"b", b"c"]
    admission, seen = Admission(budget, budget_of(100), SLOW), []

    async def receive() -> Any:
        seen.append(budget.used)
        return {"type": "http.request", "body": pieces.pop(0), "more_body": bool(pieces)}

    received = without_place(receive, admission, is_upload=is_upload)
    admission.enter()
    for _ in range(2):
        await received()
    budget.take(OTHER)
    if is_upload:
        await received()
        assert budget.used == 2
    else:
        with pytest.raises(Overloaded):
            await received()
        assert budget.held(SLOW) == 0
    admission.close()
    budget.release(OTHER)
    assert (budget.used, seen) == (0, [0, 0, 1])


async def test_a_body_without_a_key_is_waited_for_without_a_turn():
    bodies, turns, pieces = budget_of(1), Turns(1, 1), [b"a", b"b", b"c"]
    admission, seen = Admission(bodies, budget_of(100), SLOW, turns), []

    async def receive() -> Any:
        seen.append((bodies.used, turns.used))
        return {"type": "http.request", "body": pieces.pop(0), "more_body": bool(pieces)}

    received = without_turn(receive, admission)
    admission.enter()
    await admission.start()
    for _ in range(3):
        await received()
    assert seen == [(1, 0)] * 3
    assert (bodies.used, turns.used) == (0, 1)
    admission.close()
    assert turns.used == 0


@pytest.mark.parametrize("is_granted", [False, True])
async def test_a_response_that_has_begun_takes_neither_a_place_nor_a_turn(is_granted: bool):
    """Such as a stream of events, which notices by `receive` that its client leaves."""
    places, turns = budget_of(1), Turns(1, 1)
    admission = Admission(places, budget_of(100), SLOW, turns)

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    received = without_place(receive, admission, is_upload=False)
    admission.enter()
    await admission.start()
    if is_granted:
        # Another request of the key gets the turn before this one takes it again.
        other = asyncio.create_task(turns.acquire(SLOW))
        await asyncio.sleep(0)
        listening = asyncio.create_task(received())
        await asyncio.sleep(0)
        admission.respond()
        admission.leave()
        await other
        turns.release(SLOW)
        await listening
    else:
        admission.respond()
        admission.leave()
        await received()
    assert (places.used, turns.used) == (0, 0)


def test_the_largest_size_of_a_body_after_decompression():
    assert max_body_bytes(5, 1000, compressed=False) == 5
    assert max_body_bytes(None, 1000, compressed=False) == 1000
    assert max_body_bytes(None, 1000, compressed=True) == 1000
    assert max_body_bytes(5, 1000, compressed=True) == 1000
    assert max_body_bytes(5, 100_000, compressed=True) == 5160


class _AnyCaller:
    def authenticate(self, *_arguments: object) -> Any:
        return ANONYMOUS


class _NoCache:
    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"the cache is not asked for {name}")


@pytest.mark.parametrize("compressed", [False, True])
async def test_a_large_query_beyond_the_budget_gets_429_before_it_is_read(compressed):
    body = json.dumps({"rows": [[1.0] * 1000] * 100}).encode()
    body = gzip.compress(body) if compressed else body
    settings = Settings(max_inflight_bytes=2**20)
    cache: ModelCache = _NoCache()  # type: ignore[assignment]
    budgets, anyone = Budgets(settings), _AnyCaller()
    pipeline = QueryPipeline(settings, anyone, cache, Metrics(), None, budgets)  # type: ignore[arg-type]
    budgets.body_bytes.take(OTHER, 2**20)
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
    assert budgets.body_bytes.used == 2**20
    assert budgets.queries.used == 0
    pipeline.close()
