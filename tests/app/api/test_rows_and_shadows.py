"""Rows of samples, the review of them, and shadows, over HTTP."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import sqlalchemy as sa

from app.services.keys import create_key
from app.services.performance import forget_old_samples
from app.services.quotas import get_usage
from app.serving.sample_writer import SampleWriter
from app.settings import Settings
from app.store.row_bytes import ROW_BYTES
from app.store.unit_of_work import Store
from tests.app.api.fast_path import fast_answer
from tests.app.monitored import publish_watched

ALIAS = "/v1/models/pets/aliases/latest"
ONE = "/v1/models/pets/classes/a:query"
ALL: dict[str, Any] = {"classes": {"a": {}, "b": {}}, "ask": {"yes": 1.0, "floor": 1.0}, "store": "rows"}
YES, NO = {"x": [1.0, 1.0]}, {"x": [-1.0, 0.5]}
PEER = ("127.0.0.1", 1)


@pytest.fixture
def client(make_client: Callable[..., Any], store: Store) -> Any:
    """A server that keeps rows of samples, with a monitor that chooses every answer of classes a and b."""
    publish_watched(store)
    client = make_client(query_samples="rows")
    assert client.put(f"{ALIAS}/monitor", json=ALL).status_code == 200
    return client


def write(client: Any) -> None:
    context = client.control.state.context
    SampleWriter(context.store, context.cache.watches).write()


def review(client: Any, **params: Any) -> dict[str, Any]:
    write(client)
    response = client.get(f"{ALIAS}/review", params=params)
    assert response.status_code == 200, response.text
    return response.json()  # type: ignore[no-any-return]


def give(client: Any, *items: dict[str, Any]) -> dict[str, Any]:
    write(client)
    response = client.post("/v1/feedback", json={"feedback": list(items)})
    assert response.status_code == 200, response.text
    return response.json()  # type: ignore[no-any-return]


def test_a_server_that_keeps_ids_keeps_no_rows(make_client: Any, store: Store, problem: Any):
    publish_watched(store)
    client = make_client(query_samples="ids")
    problem(client.put(f"{ALIAS}/monitor", json=ALL), 409, "samples_off")
    assert client.put(f"{ALIAS}/monitor", json=ALL | {"store": "ids"}).status_code == 200
    assert client.post(ONE, json=YES).status_code == 200
    assert [item["row"] for item in review(client)["items"]] == [None]


def test_rows_of_all_protocols_and_both_paths_are_kept_and_asked_again(client: Any):
    asked: list[dict[str, Any]] = []

    def ask(path: str, rows: list[dict[str, Any]], **options: Any) -> None:
        response = client.post(path, **options)
        assert response.status_code == 200, response.text
        assert "x-sample-id" in response.headers
        asked.extend(rows)

    ask(ONE, [YES], json=YES)
    ask(ONE, [{"x": [1.0, 0.0]}, {"x": [-1.0, 0.0]}], json={"rows": [[1.0, 0.0], [-1.0, 0.0]]})
    ask("/v1/models/pets:query", [NO, NO], json={**NO, "classes": ["a", "b"]})
    tensor = {
        "content-type": "application/octet-stream",
        "x-tensor-dtype": "float64",
        "x-tensor-shape": "1,2",
    }
    ask(ONE, [{"x": [2.0, 1.0]}], content=np.array([[2.0, 1.0]]).tobytes(), headers=tensor)
    inference = {"inputs": [{"name": "x", "shape": [1, 2], "datatype": "FP64", "data": [3.0, 1.0]}]}
    ask("/v2/models/pets:a/infer", [{"x": [3.0, 1.0]}], json=inference)
    body = json.dumps({"x": [4.0, 1.0]}).encode()
    headers = {"host": "localhost", "content-length": str(len(body))}
    fast = fast_answer(client, ONE, headers, body, PEER)
    assert fast is not None
    assert "x-sample-id" in fast[0]
    asked.append({"x": [4.0, 1.0]})
    items = review(client, limit=100)["items"]
    found = [item["row"] for item in items]
    assert sorted(map(json.dumps, found)) == sorted(map(json.dumps, asked))
    for item in items:
        again = client.post(f"/v1/models/pets/classes/{item['sample']['label']}:query", json=item["row"])
        assert again.json()["score"] == item["sample"]["score"], "the row is the one that was asked about"


def test_of_a_large_body_only_the_ids_are_kept(client: Any):
    padded = json.dumps(YES)[:-1] + " " * (1024**2) + "}"
    assert client.post(ONE, content=padded).status_code == 200
    assert [item["row"] for item in review(client)["items"]] == [None], "of a body beyond 1 MiB only ids"


def test_a_key_can_say_that_its_queries_are_never_sampled(make_client: Any, store: Store):
    publish_watched(store)
    keys = {
        "train": create_key(store, "train", {"train"})[1],
        "never": create_key(store, "quiet", {"query"}, samples="never")[1],
        "allowed": create_key(store, "loud", {"query"})[1],
    }
    client = make_client(query_samples="rows", require_keys=True)
    sent = {name: {"authorization": f"Bearer {key}"} for name, key in keys.items()}
    assert client.put(f"{ALIAS}/monitor", json=ALL, headers=sent["train"]).status_code == 200
    body = json.dumps(YES).encode()
    for name in ("never", "allowed"):
        head = {"host": "localhost", "content-length": str(len(body)), **sent[name]}
        slow = client.post("/v1/models/pets:query", json={**YES, "classes": ["a"]}, headers=sent[name])
        fast = fast_answer(client, ONE, head, body, PEER)
        assert fast is not None
        assert ("x-sample-id" in fast[0], "x-sample-id" in slow.headers) == ((name == "allowed"),) * 2


def test_what_is_skipped_does_not_come_again_and_is_no_answer(client: Any, problem: Any):
    for _ in range(3):
        client.post(ONE, json=YES)
    first = review(client, limit=1)
    assert first["waiting"] == 3
    sample = first["items"][0]["sample"]["id"]
    assert give(client, {"sample": sample, "skip": True})["results"][0]["id"] == sample
    after = review(client)
    assert after["waiting"] == 2
    assert sample not in [item["sample"]["id"] for item in after["items"]]
    [of_class] = client.get(f"{ALIAS}/performance", params={"class": "a"}).json()["classes"]
    assert (of_class["sampled_yes"], of_class["labelled_yes"]) == (3, 0)
    both = {"feedback": [{"sample": sample, "skip": True, "correct": True}]}
    assert client.post("/v1/feedback", json=both).status_code == 422
    problem(client.get("/v1/models/pets/aliases/none/review"), 404, "alias_not_found")


def test_reviewed_rows_become_a_data_set_with_the_classes_that_people_said(client: Any, problem: Any):
    problem(client.post(f"{ALIAS}/review:dataset", json={}), 422, "no_reviewed_rows")
    for i in range(4):
        client.post(ONE, json={"x": [1.0 + i, 1.0]})
        client.post(ONE, json={"x": [-1.0 - i, 1.0]})
    client.post(ONE, json={"x": [9.0, 9.0]})
    for item in review(client, limit=100)["items"]:
        x, sample = item["row"]["x"], item["sample"]["id"]
        if x[0] == 9.0:
            # Not a, and nobody says what else.
            give(client, {"sample": sample, "correct": False})
        elif x[0] > 0:
            give(client, {"sample": sample, "correct": True})
        else:
            give(client, {"sample": sample, "truth": "b"})
    made = client.post(f"{ALIAS}/review:dataset", json={"name": "seen"})
    assert made.status_code == 201, made.text
    answer = made.json()
    assert answer["left_out"] == {"class_unknown": 1}
    assert (answer["dataset"]["name"], answer["dataset"]["rows"]) == ("seen", 8)
    rows = client.get(f"/v1/datasets/{answer['dataset']['id']}/rows", params={"limit": 100}).json()["data"]
    assert {(row["x"][0] > 0, row["label"]) for row in rows} == {(True, "a"), (False, "b")}
    assert client.post(f"{ALIAS}/review:dataset", json={"name": "again"}).status_code == 200, "the same rows"


def test_too_many_shadows_are_refused(
    client: Any, store: Store, problem: Any, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("app.services.shadows.MAX_SHADOWS", 0)
    publish_watched(store, alias=None)
    problem(client.put(f"{ALIAS}/shadow", json={"version": 2}), 409, "too_many_shadows")
    for body in ({"version": 0}, {"version": 2, "share": 0}, {"version": 2, "days": 91}, {"versions": 2}):
        assert client.put(f"{ALIAS}/shadow", json=body).status_code == 422


def test_a_shadow_that_cannot_keep_up_drops_and_counts(client: Any, store: Store, problem: Any):
    publish_watched(store, alias=None)
    assert client.put(f"{ALIAS}/shadow", json={"version": 2, "share": 1.0}).status_code == 200
    rows = {"rows": [[1.0, 0.0]] * 40}
    assert client.post(ONE, json=rows).status_code == 200
    deadline = time.monotonic() + 10.0
    while (found := client.get(f"{ALIAS}/shadow").json())["asked"] < 32 and time.monotonic() < deadline:
        time.sleep(0.1)
    assert (found["asked"], found["dropped"]) == (32, 8), "of one query 32 at most"


def test_a_shadow_is_asked_after_the_answer_and_its_agreement_is_counted(
    client: Any, store: Store, problem: Any
):
    problem(client.get(f"{ALIAS}/shadow"), 404, "shadow_not_found")
    problem(client.put(f"{ALIAS}/shadow", json={"version": 1}), 409, "same_version")
    problem(client.put(f"{ALIAS}/shadow", json={"version": 9}), 404, "version_not_found")
    publish_watched(store, alias=None)
    assert client.put(f"{ALIAS}/shadow", json={"version": 2, "share": 1.0}).status_code == 200
    unseen = client.get(f"{ALIAS}/shadow").json()
    assert (unseen["active"], unseen["asked"], unseen["last_asked_at"]) == (True, 0, None)
    for body in (YES, YES, NO):
        assert client.post(ONE, json=body).status_code == 200
    client.post(ONE, json=YES, headers={"x-sample": "no"})
    deadline = time.monotonic() + 10.0
    while (found := client.get(f"{ALIAS}/shadow").json())["asked"] < 3 and time.monotonic() < deadline:
        time.sleep(0.1)
    assert (found["asked"], found["failed"], found["dropped"]) == (3, 0, 0)
    [of_class] = found["classes"]
    assert (of_class["label"], of_class["both_yes"], of_class["both_no"]) == ("a", 2, 1)
    assert of_class["agreement"]["estimate"] == 1.0
    assert client.delete(f"{ALIAS}/shadow").status_code == 204
    problem(client.delete(f"{ALIAS}/shadow"), 404, "shadow_not_found")


def test_rows_count_in_the_quota_and_are_deleted_with_their_samples(client: Any, store: Store):
    def used() -> int:
        return get_usage(store, Settings(), "default").used.stored_bytes

    before = used()
    row = [1.0, 0.123456789]
    for _ in range(20):
        assert client.post(ONE, json={"x": row}).status_code == 200
    assert review(client)["waiting"] == 20
    with store.read() as uow:
        kept = uow.connection.execute(sa.text("SELECT sum(length(content)) FROM samples")).scalar_one()
    assert kept == 20 * len('{"x":[1.0,0.123456789]}')
    assert used() - before >= kept + 20 * ROW_BYTES
    with store.begin() as uow:
        uow.connection.execute(sa.text("UPDATE samples SET hour = 1"))
    assert forget_old_samples(store, Settings()) == 20
    assert review(client)["waiting"] == 0
    with store.read() as uow:
        assert uow.connection.execute(sa.text("SELECT count(*) FROM samples")).scalar_one() == 0
    assert used() <= before + ROW_BYTES * 4
