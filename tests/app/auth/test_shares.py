"""No caller takes more than its share of places and bytes, and all together no more than the limit."""

from __future__ import annotations

import gzip
import json
from typing import Any

import pytest

from app.auth.authenticator import ANONYMOUS
from app.auth.shares import Admission, Budgets, SharedBudget, without_place
from app.domain.errors import Overloaded
from app.http.body import max_body_bytes
from app.processes.metrics import Metrics
from app.serving.cache import ModelCache
from app.serving.pipeline import QueryPipeline
from app.serving.query.handler import QueryHandler
from app.settings import Settings
from tests.refusals import refused_as

PATH = "/v1/models/pets/classes/cat:query"


def budget_of(limit: int, share: float = 1.0) -> SharedBudget:
    return SharedBudget(limit, share, "queries", "queries", {})


def test_all_callers_together_take_no_more_than_the_limit():
    budget = budget_of(300_000)
    budget.take("a", 100_000)
    budget.take("b", 200_000)
    with pytest.raises(Overloaded, match="300000 queries are in progress"):
        budget.take("a", 100_000)
    budget.release("a", 100_000)
    budget.take("c", 100_000)
    budget.release("b", 200_000)
    budget.release("c", 100_000)
    budget.take("a", 10**9)
    with pytest.raises(Overloaded):
        budget.take("b")


@pytest.mark.parametrize(("limit", "share"), [(256, 64), (64, 16), (3, 1), (1, 1)])
def test_a_key_takes_no_more_than_its_share_and_always_one(limit: int, share: int):
    refused: dict[str, int] = {}
    budget = SharedBudget(limit, 0.25, "queries", "queries", refused)
    for _ in range(share):
        assert budget.is_available("a")
        budget.take("a")
    assert not budget.is_available("a")
    with pytest.raises(Overloaded) as caught:
        budget.take("a")
    if limit > 1:
        assert caught.value.reason == "share_exceeded"
        assert refused == {"queries": 0, "queries_of_key": 1, "queries_of_tenant": 0}
        budget.take("b")
    budget.release("a")
    assert budget.is_available("a") is (limit != 1 or share != 1) or budget.used == 0


def test_the_keys_of_one_tenant_take_half_while_there_are_other_tenants():
    has_tenants, refused = [True], dict[str, int]()
    budget = SharedBudget(64, 0.25, "requests", "requests", refused, lambda: has_tenants[0])
    for key in ("a1", "a2"):
        budget.take(key, 16, "a")
    assert not budget.is_available("a3", "a")
    with refused_as(Overloaded, "share_exceeded", match="of this tenant"):
        budget.take("a3", 1, "a")
    assert refused == {"requests": 0, "requests_of_key": 0, "requests_of_tenant": 1}
    for key in ("b1", "b2"):
        budget.take(key, 16, "b")
    for tenant in ("a", "b"):
        for number in (1, 2):
            budget.release(f"{tenant}{number}", 16, tenant)
    has_tenants[0] = False
    for number in range(4):
        budget.take(f"a{number}", 16, "a")
    assert budget.used == budget.limit, "the only tenant has all"


def test_a_tenant_that_holds_nothing_may_take_more_than_its_share():
    budget = SharedBudget(10, 1.0, "bytes", "bytes", {}, lambda: True)
    budget.take("b1", 1, "b")
    budget.take("a1", 7, "a")
    with refused_as(Overloaded, "share_exceeded", match="7 bytes of this tenant"):
        budget.take("a2", 1, "a")


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
    admission, seen = Admission(budget, budget_of(100), "slow"), []

    async def receive() -> Any:
        seen.append(budget.used)
        return {"type": "http.request", "body": pieces.pop(0), "more_body": bool(pieces)}

    received = without_place(receive, admission, is_upload=is_upload)
    admission.enter()
    for _ in range(2):
        await received()
    budget.take("other")
    if is_upload:
        await received()
        assert budget.used == 2
    else:
        with pytest.raises(Overloaded):
            await received()
        assert budget.held("slow") == 0
    admission.close()
    budget.release("other")
    assert (budget.used, seen) == (0, [0, 0, 1])


def test_the_caller_of_a_server_without_keys_takes_the_whole_capacity():
    budget = budget_of(8, 0.25)
    for _ in range(8):
        budget.take(ANONYMOUS.id)
    with pytest.raises(Overloaded, match="8 queries"):
        budget.take(ANONYMOUS.id)


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
    budgets.body_bytes.take("another", 2**20)
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
