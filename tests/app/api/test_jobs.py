"""Training jobs over HTTP, up to the queue."""

from __future__ import annotations

import json
import time
import zlib
from collections.abc import Callable
from typing import Any

import pytest

from app.domain.entities import JobState, StudentRow, StudentState, Worker
from app.services.keys import create_key
from app.store.unit_of_work import Store

Check = Callable[..., dict[str, Any]]


@pytest.fixture
def submit(client, dataset_id: str) -> Callable[..., Any]:
    def submit(model: str = "numbers", headers: dict[str, str] | None = None, **hyperparameters: Any) -> Any:
        plain = {"automatic": False} | hyperparameters
        body = {"dataset_id": dataset_id, "model": model, "hyperparameters": plain}
        return client.post("/v1/training-jobs", json=body, headers=headers)

    return submit


def test_a_job_is_accepted_stored_and_queued(client, submit, queue, dataset_id: str):
    response = submit(student={"C": 10})
    assert response.status_code == 202
    job = response.json()
    assert job["state"] == "queued"
    assert job["progress"] == {"done": 0, "total": 3, "share": 0.0}
    assert job["hyperparameters"]["student"]["C"] == 10
    assert job["created_by"] == "anonymous"
    assert response.headers["location"] == f"/v1/training-jobs/{job['id']}"
    assert response.headers["retry-after"] == "1"
    assert queue.enqueued == [(job["id"], f"{job['id']}.0")]
    assert client.get(response.headers["location"]).json() == job


def test_a_job_that_names_nothing_is_automatic(client, dataset_id: str):
    body = {"dataset_id": dataset_id, "model": "numbers"}
    job = client.post("/v1/training-jobs", json=body).json()
    stored = job["hyperparameters"]
    assert (stored["automatic"], stored["student"]["method"]) == (True, "automatic")
    rows = client.get(f"/v1/training-jobs/{job['id']}/students").json()["data"]
    assert {row["method"] for row in rows} == {"automatic"}
    again = client.post("/v1/training-jobs", json=body | {"hyperparameters": stored}).json()
    assert again["hyperparameters"] == stored


def test_an_automatic_job_has_a_budget_of_seconds_or_is_refused(client, dataset_id: str):
    body = {"dataset_id": dataset_id, "model": "numbers"}
    job = client.post("/v1/training-jobs", json=body | {"hyperparameters": {"automatic": {"seconds": 30}}})
    assert job.status_code == 202
    assert job.json()["hyperparameters"]["automatic"] == {"seconds": 30.0}
    wrong = client.post("/v1/training-jobs", json=body | {"hyperparameters": {"automatic": {"seconds": 0}}})
    assert wrong.status_code == 422
    assert "automatic.seconds: Input should be greater than or equal to 1" in wrong.text


def test_a_job_is_not_lost_when_the_queue_cannot_be_reached(client, submit, queue):
    queue.down = True
    job = submit().json()
    assert client.get(f"/v1/training-jobs/{job['id']}").json()["state"] == "queued"


def test_the_same_idempotency_key_gives_the_same_job(client, submit, queue, problem: Check):
    headers = {"idempotency-key": "once-1"}
    first, second = submit(headers=headers), submit(headers=headers, seed=0)
    assert (first.status_code, second.status_code) == (202, 202)
    assert first.json() == second.json(), "a default written out is the same request"
    assert "idempotency-replayed" not in first.headers
    assert second.headers["idempotency-replayed"] == "true"
    assert len(queue.enqueued) == 1
    problem(submit(headers=headers, seed=1), 422, "idempotency_key_reused")
    problem(submit(headers={"idempotency-key": "with space"}), 400, "invalid_parameter")


def test_jobs_that_cannot_be_trained_are_rejected(client, submit, dataset_id: str, problem: Check):
    body = {"dataset_id": "ds_none", "model": "m"}
    problem(client.post("/v1/training-jobs", json=body), 404, "dataset_not_found")
    document = problem(submit(classes=["yes", "maybe", "never"]), 400, "unknown_class")
    assert [fault["field"] for fault in document["errors"]] == [
        "hyperparameters.classes.1",
        "hyperparameters.classes.2",
    ]
    assert "'maybe'" in document["detail"]
    problem(submit(model="no/slash"), 422, "invalid_body")


