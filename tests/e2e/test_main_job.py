"""The main job over sockets: what a real worker makes of it, and what several ask for at once.

The tests of the API have its requests one by one, without a worker.
"""

from __future__ import annotations

import io
import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import Any

import httpx
import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet
from sklearn.datasets import dump_svmlight_file, load_digits
from sklearn.metrics import accuracy_score, f1_score

from tests.e2e.conftest import npz_bytes

Json = dict[str, Any]
Call = Callable[..., Any]


def path_of(job: Json, *rest: str) -> str:
    return "/".join(["/v1/training-jobs", job["id"], *rest])


def streamed(http: httpx.Client, job: Json, last_id: int | None = None, most: int = 10**6) -> list[Json]:
    """Events from a stream, until the server closes it or there are ``most``."""
    headers = {"accept": "text/event-stream"} | ({} if last_id is None else {"last-event-id": str(last_id)})
    found: list[Json] = []
    with http.stream("GET", path_of(job, "events"), headers=headers) as response:
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        fields: dict[str, str] = {}
        for line in response.iter_lines():
            if line:
                name, _, value = line.partition(": ")
                fields[name] = value
                continue
            if "data" in fields:
                data = json.loads(fields["data"])
                at = data.pop("at")
                number = int(fields["id"])
                found.append({"id": number, "seq": number, "at": at, "type": fields["event"], "data": data})
            fields = {}
            if len(found) == most:
                break
    return found


def as_svmlight(X: Any, codes: Any) -> bytes:
    buffer = io.BytesIO()
    dump_svmlight_file(X, codes, buffer)
    return buffer.getvalue()


def as_parquet(X: Any, labels: Any) -> bytes:
    buffer = io.BytesIO()
    columns = {f"x{k}": X[:, k] for k in range(X.shape[1])}
    parquet.write_table(pa.table(columns | {"flower": list(labels)}), buffer)
    return buffer.getvalue()


@pytest.fixture(scope="module")
def followed(http: httpx.Client, submit: Call, flowers: Json, flowers_data: Json) -> tuple[Json, Any, Any]:
    """The job behind version 2 of "flowers", and its events: three from a stream that was then left, and the
    others from one opened where the first was left and read until the server closed it.
    """
    job = submit(flowers_data["id"], "flowers", teacher={"C": 1}, student={"C": 1, "method": "svm"})
    first = streamed(http, job, most=3)
    rest = streamed(http, job, last_id=first[-1]["id"])
    return http.get(path_of(job)).json(), first, rest


@pytest.fixture(scope="module")
def second(followed: tuple[Json, Any, Any]) -> Json:
    job = followed[0]
    assert (job["state"], job["version"]) == ("succeeded", 2)
    return job


# Data sets


def test_every_format_holds_the_same_rows(http, csv, npz, iris):
    X, names = iris
    codes = np.unique(names, return_inverse=True)[1]
    sent = [
        ("text/csv", csv(X, names)),
        ("text/tab-separated-values", csv(X, names).replace(b",", b"\t")),
        ("application/x-npz", npz(X=X, y=names)),
        ("application/x-svmlight", as_svmlight(X, codes)),
        ("application/vnd.apache.parquet", as_parquet(X, names)),
        ("application/octet-stream", npz(X=X, y=names, class_names=np.unique(names))),
    ]
    for content_type, content in sent:
        response = http.post("/v1/datasets", content=content, headers={"content-type": content_type})
        assert response.status_code == 201, response.text
        document = response.json()
        assert (document["rows"], document["columns"]) == (150, 4)
        assert list(document["summary"]["class_counts"].values()) == [50, 50, 50]
        ranges = [(feature["min"], feature["max"]) for feature in document["summary"]["features"]]
        assert ranges == list(zip(X.min(axis=0), X.max(axis=0), strict=True))
        assert http.delete(response.headers["location"]).status_code == 204


# Jobs, their events and students


