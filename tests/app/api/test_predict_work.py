"""Predictions of large teachers are bounded, alternate between callers, and end with their client."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from app.services.keys import create_key
from app.serving.query.evaluate import answer_class
from app.serving.query.predict import Prediction
from app.store.unit_of_work import Store
from tests.app.started import Client
from tests.system.published import linear_student, linear_teacher, publish

Check = Callable[..., dict[str, Any]]
CLASSES, COLUMNS = 2000, 64
PATH = "/v1/models/large:predict"


@pytest.fixture
def large(store: Store) -> None:
    publish_large(store)


def publish_large(store: Store) -> None:
    """Publish a model whose teacher costs 128 000 multiply-adds a row."""
    classes = [f"c{i}" for i in range(CLASSES)]
    weights = np.random.default_rng(0).standard_normal((CLASSES, COLUMNS))
    students = {label: linear_student(label, weights[0]) for label in classes[:2]}
    publish(store, "large", students, linear_teacher(classes, weights))


def rows(count: int) -> dict[str, Any]:
    headers = {
        "content-type": "application/octet-stream",
        "x-tensor-shape": f"{count},{COLUMNS}",
        "x-tensor-dtype": "float32",
    }
    return {"headers": headers, "content": np.ones((count, COLUMNS), np.float32).tobytes()}


def test_work_of_several_rows_is_limited(make_client, large, problem: Check):
    client = make_client(max_query_work=CLASSES * COLUMNS * 10)
    document = problem(client.post(PATH, **rows(11)), 413, "too_much_work")
    assert "at most 9 rows" in document["detail"]
    assert client.post(PATH, **rows(9)).status_code == 200
    deciding = client.post(f"{PATH}?target=c1", **rows(9))
    problem(deciding, 413, "too_much_work")


def test_a_single_row_is_always_classified(make_client, large):
    client = make_client(max_query_work=1)
    assert client.post(PATH, json={"x": [1.0] * COLUMNS}).status_code == 200


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/models/wide/classes/a:query", {}),
        ("/v1/models/wide:query", {"classes": ["a", "b"]}),
    ],
)
def test_work_of_queries_with_sparse_rows_is_limited(
    make_client, store, problem: Check, path: str, body: Any
):
    student = {label: linear_student(label, [1.0] * 5000) for label in "ab"}
    publish(store, "wide", student, linear_teacher(["a", "b"], [[1.0] * 5000] * 2))
    client = make_client(max_query_work=200_000)
    sparse = {"indices": [0], "values": [1]}
    problem(client.post(path, json=body | {"rows": [sparse] * 100}), 413, "too_much_work")
    assert client.post(path, json=body | {"rows": [sparse] * 10}).status_code == 200


def test_work_of_an_inference_is_limited(make_client, store):
    publish(
        store, "two", {"a": linear_student("a", [1.0] * 50)}, linear_teacher(["a", "b"], [[1.0] * 50] * 2)
    )
    client = make_client(max_query_work=5000)

    def infer(count: int) -> int:
        data = [1.0] * (50 * count)
        body = {"inputs": [{"name": "x", "shape": [count, 50], "datatype": "FP64", "data": data}]}
        return int(client.post("/v2/models/two:a/infer", json=body).status_code)

    assert (infer(50), infer(51)) == (200, 413)


def test_few_bytes_of_much_work_are_not_decided_in_the_event_loop(client, store, monkeypatch):
    students = {"a": linear_student("a", [1.0] * 20_000)}
    publish(store, "wide", students, linear_teacher(["a", "b"], [[1.0] * 20_000] * 2))
    threads: list[str] = []
    decide = "app.serving.columns.table_rows.decide_all"
    original = __import__("app.serving.columns.table_rows", fromlist=["decide_all"]).decide_all

    def watched(*arguments: Any, **options: Any) -> Any:
        threads.append(threading.current_thread().name)
        return original(*arguments, **options)

    monkeypatch.setattr(decide, watched)
    body = {"rows": [{"indices": [0], "values": [1]}] * 600}
    assert client.post("/v1/models/wide/classes/a:query", json=body).status_code == 200
    assert threads
    assert all(name.startswith("stms-query") for name in threads)


def test_work_counts_towards_the_rate_limit(make_client, large, store, problem: Check):
    _, key = create_key(store, "one", scopes={"admin"}, rate_limit=1.0, rate_burst=50)
    client = make_client(rate_work=CLASSES * COLUMNS, require_keys=True)
    asked = rows(45)
    asked["headers"] |= {"authorization": f"Bearer {key}"}
    assert client.post(PATH, **asked).status_code == 200
    assert client.post(PATH, **asked).status_code == 200
    refused = client.post(PATH, **asked)
    problem(refused, 429, "rate_limited")
    assert 30 < int(refused.headers["retry-after"]) < 50


def test_other_requests_are_answered_during_many_predictions(client: Client, large, monkeypatch):
    """At 20ce477 forty predictions took all threads of /v1."""
    release = threading.Event()
    started = threading.Semaphore(0)
    original = Prediction.blocks

    def slow(self: Prediction) -> Any:
        started.release()
        release.wait(300)
        return (yield from original(self))

    monkeypatch.setattr(Prediction, "blocks", slow)

    async def scenario() -> float:
        asked = [asyncio.create_task(client._http.post(PATH, **rows(2))) for _ in range(45)]
        assert await asyncio.to_thread(started.acquire, timeout=120)
        began = time.monotonic()
        assert (await asyncio.wait_for(client._http.get("/v1/models"), 120)).status_code == 200
        took = time.monotonic() - began
        release.set()
        assert {answer.status_code for answer in await asyncio.gather(*asked)} == {200}
        return took

    assert client.run(scenario()) < 100


CROWDS = {"one key": ["default"], "keys of a tenant": ["crowd"] * 8}
"""The tenants of the keys that ask for much."""


def keys_of(store: Store, tenants: list[str]) -> list[str]:
    """A key for each of the tenants."""
    return [
        create_key(store.of_tenant(tenant), f"key {number}", scopes={"admin"})[1]
        for number, tenant in enumerate(tenants)
    ]


@pytest.mark.parametrize("tenants", CROWDS.values(), ids=CROWDS)
def test_large_queries_leave_a_thread_for_others(make_client, store, monkeypatch, tenants: list[str]):
    for tenant in {"default", *tenants}:
        students = {"a": linear_student("a", [1.0])}
        publish(store.of_tenant(tenant), "two", students, linear_teacher(["a", "b"], [[1.0]] * 2))
    crowd, [other] = keys_of(store, tenants), keys_of(store, ["default"])
    client = make_client(key_share=1.0, require_keys=True)
    release, taken = threading.Event(), threading.Semaphore(0)
    original = answer_class

    def slow(student: Any, data: bytes, *arguments: Any) -> Any:
        if b'"explain"' in bytes(data):
            taken.release()
            release.wait(300)
        return original(student, data, *arguments)

    monkeypatch.setattr("app.serving.query.handler.answer_class", slow)

    def ask(key: str, **fields: Any) -> Any:
        headers = {"authorization": f"Bearer {key}"}
        body = {"rows": [[1.0]] * 20_000, **fields}
        return client._http.post("/v1/models/two/classes/a:query", json=body, headers=headers)

    async def scenario() -> None:
        many = [asyncio.create_task(ask(crowd[number % len(crowd)], explain=True)) for number in range(8)]
        assert await asyncio.to_thread(taken.acquire, timeout=120)
        assert await asyncio.to_thread(taken.acquire, timeout=120)
        assert (await asyncio.wait_for(ask(other), 120)).status_code == 200
        assert not taken.acquire(blocking=False), "the crowd has two of the three threads"
        release.set()
        assert {answer.status_code for answer in await asyncio.gather(*many)} == {200}

    client.run(scenario())


@pytest.mark.parametrize("tenants", CROWDS.values(), ids=CROWDS)
def test_predictions_leave_a_thread_for_others(make_client, store, monkeypatch, tenants: list[str]):
    for tenant in {"default", *tenants}:
        publish_large(store.of_tenant(tenant))
    crowd, [other] = keys_of(store, tenants), keys_of(store, ["default"])
    client = make_client(key_share=1.0, require_keys=True)
    release, taken = threading.Event(), threading.Semaphore(0)
    original = Prediction.blocks

    def slow(self: Prediction) -> Any:
        if len(self.rows) == 3:
            taken.release()
            release.wait(30)
        return (yield from original(self))

    monkeypatch.setattr(Prediction, "blocks", slow)

    def ask(key: str, count: int) -> Any:
        asked = rows(count)
        return client._http.post(
            PATH, content=asked["content"], headers=asked["headers"] | {"authorization": f"Bearer {key}"}
        )

    async def scenario() -> None:
        many = [asyncio.create_task(ask(crowd[number % len(crowd)], 3)) for number in range(4)]
        assert await asyncio.to_thread(taken.acquire, timeout=20)
        assert (await asyncio.wait_for(ask(other, 2), 20)).status_code == 200
        release.set()
        assert {answer.status_code for answer in await asyncio.gather(*many)} == {200}

    client.run(scenario())


def test_a_prediction_ends_when_its_client_disconnects(client: Client, large, monkeypatch):
    counted: list[int] = []
    original = Prediction.blocks

    def watched(self: Prediction) -> Any:
        for block in original(self):
            counted.append(len(block))
            yield block

    monkeypatch.setattr(Prediction, "blocks", watched)
    monkeypatch.setattr("app.serving.query.predict._WORK_PER_ENTRY", 1e-2)
    asked = rows(500)
    messages = [{"type": "http.request", "body": asked["content"], "more_body": False}]

    async def receive() -> dict[str, Any]:
        return messages.pop(0) if messages else {"type": "http.disconnect"}

    client.run(client.exchange("POST", PATH, receive, asked["headers"]))
    assert len(counted) == 1
    assert counted[0] < 500