def test_a_specification_is_short_and_names_each_class_once(submit, problem: Check):
    document = problem(submit(classes=["yes", "no", "yes", "no"]), 422, "invalid_body")
    [fault] = document["errors"]
    assert fault["field"] == "hyperparameters.classes"
    assert "'yes' is repeated at position 2" in fault["message"]
    long = problem(submit(classes=[f"{number:0>60}" for number in range(1050)]), 400, "too_long")
    assert [fault["field"] for fault in long["errors"]] == ["hyperparameters"]
    assert "65536" in long["detail"]
    problem(submit(classes=[f"{number:0>60}" for number in range(900)]), 400, "unknown_class")


def test_jobs_beyond_the_queue_limit_are_shed(make_client, csv: bytes, problem: Check):
    client = make_client(max_queued_jobs=1)
    dataset = client.post("/v1/datasets", content=csv, headers={"content-type": "text/csv"}).json()
    body = {"dataset_id": dataset["id"], "model": "m"}
    assert client.post("/v1/training-jobs", json=body).status_code == 202
    response = client.post("/v1/training-jobs", json=body)
    problem(response, 429, "overloaded")
    assert int(response.headers["retry-after"]) > 0


def test_jobs_are_listed_by_state_and_in_pages(client, submit):
    ids = [submit().json()["id"] for _ in range(3)]
    client.post(f"/v1/training-jobs/{ids[0]}/cancel")
    queued = client.get("/v1/training-jobs", params={"status": "queued"}).json()
    assert {job["id"] for job in queued["data"]} == set(ids[1:])
    both = client.get("/v1/training-jobs", params={"status": ["queued", "cancelled"]}).json()
    assert {job["id"] for job in both["data"]} == set(ids)
    response = client.get("/v1/training-jobs", params={"limit": 2, "status": ["queued", "cancelled"]})
    following = client.get(response.links["next"]["url"])
    assert [job["id"] for job in response.json()["data"] + following.json()["data"]] == ids[::-1]
    assert not following.json()["has_more"]


def test_an_unchanged_job_is_304(client, submit):
    path = submit().headers["location"]
    tag = client.get(path).headers["etag"]
    again = client.get(path, headers={"if-none-match": f'"other", W/{tag}'})
    assert again.status_code == 304
    assert again.headers["retry-after"] == "1"
    client.post(f"{path}/cancel")
    changed = client.get(path, headers={"if-none-match": tag})
    assert changed.status_code == 200
    assert "retry-after" not in changed.headers


def test_a_queued_job_is_cancelled_once_and_can_be_retried(client, submit, queue, problem: Check):
    path = submit().headers["location"]
    problem(client.post(f"{path}/retry"), 409, "job_not_retriable")
    queue.down = True
    cancelled = client.post(f"{path}/cancel")
    assert (cancelled.status_code, cancelled.json()["state"]) == (202, "cancelled"), "also without the queue"
    queue.down = False
    problem(client.post(f"{path}/cancel"), 409, "job_ended")
    retried = client.post(f"{path}/retry")
    assert (retried.status_code, retried.json()["state"], retried.json()["attempt"]) == (202, "queued", 1)
    assert len(queue.enqueued) == 2
    again = client.post(f"{path}/cancel").json()
    assert queue.cancelled == [f"{again['id']}.1"]


def test_a_job_is_deleted_when_it_has_ended(client, submit, problem: Check):
    path = f"/v1/training-jobs/{submit().json()['id']}"
    problem(client.delete(path), 409, "job_not_ended")
    client.post(f"{path}/cancel")
    assert client.delete(path).status_code == 204
    problem(client.delete(path), 404, "job_not_found")
    problem(client.get(path), 404, "job_not_found")


def test_a_failed_job_has_its_error(client, submit, store: Store):
    job_id = submit().json()["id"]
    with store.begin() as uow:
        uow.jobs.move(job_id, JobState.FAILED, error_code="solver_died", error_message="It died.")
    job = client.get(f"/v1/training-jobs/{job_id}").json()
    assert job["error"] == {"code": "solver_died", "message": "It died."}
    assert job["finished_at"].endswith("Z")


def test_a_running_job_estimates_its_end(client, submit, store: Store):
    job_id = submit().json()["id"]
    with store.begin() as uow:
        begun = {"stages": {"data": time.time() - 50, "students": time.time() - 10}, "done_before": 1}
        uow.jobs.move(job_id, JobState.RUNNING, provenance=begun)
        uow.jobs.advance(job_id, 2)
    response = client.get(f"/v1/training-jobs/{job_id}")
    assert response.json()["estimated_finish"].endswith("Z")
    assert 0.5 < response.json()["progress"]["share"] < 1.0
    with store.begin() as uow:
        began = {"stages": {"data": time.time()}}
        uow.jobs.change(job_id, provenance=began)
    early = client.get(f"/v1/training-jobs/{job_id}").headers["etag"]
    time.sleep(0.2)
    later = client.get(f"/v1/training-jobs/{job_id}", headers={"if-none-match": early})
    assert later.status_code == 200, "what is done of it changes with the time"