def test_a_job_goes_from_queued_to_a_published_version(http, flowers, flowers_data):
    assert flowers["state"] == "succeeded"
    assert flowers["stage"] == "finished"
    assert flowers["progress"] == {"done": 7, "total": 7, "share": 1.0}
    assert flowers["error"] is None
    times = [flowers[name] for name in ("created_at", "started_at", "finished_at")]
    assert times == sorted(times)
    assert all(datetime.fromisoformat(time).utcoffset() is not None for time in times)
    provenance = flowers["provenance"]
    assert provenance["seed"] == flowers["hyperparameters"]["seed"] == 0
    assert provenance["dataset_digest"] == flowers_data["digest"]
    assert provenance["versions"]["numpy"] == np.__version__
    version = http.get("/v1/models/flowers/versions/1").json()
    assert (
        (version["version"], version["job_id"]) == (flowers["version"], flowers["id"]) == (1, flowers["id"])
    )
    assert version["classes"] == ["setosa", "versicolor", "virginica"]
    assert version["teacher_digest"] == provenance["teacher_digest"]


def test_events_record_all_stages_in_order(http, flowers):
    events = http.get(path_of(flowers, "events")).json()["data"]
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    assert [event["at"] for event in events] == sorted(event["at"] for event in events)
    kinds = [event["type"] for event in events]
    assert kinds[:2] == ["job_queued", "job_started"]
    assert kinds[-2:] == ["version_published", "job_succeeded"]
    assert kinds.index("teacher_finished") < kinds.index("student_finished")
    finished = [event["data"] for event in events if event["type"] == "student_finished"]
    pairs = sorted((data["label"], data["method"]) for data in finished)
    labels = ("setosa", "versicolor", "virginica")
    assert pairs == [(label, method) for label in labels for method in ("gsvm", "svm")]
    assert all(data["gap"] <= 1e-3 for data in finished)


def test_a_stream_follows_a_running_job_across_a_broken_connection(http, followed):
    job, first, rest = followed
    assert [event["id"] for event in first + rest] == list(range(1, len(first) + len(rest) + 1))
    assert rest[-1]["type"] == "job_succeeded"
    assert first + rest == http.get(path_of(job, "events")).json()["data"]


def test_the_students_table_has_a_row_for_each_class_and_method(http, flowers):
    rows = http.get(path_of(flowers, "students")).json()["data"]
    labels = ("setosa", "versicolor", "virginica")
    wanted = {(label, method) for label in labels for method in ("gsvm", "svm", "teacher")}
    assert {(row["label"], row["method"]) for row in rows} == wanted
    for row in rows:
        assert row["state"] == "succeeded"
        assert 0 <= row["metrics"]["f1"] <= 1
        if row["method"] != "teacher":
            assert row["iterations"] > 0
            assert row["seconds"] > 0
            assert abs(row["gap"]) <= 1e-3
            assert len(row["digest"]) == 64


def test_the_measures_in_the_table_are_those_of_the_published_students(http, flowers, parts):
    rows = parts["X_test"].tolist()
    table = http.get(path_of(flowers, "students"), params={"method": "gsvm"}).json()["data"]
    for student in table:
        answer = http.post(f"/v1/models/flowers@1/classes/{student['label']}:query", json={"rows": rows})
        said = [result["match"] for result in answer.json()["results"]]
        truth = parts["y_test"] == student["label"]
        assert accuracy_score(truth, said) == pytest.approx(student["metrics"]["accuracy"])
        assert f1_score(truth, said) == pytest.approx(student["metrics"]["f1"])


def test_twin_requests_at_the_same_time_make_one_job(service, http, follow, flowers_data):
    body = {"dataset_id": flowers_data["id"], "model": "twins"}

    def send(_: int) -> httpx.Response:
        with service.client("train") as client:
            return client.post("/v1/training-jobs", json=body, headers={"idempotency-key": "twins"})

    with ThreadPoolExecutor(6) as threads:
        answers = list(threads.map(send, range(6)))
    assert {answer.status_code for answer in answers} == {202}
    assert len({answer.json()["id"] for answer in answers}) == 1
    job = answers[0].json()
    http.post(path_of(job, "cancel"))
    follow(job)


