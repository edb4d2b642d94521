"""The main job over sockets: data set, training, events, students, versions, aliases, queries."""

from __future__ import annotations

import io
import json
import time
from collections.abc import Callable, Iterator
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


def pages(http: httpx.Client, path: str, **params: Any) -> Iterator[Json]:
    """Every page of a list, as the server links them."""
    response = http.get(path, params=params)
    assert response.status_code == 200, response.text
    yield response.json()
    while "next" in response.links:
        assert response.json()["has_more"] is True
        response = http.get(response.links["next"]["url"])
        assert response.status_code == 200, response.text
        yield response.json()
    assert response.json()["has_more"] is False


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


def test_a_data_set_is_known_by_its_bytes(http, csv, iris):
    content = csv(*iris, "sl,sw,pl,pw,flower")
    first = http.post(
        "/v1/datasets", content=content, params={"name": "by bytes"}, headers={"content-type": "text/csv"}
    )
    assert first.status_code == 201
    document = first.json()
    assert first.headers["location"] == f"/v1/datasets/{document['id']}"
    assert document["summary"]["class_counts"] == {"setosa": 50, "versicolor": 50, "virginica": 50}
    assert [feature["name"] for feature in document["summary"]["features"]] == ["sl", "sw", "pl", "pw"]
    again = http.post("/v1/datasets", content=content, params={"name": "another name"})
    assert (again.status_code, again.json()) == (200, document)
    looked = http.get(first.headers["location"])
    assert looked.json() == document
    assert looked.headers["etag"] == first.headers["etag"] == f'"{document["digest"]}"'
    unchanged = http.get(first.headers["location"], headers={"if-none-match": looked.headers["etag"]})
    assert (unchanged.status_code, unchanged.content) == (304, b"")
    assert unchanged.headers["etag"] == looked.headers["etag"]
    assert http.delete(first.headers["location"]).status_code == 204
    assert http.get(first.headers["location"]).status_code == 404


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


def test_a_form_with_a_file_is_taken_too(http, csv, iris):
    X, names = iris
    flower_first = csv(np.column_stack([names, X[:, 1:]]), X[:, 0], "flower,sw,pl,pw,sl")
    response = http.post(
        "/v1/datasets",
        files={"file": ("meadow.csv", flower_first, "text/csv")},
        data={"label_column": "flower"},
    )
    assert response.status_code == 201, response.text
    document = response.json()
    assert document["name"] == "meadow"
    assert document["summary"]["label_column"] == "flower"
    assert document["classes"] == ["setosa", "versicolor", "virginica"]


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


def test_a_job_is_accepted_with_its_place_and_when_to_look_again(http, submit, follow, flowers_data):
    body = {"dataset_id": flowers_data["id"], "model": "accepted"}
    response = http.post("/v1/training-jobs", json=body)
    job = response.json()
    assert (response.status_code, job["state"]) == (202, "queued")
    assert response.headers["location"] == path_of(job)
    assert int(response.headers["retry-after"]) >= 1
    assert job["hyperparameters"]["automatic"] is True
    assert http.post(path_of(job, "cancel")).status_code == 202
    assert follow(job)["state"] == "cancelled"


def test_a_finished_job_has_an_etag_and_is_not_sent_twice(http, flowers):
    response = http.get(path_of(flowers))
    assert response.json() == flowers
    assert "retry-after" not in response.headers
    unchanged = http.get(path_of(flowers), headers={"if-none-match": response.headers["etag"]})
    assert (unchanged.status_code, unchanged.content) == (304, b"")
    changed = http.get(path_of(flowers), headers={"if-none-match": '"another"'})
    assert (changed.status_code, changed.json()) == (200, flowers)


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


def test_events_come_in_pages(http, flowers):
    whole = http.get(path_of(flowers, "events")).json()["data"]
    paged = [page["data"] for page in pages(http, path_of(flowers, "events"), limit=4)]
    assert all(len(page) == 4 for page in paged[:-1])
    assert [event for page in paged for event in page] == whole


def test_a_stream_of_events_is_what_is_stored_and_goes_on_where_it_was_left(http, flowers):
    stored = http.get(path_of(flowers, "events")).json()["data"]
    assert streamed(http, flowers) == stored
    assert streamed(http, flowers, last_id=5) == stored[5:]
    seen = http.get(
        path_of(flowers, "events"),
        headers={"accept": "text/event-stream", "last-event-id": str(len(stored))},
    )
    assert (seen.status_code, seen.content) == (204, b"")


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
    paged = list(pages(http, path_of(flowers, "students"), limit=1))
    assert [row for page in paged for row in page["data"]] == rows
    assert len(paged) == 3
    chosen = http.get(path_of(flowers, "students"), params={"method": "gsvm"}).json()["data"]
    assert chosen == [row for row in rows if row["method"] == "gsvm"]


def test_the_measures_in_the_table_are_those_of_the_published_students(http, flowers, parts):
    rows = parts["X_test"].tolist()
    table = http.get(path_of(flowers, "students"), params={"method": "gsvm"}).json()["data"]
    for student in table:
        answer = http.post(f"/v1/models/flowers@1/classes/{student['label']}:query", json={"rows": rows})
        said = [result["match"] for result in answer.json()["results"]]
        truth = parts["y_test"] == student["label"]
        assert accuracy_score(truth, said) == pytest.approx(student["metrics"]["accuracy"])
        assert f1_score(truth, said) == pytest.approx(student["metrics"]["f1"])