def test_students_are_listed_by_class_in_pages(client, submit, store: Store):
    job_id = submit().json()["id"]
    pending = client.get(f"/v1/training-jobs/{job_id}/students").json()["data"]
    assert {(row["label"], row["state"]) for row in pending} == {("no", "pending"), ("yes", "pending")}
    row = StudentRow(job_id, 0, "no", "gsvm", StudentState.SUCCEEDED, objective=1.5, gap=float("inf"))
    with store.begin() as uow:
        uow.students.save(row)
    response = client.get(f"/v1/training-jobs/{job_id}/students", params={"limit": 1, "method": "gsvm"})
    [shown] = response.json()["data"]
    assert (shown["objective"], shown["gap"], shown["id"], shown["state"]) == (1.5, None, 0, "succeeded")
    [following] = client.get(response.links["next"]["url"]).json()["data"]
    assert following["label"] == "yes"


GRID_POINT = {
    "C": 1.0,
    "margin": 0.5,
    "floor": 0.3,
    "folds": 5,
    "score": 0.9,
    "standard_error": 0.01,
    "gap": 1e-4,
    "seconds": 0.5,
}


@pytest.mark.parametrize(
    ("method", "point"), [("gsvm", GRID_POINT), ("compact", {"n_landmarks": 12, "f1": 0.75})]
)
def test_a_trace_is_returned_as_stored(client, submit, store: Store, problem: Check, method, point):
    job_id = submit().json()["id"]
    path = f"/v1/training-jobs/{job_id}/students/1/{method}/trace"
    problem(client.get(path), 404, "student_not_found")
    chosen = {"score": 0.9, "points": 1}
    row = StudentRow(job_id, 1, "yes", method, StudentState.SUCCEEDED, chosen=chosen)
    with store.begin() as uow:
        uow.students.save(StudentRow(job_id, 0, "no", method, StudentState.SUCCEEDED))
        uow.students.save(row)
    problem(client.get(path), 404, "trace_not_found")
    problem(client.get(path.replace(method, "svm")), 404, "student_not_found")
    trace = {"chosen": chosen, "points": [point, point]}
    with store.begin() as uow:
        uow.students.keep_trace(job_id, 1, method, zlib.compress(json.dumps(trace).encode()))
        uow.students.keep_trace(job_id, 1, method, b"a second one is not wanted")
    about = {"job_id": job_id, "class_index": 1, "label": "yes", "method": method}
    assert client.get(path).json() == about | trace
    rows = client.get(f"/v1/training-jobs/{job_id}/students", params={"method": method}).json()["data"]
    assert {row["label"]: row["chosen"] for row in rows}["yes"] == chosen


def test_the_trace_is_in_the_openapi_document(client):
    paths = client.get("/openapi.json").json()["paths"]
    described = paths["/v1/training-jobs/{job_id}/students/{class_index}/{method}/trace"]["get"]
    assert described["responses"]["200"]["content"]["application/json"]["schema"]["$ref"].endswith(
        "TraceView"
    )
    assert "default" in described["responses"]
    assert [parameter["name"] for parameter in described["parameters"]] == [
        "job_id",
        "class_index",
        "method",
        "tenant",
    ]


def test_events_are_a_page_of_json(client, submit, store: Store):
    job_id = submit().json()["id"]
    with store.begin() as uow:
        for done in range(4):
            uow.events.append(job_id, "stage_progress", {"done": done})
    path = f"/v1/training-jobs/{job_id}/events"
    events = client.get(path).json()["data"]
    assert [(event["id"], event["type"]) for event in events[:2]] == [
        (1, "job_queued"),
        (2, "stage_progress"),
    ]
    page = client.get(path, params={"limit": 2, "after": 1})
    assert [event["data"]["done"] for event in page.json()["data"]] == [0, 1]
    assert [event["id"] for event in client.get(page.links["next"]["url"]).json()["data"]] == [4, 5]


def parse(stream: str) -> list[dict[str, str]]:
    blocks = [block for block in stream.split("\n\n") if block and not block.startswith(":")]
    return [dict(line.split(": ", 1) for line in block.splitlines()) for block in blocks]