@pytest.mark.long
def test_a_cancelled_job_keeps_its_students_and_a_retry_trains_the_rest(
    http, problem, submit, upload, follow, slow_data, slow
):
    # Rows and folds enough that it lasts from its first student until it is cancelled.
    X, y = load_digits(return_X_y=True)
    larger = upload(npz_bytes(X=X[:1300], y=y[:1300]), "npz", name="more_digits")
    job = submit(larger["id"], "retried", **slow | {"threshold": {"rule": "f1", "folds": 20}})
    waiting = submit(slow_data["id"], "waiting", **slow)
    assert http.post(path_of(waiting, "cancel")).json()["state"] == "cancelled"
    running = streamed_until(http, job, "student_finished")
    assert "version" not in running
    asked = http.post(path_of(job, "cancel"))
    assert (asked.status_code, asked.json()["state"]) == (202, "cancelling")
    job = follow(job)
    assert (job["state"], job["version"]) == ("cancelled", None)
    kept = http.get(path_of(job, "students"), params={"method": "gsvm"}).json()["data"]
    kept = {row["label"]: row for row in kept if row["state"] == "succeeded"}
    assert 1 <= len(kept) < 10
    problem(http.post(path_of(job, "cancel")), 409, "job_ended")
    again = http.post(path_of(job, "retry"))
    assert (again.status_code, again.json()["state"], again.json()["attempt"]) == (202, "queued", 1)
    job = follow(again.json())
    assert (job["state"], job["version"]) == ("succeeded", 1)
    rows = http.get(path_of(job, "students"), params={"method": "gsvm"}).json()["data"]
    assert {row["state"] for row in rows} == {"succeeded"}
    assert [row for row in rows if row["label"] in kept] == list(kept.values())
    events = http.get(path_of(job, "events")).json()["data"]
    trained = [event["data"]["label"] for event in events if event["type"] == "student_finished"]
    assert sorted(trained) == sorted(row["label"] for row in rows)
    problem(http.post(path_of(job, "retry")), 409, "job_not_retriable")


def streamed_until(http: httpx.Client, job: Json, event_type: str) -> Json:
    """The data of the first event of this type."""
    last_id = 0
    while True:
        (event,) = streamed(http, job, last_id, most=1)
        if event["type"] == event_type:
            data: Json = event["data"]
            return data
        last_id = event["id"]


# Models, versions and aliases


def test_the_newest_version_answers_under_the_bare_name(http, second):
    # The server follows what a worker publishes, a moment later.
    deadline = time.monotonic() + 60
    while answered_by(http, "flowers") != 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert answered_by(http, "flowers") == answered_by(http, "flowers@latest") == 2
    assert answered_by(http, "flowers@1") == 1
    assert http.get("/v1/models/flowers/versions/latest").json()["version"] == 2
    told = http.get("/v1/models/flowers").json()["aliases"]
    assert {alias["alias"]: alias["version"] for alias in told}["latest"] == 2


def answered_by(http: httpx.Client, reference: str) -> int:
    """The version that answers a query."""
    path = f"/v1/models/{reference}/classes/setosa:query"
    return int(http.post(path, json={"x": [5.1, 3.5, 1.4, 0.2]}).json()["version"])


def test_of_many_who_move_an_alias_at_once_one_does(service, http, second):
    path = "/v1/models/flowers/aliases/contested"
    tag = http.put(path, json={"version": 1}).headers["etag"]

    def move(_: int) -> int:
        with service.client("train") as client:
            return client.put(path, json={"version": 2}, headers={"if-match": tag}).status_code

    with ThreadPoolExecutor(6) as threads:
        assert sorted(threads.map(move, range(6))) == [200, 412, 412, 412, 412, 412]
    assert http.get(path).json()["version"] == 2


# Queries


def test_a_student_says_whether_a_row_is_of_its_class(http, flowers, parts):
    for x, truth in zip(parts["X_test"][::5].tolist(), parts["y_test"][::5], strict=True):
        answer = http.post("/v1/models/flowers@1/classes/setosa:query", json={"x": x})
        assert answer.status_code == 200
        assert set(answer.json()) == {"match", "score", "threshold", "model", "version"}
        assert answer.json()["match"] == (truth == "setosa")
        assert answer.json()["match"] == (answer.json()["score"] >= answer.json()["threshold"])
        assert (answer.json()["model"], answer.json()["version"]) == ("flowers", 1)


