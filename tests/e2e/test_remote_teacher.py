"""A newcomer's whole use over HTTP with a remote teacher: upload, train by another server, ask, explain."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import httpx
import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from tests.model_server import ModelServer, metadata, model_server

pytestmark = pytest.mark.long

Json = dict[str, Any]
Call = Callable[..., Any]

MODEL = "remote_flowers"


@pytest.fixture(scope="module")
def remote(service: Any, iris: tuple[Any, Any]) -> Iterator[ModelServer]:
    """A model server at the address that the service allows, with a model of all three classes."""
    fitted = LogisticRegression(max_iter=1000).fit(*iris)
    with model_server(fitted.decision_function, metadata(4, 3), service.remote_port) as running:
        yield running


@pytest.fixture(scope="module")
def spec(remote: ModelServer) -> Json:
    return {
        "teacher": {"method": "remote", "url": remote.url, "model": "m", "batch": 16},
        "student": {"method": "gsvm", "C": 1000},
        "features": {"kind": "nystroem", "n_components": 40},
        "evaluation": {"test_fraction": 0.3},
    }


@pytest.fixture(scope="module")
def job(http: httpx.Client, upload: Call, csv: Call, iris: Any, spec: Json, follow: Call) -> Json:
    data = upload(csv(*iris))
    body = {"dataset_id": data["id"], "model": MODEL, "hyperparameters": spec}
    response = http.post("/v1/training-jobs", json=body)
    assert response.status_code == 202, response.text
    ended = follow(response.json())
    assert ended["state"] == "succeeded", ended["error"]
    return ended


def test_every_row_is_scored_once_and_the_scores_are_not_kept(service: Any, job: Json, remote: ModelServer):
    assert remote.rows == 150
    assert service.rows("SELECT count(*) FROM remote_scores") == [(0,)]


def test_the_events_say_that_the_server_is_asked(http: httpx.Client, job: Json):
    events = http.get(f"/v1/training-jobs/{job['id']}/events", headers={"accept": "application/json"}).json()
    stages = [event["data"]["stage"] for event in events["data"] if event["type"] == "stage_started"]
    assert stages.index("remote_scores") < stages.index("teacher")


def test_students_of_a_matrix_with_the_same_scores_are_the_same(
    http: httpx.Client,
    job: Json,
    remote: ModelServer,
    spec: Json,
    npz: Call,
    upload: Call,
    follow: Call,
    iris: Any,
):
    X, labels = iris
    scores = np.asarray(remote.score(X))
    data = upload(npz(X=X, y=labels, teacher_scores=scores), "npz")
    again = spec | {"teacher": {"method": "scores"}}
    body = {"dataset_id": data["id"], "model": "matrix_flowers", "hyperparameters": again}
    assert follow(http.post("/v1/training-jobs", json=body).json())["state"] == "succeeded"
    answers = []
    for model in (MODEL, "matrix_flowers"):
        found = http.post(
            f"/v1/models/{model}/classes/virginica:query", json={"rows": X.tolist(), "explain": True}
        )
        answers.append([(one["score"], one["gate"], one["threshold"]) for one in found.json()["results"]])
    assert answers[0] == answers[1]


def test_a_query_answers_and_explains_without_the_server(http: httpx.Client, job: Json, iris: Any):
    X, labels = iris
    path = f"/v1/models/{MODEL}/classes/virginica:query"
    results = http.post(path, json={"rows": X.tolist(), "explain": True}).json()["results"]
    matches = [one["match"] == (label == "virginica") for one, label in zip(results, labels, strict=True)]
    assert np.mean(matches) > 0.9
    for one in results:
        assert one["gate"] - one["rejection"] == pytest.approx(one["score"], rel=1e-9, abs=1e-9)


def test_another_address_is_refused_by_field(http: httpx.Client, job: Json, spec: Json, problem: Call):
    for url in ("http://169.254.169.254", "http://127.0.0.1:1", "http://localhost:5432"):
        wanted = spec | {"teacher": spec["teacher"] | {"url": url}}
        body = {"dataset_id": job["dataset_id"], "model": MODEL, "hyperparameters": wanted}
        document = problem(http.post("/v1/training-jobs", json=body), 422, "remote_not_allowed")
        assert [fault["field"] for fault in document["errors"]] == ["hyperparameters.teacher.url"]


def test_a_job_that_the_server_fails_is_retried_where_it_stopped(
    http: httpx.Client, job: Json, spec: Json, remote: ModelServer, follow: Call
):
    remote.asked.clear()
    fine = remote.score
    remote.score = lambda rows: fine(rows) if len(remote.asked) < 2 else np.full((len(rows), 3), np.inf)
    wanted = spec | {"teacher": spec["teacher"] | {"batch": 30}}
    body = {"dataset_id": job["dataset_id"], "model": MODEL, "hyperparameters": wanted}
    failed = follow(http.post("/v1/training-jobs", json=body).json())
    assert (failed["state"], failed["error"]["code"]) == ("failed", "remote_bad_answer")
    remote.score = fine
    remote.asked.clear()
    again = follow(http.post(f"/v1/training-jobs/{failed['id']}/retry").json())
    assert again["state"] == "succeeded", again["error"]
    assert remote.rows == 90
