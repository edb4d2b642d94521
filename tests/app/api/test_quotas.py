"""Quotas of tenants, shares of uploads, and the page that shows their use."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save

from app.domain.entities import Caller, JobState
from app.services.keys import create_key
from app.store.unit_of_work import Store

CSV = b"a,b,label\n" + b"".join(b"%d,%d,%s\n" % (i, i * i % 7, b"yn"[i % 2 : i % 2 + 1]) for i in range(40))
Check = Callable[..., dict[str, Any]]


def other_csv(number: int) -> bytes:
    return CSV + b"%d,1,y\n" % (1000 + number)


def head() -> bytes:
    arrays = {"weights": np.eye(2, dtype=np.float32)}
    return bytes(save(arrays, {"labels": json.dumps(["x", "y"])}))


@pytest.fixture
def keys(store: Store) -> dict[str, str]:
    """Header values of an operator's key, and of train keys of the tenants a and b."""
    operator = create_key(store, "boss", scopes={"admin", "operator"})[1]
    of_tenants = {name: create_key(store.of_tenant(name), name, scopes={"train"})[1] for name in ("a", "b")}
    root = create_key(store.of_tenant("a"), "root", scopes={"admin"})[1]
    texts = {"boss": operator, "root of a": root} | of_tenants
    return {name: f"Bearer {key}" for name, key in texts.items()}


@pytest.fixture
def server(make_client, keys):
    """`server(**settings)`: makes a function that sends a request with the key of a name."""

    def make(**settings: Any) -> Callable[..., Any]:
        client = make_client(require_keys=True, **settings)

        def ask(who: str, method: str, path: str, **options: Any) -> Any:
            headers = {"authorization": keys[who]} | options.pop("headers", {})
            return client.request(method, path, headers=headers, **options)

        ask.client = client  # type: ignore[attr-defined]
        return ask

    return make


def upload(ask: Callable[..., Any], who: str, content: Any = CSV) -> Any:
    return ask(who, "POST", "/v1/datasets?format=csv", content=content)


def used(ask: Callable[..., Any], who: str, **params: str) -> dict[str, Any]:
    [entry] = ask(who, "GET", "/v1/usage", params=params).json()["data"]
    return entry


def test_data_sets_of_a_tenant_are_limited(server, problem: Check):
    ask = server(quota_datasets=2)
    for number in range(2):
        assert upload(ask, "a", other_csv(number)).status_code == 201
    document = problem(upload(ask, "a", other_csv(2)), 409, "quota_datasets")
    assert document["detail"] == "The tenant has 2 data sets; its quota is 2."
    assert upload(ask, "b").status_code == 201


def test_stored_bytes_are_limited_before_the_body_is_read(server, problem: Check):
    ask = server(quota_stored_bytes=200_000)
    unread = []

    async def body() -> Any:
        unread.append(1)
        yield b"x" * 400_000

    declared = {"content-length": "400000"}
    answer = ask("a", "POST", "/v1/datasets?format=csv", content=body(), headers=declared)
    problem(answer, 413, "quota_stored_bytes")
    assert not unread
    answer = upload(ask, "a", body())
    problem(answer, 413, "quota_stored_bytes")


def test_bytes_that_grow_when_they_are_stored_are_limited(server, problem: Check):
    ask = server(quota_stored_bytes=500)
    # The text has fewer bytes than the numbers.
    answer = upload(ask, "a", b"a,b,label\n" + b"1,2,y\n3,4,n\n" * 20)
    problem(answer, 413, "quota_stored_bytes")
    assert used(ask, "a")["stored_bytes"] == {"used": 0, "allowed": 500}


def test_versions_of_a_tenant_are_limited(server, problem: Check):
    ask = server(quota_versions=1)
    assert ask("a", "POST", "/v1/teachers?model=one", content=head()).status_code == 201
    problem(ask("a", "POST", "/v1/teachers?model=two", content=head()), 409, "quota_versions")
    body = {"dataset_id": upload(ask, "a").json()["id"], "model": "m"}
    problem(ask("a", "POST", "/v1/training-jobs", json=body), 409, "quota_versions")
    assert ask("b", "POST", "/v1/teachers?model=two", content=head()).status_code == 201