def test_many_rows_are_answered_as_each_alone(http, flowers, parts):
    path = "/v1/models/flowers@1/classes/virginica:query"
    rows = parts["X_test"].tolist()
    many = http.post(path, json={"rows": rows}).json()
    assert (many["model"], many["version"]) == ("flowers", 1)
    alone = [http.post(path, json={"x": x}).json() for x in rows]
    for one, result in zip(alone, many["results"], strict=True):
        assert result["score"] == pytest.approx(one["score"], rel=1e-12)
        assert (result["match"], result["threshold"]) == (one["match"], one["threshold"])


def test_a_sparse_row_is_a_row(http, flowers):
    path = "/v1/models/flowers@1/classes/setosa:query"
    dense = http.post(path, json={"x": [5.0, 0, 1.5, 0]}).json()
    sparse = http.post(path, json={"x": {"indices": [0, 2], "values": [5.0, 1.5]}}).json()
    assert sparse["score"] == pytest.approx(dense["score"], rel=1e-12)


def test_the_teacher_answers_for_all_classes(http, flowers, parts):
    rows = parts["X_test"].tolist()
    answer = http.post("/v1/models/flowers@1:predict", json={"rows": rows, "scores": True}).json()
    labels = [result["label"] for result in answer["results"]]
    assert accuracy_score(parts["y_test"], labels) > 0.9
    for result in answer["results"]:
        assert max(result["scores"], key=result["scores"].__getitem__) == result["label"]
    one = http.post("/v1/models/flowers@1:predict", json={"x": rows[0]}).json()
    assert one == {"label": labels[0], "model": "flowers", "version": 1}
    table = http.get(path_of(flowers, "students"), params={"method": "teacher"}).json()["data"]
    for row in table:
        truth, said = parts["y_test"] == row["label"], np.asarray(labels) == row["label"]
        assert f1_score(truth, said) == pytest.approx(row["metrics"]["f1"])


# Who may do what


def test_a_query_key_asks_its_model_and_nothing_else(camera, problem, flowers, flowers_data):
    assert answered_by(camera, "flowers@1") == 1
    assert camera.get("/v1/models/flowers").status_code == 200
    other = camera.post("/v1/models/faces/classes/setosa:query", json={"x": [1, 2, 3, 4]})
    problem(other, 403, "model_not_allowed")
    problem(camera.get(f"/v1/datasets/{flowers_data['id']}"), 403, "scope_required")
    problem(camera.post("/v1/datasets", content=b"1,2,a"), 403, "scope_required")
    problem(camera.post(path_of(flowers, "cancel")), 403, "scope_required")
    problem(camera.put("/v1/models/flowers/aliases/latest", json={"version": 1}), 403, "scope_required")
    problem(camera.get("/v1/keys"), 403, "scope_required")


# Operation


def test_the_server_says_how_it_is(stranger, admin, service, flowers):
    assert stranger.get("/livez").json() == {"live": True}
    assert stranger.get("/readyz").json() == {"ready": True}
    checks = stranger.get("/readyz", params={"verbose": ""}).json()["checks"]
    assert {check["name"] for check in checks} >= {"database", "schema", "registry", "job_engine", "workers"}
    assert stranger.get("/version").json()["name"] == "stms"
    (worker,) = admin.get("/v1/workers").json()["data"]
    assert worker["alive"]
    assert worker["pid"] in service.children()


def test_metrics_count_queries_and_jobs(http, stranger, flowers):
    answered_by(http, "flowers")
    assert 'stms_jobs{state="succeeded"}' in stranger.get("/metrics").text
    # A gauge is what each process last published: one may have done so in the middle of the query.
    deadline = time.monotonic() + 60
    while "stms_queries_in_flight 0.0" not in (text := stranger.get("/metrics").text):
        assert time.monotonic() < deadline, text
        time.sleep(0.05)