def test_an_ended_jobs_events_are_a_stream_that_ends(client, submit):
    path = submit().headers["location"]
    client.post(f"{path}/cancel")
    response = client.get(f"{path}/events", headers={"accept": "text/event-stream"})
    assert response.headers["content-type"].startswith("text/event-stream")
    events = parse(response.text)
    assert [event["event"] for event in events] == ["job_queued", "job_cancelled"]
    assert json.loads(events[0]["data"])["model"] == "numbers"
    headers = {"accept": "text/event-stream", "last-event-id": "1"}
    assert [event["id"] for event in parse(client.get(f"{path}/events", headers=headers).text)] == ["2"]
    headers["last-event-id"] = "2"
    assert client.get(f"{path}/events", headers=headers).status_code == 204


def test_workers_are_listed_with_their_state_and_units(client, store: Store):
    now = time.time()
    unit = {
        "job_id": "job_1",
        "unit": 3,
        "kind": "chunk",
        "classes": 7,
        "since": 1_700_000_000.5,
        "solver_pid": 42,
    }
    with store.begin() as uow:
        uow.workers.beat(Worker("w1", "here", 1, now - 100, now, slots=2, threads=4, units=(unit,)))
        uow.workers.beat(Worker("w2", "here", 2, now - 100, now - 90))
        uow.workers.beat(Worker("w3", "here", 3, now - 100, now))
        uow.workers.mark_lost("w3")
    found = {worker["id"]: worker for worker in client.get("/v1/workers").json()["data"]}
    assert {name: worker["alive"] for name, worker in found.items()} == {"w1": True, "w2": False, "w3": False}
    assert (found["w1"]["slots"], found["w1"]["threads"]) == (2, 4)
    assert found["w1"]["units"] == [unit | {"since": "2023-11-14T22:13:20.500Z"}]
    assert found["w3"]["units"] == []


def test_a_job_lists_its_workers(client, submit, store: Store):
    path = submit().headers["location"]
    job_id = path.rpartition("/")[2]
    before = client.get(path)
    assert before.json()["workers"] == []
    with store.begin() as uow:
        uow.jobs.move(job_id, JobState.RUNNING)
        uow.units.add(job_id, 0, 0, tenant="default", owner="anonymous", level=1)
    idle = client.get(path)
    with store.begin() as uow:
        uow.units.start(job_id, 0, 0, "w1", 1.0)
    running = client.get(path, headers={"if-none-match": idle.headers["etag"]})
    assert running.status_code == 200, "who works on a job is part of its state"
    assert running.json()["workers"] == ["w1"]
    assert client.get(path, headers={"if-none-match": running.headers["etag"]}).status_code == 304
    listed = client.get("/v1/training-jobs").json()["data"]
    assert [job["workers"] for job in listed] == [["w1"]]


@pytest.mark.parametrize("priority", ["low", "normal", "high"])
def test_a_job_has_the_requested_priority(client, dataset_id: str, priority: str):
    body = {"dataset_id": dataset_id, "model": "numbers", "priority": priority}
    response = client.post("/v1/training-jobs", json=body)
    assert (response.status_code, response.json()["priority"]) == (202, priority)


def test_high_priority_requires_an_operator_key(make_client, dataset_id: str, store: Store, problem: Check):
    _, admin = create_key(store, "root", {"operator"})
    _, trainer = create_key(store, "trainer", {"train"})
    client = make_client(require_keys=True)
    body = {"dataset_id": dataset_id, "model": "numbers", "priority": "high"}

    def ask(key: str, **changed: str) -> Any:
        headers = {"authorization": f"Bearer {key}"}
        return client.post("/v1/training-jobs", json=body | changed, headers=headers)

    problem(ask(trainer), 403, "scope_required")
    assert ask(trainer, priority="low").status_code == 202
    assert ask(admin).status_code == 202
    problem(ask(trainer, priority="urgent"), 422, "invalid_body")


def test_the_queued_jobs_of_a_key_are_limited(make_client, dataset_id: str, problem: Check):
    client = make_client(max_unfinished_jobs_per_key=1)
    body = {"dataset_id": dataset_id, "model": "numbers"}
    assert client.post("/v1/training-jobs", json=body).status_code == 202
    refused = client.post("/v1/training-jobs", json=body)
    problem(refused, 429, "too_many_unfinished_jobs")
    assert int(refused.headers["retry-after"]) >= 1