def test_unfinished_jobs_of_a_tenant_are_limited(server, store: Store, problem: Check):
    ask = server(quota_unfinished_jobs=1)
    body = {"dataset_id": upload(ask, "a").json()["id"], "model": "m"}
    job = ask("a", "POST", "/v1/training-jobs", json=body).json()
    with store.of_all_tenants().begin() as uow:
        uow.jobs.move(job["id"], JobState.RUNNING)
    problem(ask("a", "POST", "/v1/training-jobs", json=body), 429, "quota_unfinished_jobs")
    with store.of_all_tenants().begin() as uow:
        uow.jobs.move(job["id"], JobState.FAILED)
    second = ask("a", "POST", "/v1/training-jobs", json=body)
    assert second.status_code == 202
    problem(ask("a", "POST", f"/v1/training-jobs/{job['id']}/retry"), 429, "quota_unfinished_jobs")


def test_rows_of_jobs_count_until_they_are_deleted(server):
    ask = server()
    dataset = upload(ask, "a").json()["id"]
    before = used(ask, "a")
    classes = {"classes": ["y", "n"]}
    body = {"dataset_id": dataset, "model": "m", "hyperparameters": classes}
    jobs = [
        ask(
            "a", "POST", "/v1/training-jobs", json=body, headers={"idempotency-key": f"key-{number}" * 30}
        ).json()["id"]
        for number in range(3)
    ]
    full = used(ask, "a")["stored_bytes"]["used"]
    assert full > before["stored_bytes"]["used"] + 3 * 1000
    for job in jobs:
        assert ask("a", "POST", f"/v1/training-jobs/{job}/cancel").status_code == 202
        assert ask("a", "DELETE", f"/v1/training-jobs/{job}").status_code == 204
    assert used(ask, "a") == before


def test_an_operator_sets_the_quotas_of_a_tenant(server, problem: Check):
    ask = server()
    path = "/v1/quotas?tenant=a"
    answer = ask("boss", "PATCH", path, json={"datasets": 1, "stored_bytes": 10_000_000})
    assert answer.json()["datasets"] == {"used": 0, "allowed": 1}
    assert upload(ask, "a").status_code == 201
    problem(upload(ask, "a", other_csv(1)), 409, "quota_datasets")
    assert ask("boss", "PATCH", path, json={"datasets": None}).status_code == 200
    assert upload(ask, "a", other_csv(1)).status_code == 201
    entry = used(ask, "a")
    assert entry["datasets"] == {"used": 2, "allowed": 10_000}
    assert entry["stored_bytes"]["allowed"] == 10_000_000
    records = ask("boss", "GET", "/v1/audit?action=quota.set").json()["data"]
    assert [record["object"] for record in records] == ["a", "a"]
    assert ask("boss", "PATCH", path, json={"datasets": 5.0}).status_code == 200


def test_keys_of_a_tenant_are_limited(server, store: Store, problem: Check):
    """An administrator with any number of keys would take any number of shares."""
    ask = server(quota_keys=2)
    body = {"name": "one", "scopes": ["query"]}
    # Its administrator's key and its train key are two.
    problem(ask("root of a", "POST", "/v1/keys", json=body), 409, "quota_keys")
    assert ask("boss", "PATCH", "/v1/quotas?tenant=a", json={"keys": 3}).status_code == 200
    made = ask("root of a", "POST", "/v1/keys", json=body)
    assert made.status_code == 201
    document = problem(ask("root of a", "POST", "/v1/keys", json=body), 409, "quota_keys")
    assert document["detail"] == "The tenant has 3 valid API keys; its quota is 3."
    assert used(ask, "a")["keys"] == {"used": 3, "allowed": 3}
    assert ask("root of a", "DELETE", f"/v1/keys/{made.json()['details']['id']}").status_code == 200
    create_key(store.of_tenant("a"), "short", {"query"}, expires_at=time.time() + 0.02)
    time.sleep(0.03)
    # A key that was revoked or has expired does not count.
    assert used(ask, "a")["keys"]["used"] == 2
    assert ask("root of a", "POST", "/v1/keys", json=body).status_code == 201


