"""Evaluations over HTTP: accepted, listed, cancelled, refused; a worker computes them elsewhere."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from app.domain.entities import JobState, ModelVersion
from app.services.keys import create_key
from app.store.unit_of_work import Store
from tests.app.api.conftest import WEIGHTS
from tests.app.started import Client
from tests.system.published import publish_linear

LABELS = ("cat", "dog", "bird", "fish")
PATH = "/v1/evaluations"


def rows(count: int = 60, columns: str = "a,b,c") -> bytes:
    width = columns.count(",") + 1
    lines = [",".join([*(str(i * (k + 3) % 17) for k in range(width)), LABELS[i % 4]]) for i in range(count)]
    return "\n".join([f"{columns},label", *lines]).encode()


def upload(client: Client, content: bytes, query: str = "", **options: Any) -> str:
    response = client.post(f"/v1/datasets?format=csv{query}", content=content, **options)
    assert response.is_success, response.text
    return str(response.json()["id"])


@pytest.fixture
def letters(store: Store) -> ModelVersion:
    return publish_linear(store, "letters", WEIGHTS, LABELS, seen=b"")


@pytest.fixture
def dataset(client: Client) -> str:
    return upload(client, rows())


def ask(client: Client, dataset: str, **changed: Any) -> Any:
    return client.post(PATH, json={"version": "letters@1", "dataset_id": dataset} | changed)


def test_an_evaluation_is_accepted_queued_and_shown(client, queue, letters, dataset, store):
    publish_linear(store, "letters", -WEIGHTS, LABELS, seen=b"")
    accepted = ask(client, dataset, version="letters@latest", baseline="letters@1", tolerance=0.02)
    assert accepted.status_code == 202, accepted.text
    document = accepted.json()
    assert (document["version"], document["baseline"]) == ("letters@2", "letters@1"), "pinned"
    assert (document["state"], document["verdict"], document["rows_used"]) == ("queued", None, None)
    assert (document["part"], document["tolerance"], document["alpha"]) == ("all", 0.02, 0.05)
    assert "tenant" not in document
    assert queue.enqueued == [(document["id"], f"{document['id']}.0")]
    location = accepted.headers["location"]
    assert location == f"{PATH}/{document['id']}"
    assert accepted.headers["retry-after"] == "1"
    shown = client.get(location)
    assert shown.json() == document
    assert client.get(location, headers={"if-none-match": shown.headers["etag"]}).status_code == 304


def test_evaluations_are_listed_without_their_classes(client, letters, dataset, store):
    first, second = (ask(client, dataset).json()["id"] for _ in range(2))
    result = {"rows_used": 60, "rows_left_out": {}, "warnings": [], "verdict": None}
    with store.begin() as uow:
        uow.evaluations.begin(first)
        assert uow.evaluations.succeed(first, result, {"classes": [{"class": "cat"}], "not_compared": []})
    listed = client.get(f"{PATH}?limit=1").json()
    assert [one["id"] for one in listed["data"]] == [second]
    assert listed["has_more"]
    rest = client.get(f"{PATH}?limit=1&after={second}").json()
    assert [(one["id"], one["state"]) for one in rest["data"]] == [(first, "succeeded")]
    assert "classes" not in rest["data"][0]
    assert client.get(f"{PATH}/{first}").json()["classes"] == [{"class": "cat"}]
    assert client.get(f"{PATH}?version=letters@1&dataset_id={dataset}").json()["data"] != []
    for nothing in ("version=letters@2", "baseline=letters@1", "dataset_id=ds_none"):
        assert client.get(f"{PATH}?{nothing}").json()["data"] == []


def test_what_has_ended_is_not_changed_any_more(client, letters, dataset, store):
    evaluation = ask(client, dataset).json()["id"]
    assert client.post(f"{PATH}/{evaluation}/cancel").json()["state"] == "cancelled"
    with store.begin() as uow:
        assert uow.evaluations.begin(evaluation) is None
        assert not uow.evaluations.fail(evaluation, "code", "message")
        assert not uow.evaluations.succeed(evaluation, {"rows_used": 1}, {})
        assert uow.evaluations.state(evaluation) is JobState.CANCELLED


def test_an_evaluation_is_cancelled_then_deleted(client, queue, letters, dataset, problem):
    evaluation = ask(client, dataset).json()["id"]
    problem(client.delete(f"{PATH}/{evaluation}"), 409, "evaluation_not_ended")
    problem(client.delete(f"/v1/datasets/{dataset}"), 409, "dataset_in_use")
    assert client.post(f"{PATH}/{evaluation}/cancel").status_code == 202
    assert queue.cancelled == [f"{evaluation}.0"]
    problem(client.post(f"{PATH}/{evaluation}/cancel"), 409, "evaluation_ended")
    assert client.delete(f"{PATH}/{evaluation}").status_code == 204
    for method in ("GET", "DELETE"):
        problem(client.request(method, f"{PATH}/{evaluation}"), 404, "evaluation_not_found")
    problem(client.post(f"{PATH}/{evaluation}/cancel"), 404, "evaluation_not_found")
    assert client.delete(f"/v1/datasets/{dataset}").status_code == 204


def test_an_evaluation_is_stored_while_the_queue_is_away(client, queue, letters, dataset):
    queue.down = True
    accepted = ask(client, dataset)
    assert accepted.status_code == 202
    assert client.post(f"{PATH}/{accepted.json()['id']}/cancel").status_code == 202


def test_what_does_not_exist_is_not_evaluated(client, letters, dataset, problem):
    problem(ask(client, "ds_none"), 404, "dataset_not_found")
    problem(ask(client, dataset, version="letters@9"), 404, "version_not_found")
    problem(ask(client, dataset, version="none"), 404, "model_not_found")
    problem(ask(client, dataset, baseline="letters@other"), 404, "alias_not_found")


@pytest.mark.parametrize(
    "changed",
    [
        {"tolerance": 1.0},
        {"tolerance": -0.1},
        {"alpha": 0.0},
        {"alpha": 0.6},
        {"part": "half"},
        {"unknown_classes": "ignore"},
        {"version": "letters@"},
        {"classes": ["cat"]},
    ],
)
def test_bounds_and_unknown_fields_are_refused(client, letters, dataset, problem, changed):
    problem(ask(client, dataset, **changed), 422, "invalid_body")


def test_rows_that_do_not_fit_are_refused_at_once(client, letters, store, problem):
    problem(ask(client, upload(client, rows(49))), 422, "no_common_rows")
    problem(ask(client, upload(client, rows(60, "a,b"))), 422, "wrong_columns")
    named = {"columns": ["a", "b", "d"]}
    publish_linear(store, "named", WEIGHTS, LABELS, seen=b"", inputs=named)
    answer = problem(ask(client, upload(client, rows()), version="named"), 422, "wrong_columns")
    assert "'d'" in answer["detail"]
    problem(ask(client, upload(client, rows()), part="test"), 422, "no_test_part")


def test_a_version_whose_rows_are_not_known_is_refused_unless_measured_there(
    client, store, letters, dataset, problem
):
    old = publish_linear(store, "old", WEIGHTS, LABELS)
    problem(ask(client, dataset, version="old"), 422, "training_rows_unknown")
    problem(ask(client, dataset, baseline="old"), 422, "training_rows_unknown")
    with store.begin() as uow:
        spec = uow.jobs.get(str(old.job_id)).spec | {"evaluation": {"dataset_id": dataset}}
        uow.jobs.change(str(old.job_id), spec=spec)
    problem(ask(client, dataset, version="old"), 422, "training_rows_unknown")
    assert ask(client, dataset, version="old", part="train").status_code == 202
    with store.begin() as uow:
        uow.jobs.change(str(old.job_id), provenance={"imported": {"model": "elsewhere"}})
    assert ask(client, dataset, version="old").status_code == 202, "with the warning seen_rows_unknown"


def test_too_much_work_is_refused(client, store, dataset, problem):
    many = [f"c{k}" for k in range(5001)]
    publish_linear(store, "many", np.zeros((5001, 3)), many, seen=b"")
    problem(ask(client, dataset, version="many"), 413, "too_much_work")


def test_unfinished_evaluations_are_bounded_and_their_rows_count(client, letters, dataset, problem):
    client.request("PATCH", "/v1/quotas?tenant=default", json={"unfinished_jobs": 2})
    before = client.get("/v1/usage").json()["data"][0]["stored_bytes"]["used"]
    first, _ = (ask(client, dataset).json()["id"] for _ in range(2))
    assert client.get("/v1/usage").json()["data"][0]["stored_bytes"]["used"] >= before + 400
    problem(ask(client, dataset), 429, "quota_unfinished_jobs")
    client.post(f"{PATH}/{first}/cancel")
    assert ask(client, dataset).status_code == 202
    client.request("PATCH", "/v1/quotas?tenant=default", json={"unfinished_jobs": 9, "stored_bytes": 1})
    problem(ask(client, dataset), 413, "quota_stored_bytes")


@pytest.mark.usefixtures("keys_required")
def test_an_evaluation_of_another_tenant_does_not_exist(client, store, letters, problem):
    keys = {}
    for tenant in ("default", "rival"):
        text = create_key(store.of_tenant(tenant), "k", {"admin"})[1]
        keys[tenant] = {"authorization": f"Bearer {text}"}
    query = {"authorization": f"Bearer {create_key(store, 'q', {'query'})[1]}"}
    client.refresh()
    dataset = upload(client, rows(), headers=keys["default"])
    body = {"version": "letters@1", "dataset_id": dataset}
    problem(client.post(PATH, json=body, headers=query), 403, "scope_required")
    evaluation = client.post(PATH, json=body, headers=keys["default"]).json()["id"]
    one, rival = f"{PATH}/{evaluation}", keys["rival"]
    problem(client.get(one, headers=rival), 404, "evaluation_not_found")
    problem(client.delete(one, headers=rival), 404, "evaluation_not_found")
    problem(client.post(f"{one}/cancel", headers=rival), 404, "evaluation_not_found")
    assert client.get(PATH, headers=rival).json()["data"] == []
    problem(client.post(PATH, json=body, headers=rival), 404, "version_not_found")
    publish_linear(store.of_tenant("rival"), "letters", WEIGHTS, LABELS, seen=b"")
    problem(client.post(PATH, json=body, headers=rival), 404, "dataset_not_found")
    own = upload(client, rows(70), headers=rival)
    both = {"version": "letters@1", "dataset_id": own}
    assert client.post(PATH, json=both, headers=rival).status_code == 202
    assert client.get(one, headers=keys["default"]).json()["state"] == "queued"