def test_jobs_are_listed_in_pages_and_by_state(http, flowers, submit, follow, flowers_data):
    for _ in range(2):
        job = submit(flowers_data["id"], "listed")
        http.post(path_of(job, "cancel"))
        follow(job)
    every = [job["id"] for page in pages(http, "/v1/training-jobs", limit=1000) for job in page["data"]]
    assert every == sorted(every, reverse=True)
    assert flowers["id"] in every
    paged = list(pages(http, "/v1/training-jobs", limit=1))
    assert [job["id"] for page in paged for job in page["data"]] == every
    cancelled = http.get("/v1/training-jobs", params={"status": "cancelled"}).json()["data"]
    assert len(cancelled) >= 2
    assert {job["state"] for job in cancelled} == {"cancelled"}
    both = http.get("/v1/training-jobs", params={"status": ["cancelled", "succeeded"]}).json()["data"]
    assert {job["state"] for job in both} == {"cancelled", "succeeded"}


def test_an_idempotency_key_gives_the_job_it_made(http, problem, follow, flowers_data):
    body = {"dataset_id": flowers_data["id"], "model": "once"}
    headers = {"idempotency-key": "order-7"}
    first = http.post("/v1/training-jobs", json=body, headers=headers)
    # Defaults written out are the same request.
    again = http.post("/v1/training-jobs", json=body | {"hyperparameters": {"seed": 0}}, headers=headers)
    assert (first.status_code, again.status_code) == (202, 202)
    assert again.json()["id"] == first.json()["id"]
    assert again.headers["idempotency-replayed"] == "true"
    other = http.post("/v1/training-jobs", json=body | {"model": "twice"}, headers=headers)
    problem(other, 422, "idempotency_key_reused")
    http.post(path_of(first.json(), "cancel"))
    follow(first.json())


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


def test_a_model_lists_its_versions_newest_first(http, second):
    response = http.get("/v1/models/flowers")
    model = response.json()
    assert [version["version"] for version in model["versions"]] == [2, 1]
    assert [version["method"] for version in model["versions"]] == ["svm", "gsvm"]
    unchanged = http.get("/v1/models/flowers", headers={"if-none-match": response.headers["etag"]})
    assert unchanged.status_code == 304
    listed = {model["name"]: model for model in http.get("/v1/models").json()["data"]}
    assert (listed["flowers"]["versions"], listed["flowers"]["latest_version"]) == (2, 2)
    version = http.get("/v1/models/flowers/versions/2")
    assert version.json() == model["versions"][0]
    tag = {"if-none-match": version.headers["etag"]}
    assert http.get("/v1/models/flowers/versions/2", headers=tag).status_code == 304
    assert http.get("/v1/models/flowers/versions/1", headers=tag).status_code == 200


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


def test_an_alias_moves_only_for_those_who_know_where_it_is(http, problem, flowers, second):
    path = "/v1/models/flowers/aliases/stable"
    made = http.put(path, json={"version": 1}, headers={"if-none-match": "*"})
    assert (made.status_code, made.json()["version"]) == (200, 1)
    problem(http.put(path, json={"version": 2}, headers={"if-none-match": "*"}), 412, "precondition_failed")
    problem(http.put(path, json={"version": 2}), 428, "if_match_required")
    problem(http.put(path, json={"version": 2}, headers={"if-match": '"999"'}), 412, "precondition_failed")
    assert answered_by(http, "flowers@stable") == 1
    moved = http.put(path, json={"version": 2}, headers={"if-match": made.headers["etag"]})
    assert (moved.status_code, moved.json()["version"]) == (200, 2)
    assert answered_by(http, "flowers@stable") == 2
    stale = http.put(path, json={"version": 1}, headers={"if-match": made.headers["etag"]})
    problem(stale, 412, "precondition_failed")
    looked = http.get(path)
    assert looked.headers["etag"] == moved.headers["etag"]
    assert http.get(path, headers={"if-none-match": looked.headers["etag"]}).status_code == 304
    back = http.put(path, json={"version": 1}, headers={"if-match": looked.headers["etag"]})
    assert back.json()["version"] == 1
    assert answered_by(http, "flowers@stable") == 1
    problem(
        http.put(path, json={"version": 9}, headers={"if-match": back.headers["etag"]}),
        404,
        "version_not_found",
    )
    assert http.get(path).json() == back.json()


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


def test_requests_without_a_key_are_rejected(stranger, problem, flowers):
    for method, path in [
        ("GET", "/v1/models/flowers"),
        ("GET", "/v1/datasets"),
        ("GET", path_of(flowers)),
        ("POST", "/v1/datasets"),
        ("POST", "/v1/models/flowers/classes/setosa:query"),
        ("POST", "/v1/models/flowers:predict"),
    ]:
        answer = stranger.request(method, path)
        problem(answer, 401, "key_required")
        assert answer.headers["www-authenticate"].startswith("Bearer")
    for text in ("Bearer nonsense", "Bearer stms_key_" + "0" * 24 + "_" + "A" * 43, "Basic QTpC"):
        problem(stranger.get("/v1/models", headers={"authorization": text}), 401, "invalid_key")


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


def test_a_revoked_key_is_rejected(service, admin, problem, flowers, follow):
    made = admin.post("/v1/keys", json={"name": "guest", "scopes": ["query"]}).json()
    headers = {"x-api-key": made["key"]}
    with service.client() as guest:
        assert guest.get("/v1/models/flowers", headers=headers).status_code == 200
        assert admin.delete(f"/v1/keys/{made['details']['id']}").status_code in {200, 204}
        problem(guest.get("/v1/models/flowers", headers=headers), 401, "revoked_key")


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