@pytest.mark.parametrize("wrong", [{"rate_limit": 0}, {"rate_limit": 101}, {"rate_burst": 201}])
def test_only_an_operator_gives_a_key_more_than_the_installations_limit(server, problem: Check, wrong):
    ask = server(rate_limit=100, rate_burst=200)
    body = {"name": "one", "scopes": ["query"]}
    document = problem(ask("root of a", "POST", "/v1/keys", json=body | wrong), 400, "invalid_request")
    assert [fault["field"] for fault in document["errors"]] == list(wrong)
    assert ask("boss", "POST", "/v1/keys?tenant=a", json=body | wrong).status_code == 201
    allowed = body | {"rate_limit": 100, "rate_burst": 200}
    assert ask("root of a", "POST", "/v1/keys", json=allowed).status_code == 201


def test_use_is_shown_to_its_tenant_and_to_operators(server, problem: Check):
    ask = server()
    upload(ask, "a")
    ask("b", "POST", "/v1/teachers?model=one", content=head())
    own = used(ask, "a")
    assert (own["tenant"], own["datasets"]["used"], own["versions"]["used"]) == ("a", 1, 0)
    assert own["stored_bytes"]["used"] > 500
    assert own["key"]["uploads"] == {"used": 0, "allowed": 8}
    assert own["key"]["streams"] == {"used": 0, "allowed": 100}
    problem(ask("a", "GET", "/v1/usage?tenant=b"), 403, "scope_required")
    rows = ask("boss", "GET", "/v1/usage").json()["data"]
    assert [row["tenant"] for row in rows] == ["a", "b", "default"]
    first = ask("boss", "GET", "/v1/usage?limit=2")
    assert first.json()["has_more"]
    assert "after=b" in first.headers["link"]
    other = used(ask, "boss", tenant="b")
    assert (other["versions"]["used"], other["key"]) == (1, None)


def test_uploads_of_a_key_leave_room_for_others(server, keys):
    """At 20ce477 a key could send any number of uploads at a time, of any number of bytes."""
    ask = server(max_uploads=4, key_share=0.5)
    release = asyncio.Event()

    async def slow() -> Any:
        yield CSV[:100]
        await release.wait()
        yield CSV[100:]

    client, path = ask.client, "/v1/datasets?format=csv"  # type: ignore[attr-defined]

    async def scenario() -> None:
        def send(who: str, content: Any) -> Any:
            return client._http.post(path, content=content, headers={"authorization": keys[who]})

        uploads = [asyncio.create_task(send("a", slow())) for _ in range(2)]
        while client.context.budgets.uploads.used < 2:
            await asyncio.sleep(0.01)
        refused = await send("a", CSV)
        assert (refused.status_code, refused.json()["code"]) == (429, "share_exceeded")
        assert (await send("b", CSV)).status_code == 201
        release.set()
        assert sorted([answer.status_code for answer in await asyncio.gather(*uploads)]) == [200, 201]
        assert client.context.budgets.uploads.used == 0
        assert client.context.budgets.upload_bytes.used == 0

    client.run(asyncio.wait_for(scenario(), 300))


def test_bytes_of_uploads_under_way_are_limited(server):
    ask = server(max_inflight_upload_bytes=2**20, key_share=0.5)
    budget = ask.client.context.budgets.upload_bytes  # type: ignore[attr-defined]
    budget.take(Caller("another", "key_1"), 2**20 - 10)
    answer = upload(ask, "a")
    assert (answer.status_code, answer.json()["code"]) == (429, "overloaded")
    budget.release(Caller("another", "key_1"), 2**20 - 10)
    assert upload(ask, "a").status_code == 201
