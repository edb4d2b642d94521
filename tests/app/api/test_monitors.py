"""Monitors, samples and feedback over HTTP: which answers are chosen, and what people may say of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from app.services.keys import create_key
from app.serving import watch as watch_module
from app.serving.sample_writer import SampleWriter
from app.store.unit_of_work import Store
from tests.app.api.fast_path import fast_answer
from tests.app.monitored import publish_watched

MONITOR = "/v1/models/pets/aliases/latest/monitor"
SAMPLES = "/v1/models/pets/aliases/latest/samples"
ONE = "/v1/models/pets/classes/a:query"
ALL: dict[str, Any] = {"classes": {"a": {}, "b": {}}, "ask": {"yes": 1.0, "floor": 1.0}}
PEER = ("127.0.0.1", 1)
YES = {"x": [1.0, 1.0]}


@pytest.fixture
def client(make_client: Callable[..., Any], store: Store) -> Any:
    """A server that keeps samples, with a monitor that chooses every answer of classes a and b."""
    publish_watched(store)
    client = make_client(query_samples="ids")
    assert client.put(MONITOR, json=ALL).status_code == 200
    return client


def write(client: Any) -> None:
    """As the background task does each second."""
    context = client.control.state.context
    SampleWriter(context.store, context.cache.watches).write()


def listed(client: Any, **params: Any) -> list[dict[str, Any]]:
    write(client)
    response = client.get(SAMPLES, params=params)
    assert response.status_code == 200, response.text
    return response.json()["data"]  # type: ignore[no-any-return]


def give(client: Any, *items: dict[str, Any], **options: Any) -> dict[str, Any]:
    write(client)
    response = client.post("/v1/feedback", json={"feedback": list(items)}, **options)
    assert response.status_code == 200, response.text
    return response.json()  # type: ignore[no-any-return]


def sampled(client: Any) -> str:
    """The id of a new sample, whose answer is yes."""
    answer = client.post(ONE, json=YES)
    assert answer.status_code == 200, answer.text
    write(client)
    return str(answer.headers["x-sample-id"])


def test_a_server_without_samples_has_no_monitors(make_client: Any, store: Store, problem: Any):
    publish_watched(store)
    client = make_client()
    problem(client.put(MONITOR, json=ALL), 409, "samples_off")
    problem(client.get(MONITOR), 404, "monitor_not_found")
    assert "x-sample-id" not in client.post(ONE, json=YES).headers


def test_monitors_are_made_changed_and_deleted_by_revision(client: Any, problem: Any):
    made = client.get(MONITOR)
    assert made.json()["settings"]["ask"] == {
        "yes": 1.0,
        "no": "by_probability",
        "floor": 1.0,
        "per_day": 200,
    }
    problem(client.put(MONITOR, json=ALL), 428, "if_match_required")
    problem(client.put(MONITOR, json=ALL, headers={"if-none-match": "*"}), 412, "precondition_failed")
    problem(client.put(MONITOR, json=ALL, headers={"if-match": '"7"'}), 412, "precondition_failed")
    tag = {"if-match": made.headers["etag"]}
    assert client.put(MONITOR, json=ALL, headers=tag).headers["etag"] == tag["if-match"], "the same again"
    other = ALL | {"retain_days": 3}
    changed = client.put(MONITOR, json=other, headers=tag)
    assert (changed.json()["revision"], changed.json()["run"]) == (2, 2)
    problem(client.delete(MONITOR, headers=tag), 412, "precondition_failed")
    problem(client.delete(MONITOR), 428, "if_match_required")
    assert client.delete(MONITOR, headers={"if-match": changed.headers["etag"]}).status_code == 204
    problem(client.get(MONITOR), 404, "monitor_not_found")
    assert "x-sample-id" not in client.post(ONE, json=YES).headers


@pytest.mark.parametrize(
    ("settings", "status", "code"),
    [
        ({"classes": {"zebra": {}}}, 404, "class_not_found"),
        ({"classes": {"größe": {}}}, 409, "not_calibrated"),
        ({"classes": {"*": {}}}, 409, "not_calibrated"),
        (
            {
                "classes": {"größe": {"max_false_positive_rate": "promised"}},
                "ask": {"no": "uniform"},
            },
            409,
            "no_promise",
        ),
        ({"classes": {}}, 422, "invalid_request"),
        ({"classes": {"a": {"min_recall": 1.5}}}, 422, "invalid_request"),
        ({"classes": {"a": {"recall": 0.5}}}, 422, "invalid_request"),
        ({"classes": {"a": {}}, "store": "rows"}, 409, "samples_off"),
        ({"classes": {"a": {}}, "store": "all"}, 422, "invalid_request"),
        ({"classes": {"a": {}}, "ask": {"yes": 0.0}}, 422, "invalid_request"),
        ({"classes": {"a": {}}, "on_alarm": "retrain"}, 422, "invalid_request"),
        ({"classes": {f"c{number}": {} for number in range(1001)}}, 422, "invalid_request"),
    ],
)
def test_settings_that_cannot_be_are_refused(
    client: Any, problem: Any, settings: dict[str, Any], status: int, code: str
):
    tag = {"if-match": client.get(MONITOR).headers["etag"]}
    found = client.put(MONITOR, json=settings, headers=tag)
    assert found.status_code == status, found.text
    if status != 422:
        problem(found, status, code)


def test_an_unknown_alias_has_no_monitor(client: Any, problem: Any):
    path = "/v1/models/pets/aliases/none/monitor"
    problem(client.put(path, json=ALL), 404, "alias_not_found")
    problem(client.get(path), 404, "alias_not_found")


def test_too_many_monitors_are_refused(client: Any, problem: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("app.services.monitors.MAX_MONITORS", 1)
    assert client.put("/v1/models/pets/aliases/other", json={"version": 1}).status_code == 200
    problem(client.put("/v1/models/pets/aliases/other/monitor", json=ALL), 409, "too_many_monitors")


def test_answers_of_all_protocols_and_both_paths_are_sampled(client: Any):
    ids: list[str] = []

    def ask(path: str, **options: Any) -> None:
        response = client.post(path, **options)
        assert response.status_code == 200, response.text
        ids.extend(response.headers["x-sample-id"].split(", "))

    ask(ONE, json=YES)
    ask(ONE, json={"rows": [[1.0, 0.0], [-1.0, 0.0]]})
    ask("/v1/models/pets:query", json={**YES, "classes": ["a", "b", "größe"]})
    headers = {"content-type": "application/octet-stream", "x-tensor-dtype": "float64"}
    tensor = np.array([[1.0, 0.0], [-1.0, 0.0], [2.0, 0.0]])
    ask(ONE, content=tensor.tobytes(), headers=headers | {"x-tensor-shape": "3,2"})
    inputs = [{"name": "x", "datatype": "FP64", "shape": [1, 2], "data": [1.0, 0.0]}]
    ask("/v2/models/pets/versions/1/infer", json={"inputs": inputs, "parameters": {"class": "b"}})
    faulty = {"rows": [["x", 0.0], [1.0, 0.0]], "faulty_rows": "report"}
    ask(ONE, json=faulty)
    assert ids[-1].endswith(";row=1"), "the number of the row in the request"
    body = json.dumps(YES).encode()
    for _ in range(3):
        answer = fast_answer(
            client,
            ONE,
            {"host": "localhost", "content-length": str(len(body)), "x-request-id": "mine"},
            body,
            PEER,
        )
        assert answer is not None
        ids.append(answer[0]["x-sample-id"])
        assert ";" not in ids[-1]
    found = listed(client)
    assert [one["id"] for one in found] == sorted(text.partition(";")[0] for text in ids)
    assert sorted(one["label"] for one in found).count("b") == 2
    assert {one["request_id"] for one in found[-3:]} == {"mine"}
    assert found[0] == {
        "id": found[0]["id"],
        "alias": "latest",
        "version": 1,
        "label": "a",
        "at": found[0]["at"],
        "request_id": found[0]["request_id"],
        "row": 0,
        "answer": True,
        "score": 1.0,
        "probability": pytest.approx(0.7310585786300049),
        "q": 1.0,
        "correct": None,
    }
    assert [one["label"] for one in listed(client, **{"class": "b"})] == ["b", "b"]


def test_a_sampled_answer_is_the_same_answer(client: Any):
    plain, chosen = (client.post(ONE, json=YES, headers=more) for more in ({"x-sample": "no"}, {}))
    assert plain.status_code == chosen.status_code == 200, plain.text
    assert plain.content == chosen.content
    assert "x-sample-id" not in plain.headers
    body = json.dumps(YES).encode()
    headers = {"host": "localhost", "content-length": str(len(body)), "x-sample": "No"}
    answer = fast_answer(client, ONE, headers, body, PEER)
    assert answer is not None
    assert answer[1] == plain.content
    assert "x-sample-id" not in answer[0]
    assert len(listed(client)) == 1
    context = client.control.state.context
    with context.store.read() as uow:
        monitor = uow.monitors.get("pets", "latest")
        assert uow.monitors.trials(monitor, 0) == {"a": (1, 1)}, "refused answers are no trials"


def test_about_the_wanted_share_of_answers_is_chosen(client: Any, store: Store):
    tag = {"if-match": client.get(MONITOR).headers["etag"]}
    wanted = {"classes": {"a": {}}, "ask": {"yes": 0.5, "floor": 0.1, "no": "uniform"}}
    assert client.put(MONITOR, json=wanted, headers=tag).status_code == 200
    rows = [[1.0, 0.0]] * 2000 + [[-1.0, 0.0]] * 2000
    assert client.post(ONE, json={"rows": rows}).status_code == 200
    write(client)
    with store.read() as uow:
        monitor = uow.monitors.get("pets", "latest")
        found = uow.monitors.labelled(monitor, "a", 0.0)
        assert uow.monitors.trials(monitor, 0) == {"a": (4000, 2000)}
    yes, no = ([q for answer, _, q, _ in found if answer is is_yes] for is_yes in (True, False))
    assert set(yes) == {0.5}
    assert set(no) == {0.1}
    assert abs(len(yes) - 1000) < 6 * (2000 * 0.25) ** 0.5
    assert abs(len(no) - 200) < 6 * (2000 * 0.09) ** 0.5


def test_samples_are_dropped_and_counted_beyond_the_bound(
    client: Any, store: Store, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(watch_module, "_MOST_WAITING", 10)
    assert client.post(ONE, json={"rows": [[1.0, 0.0]] * 25}).status_code == 200
    assert len(listed(client)) == 10
    monitor = client.get(MONITOR).json()
    assert (monitor["samples"], monitor["dropped"]) == (10, 15)
    assert "stms_samples_dropped_total 15.0" in client.get("/metrics").text


def test_a_tenant_without_room_keeps_no_samples(make_client: Any, store: Store, client: Any):
    context = client.control.state.context
    client.post(ONE, json=YES)
    SampleWriter(context.store, context.cache.watches, has_room=lambda _tenant: False).write()
    monitor = client.get(MONITOR).json()
    assert (monitor["samples"], monitor["dropped"]) == (0, 1)


def test_samples_take_the_quota_of_the_tenant(client: Any, store: Store):
    with store.read() as uow:
        before = uow.quotas.used("default").stored_bytes
    sample = sampled(client)
    with store.read() as uow:
        between = uow.quotas.used("default").stored_bytes
    give(client, {"sample": sample, "correct": True})
    with store.read() as uow:
        assert before < between < uow.quotas.used("default").stored_bytes
    tag = {"if-match": client.get(MONITOR).headers["etag"]}
    assert client.delete(MONITOR, headers=tag).status_code == 204
    with store.read() as uow:
        assert uow.quotas.used("default").stored_bytes < before


def test_feedback_is_given_by_sample_and_again_changes_nothing(client: Any):
    sample = sampled(client)
    first = give(client, {"sample": sample, "correct": False})
    assert (first["accepted"], first["replaced"]) == (1, 0)
    assert first["results"][0]["sampled"] is True
    assert give(client, {"sample": sample, "correct": False})["results"] == first["results"]
    second = give(client, {"sample": sample, "correct": True})
    assert (second["accepted"], second["replaced"]) == (1, 1)
    assert listed(client) == [], "nothing waits"


def test_feedback_is_given_by_request_row_and_class(client: Any):
    asked = {"rows": [[1.0, 0.0], [-1.0, 0.0]]}
    assert client.post(ONE, json=asked, headers={"x-request-id": "order-17"}).status_code == 200
    found = give(client, {"request_id": "order-17", "row": 1, "label": "a", "correct": True})
    assert found["results"][0]["sampled"] is True
    assert [one["row"] for one in listed(client)] == [0]


def test_a_truth_answers_all_sampled_classes_of_a_row(client: Any, store: Store):
    asked = {"x": [1.0, 1.0], "classes": ["a", "b"]}
    answer = client.post("/v1/models/pets:query", json=asked)
    first = answer.headers["x-sample-id"].partition(";")[0]
    assert give(client, {"sample": first, "truth": "b"})["accepted"] == 1
    with store.read() as uow:
        monitor = uow.monitors.get("pets", "latest")
        correct = {label: uow.monitors.labelled(monitor, label, 0.0)[0][1] for label in "ab"}
    assert correct == {"a": False, "b": True}


def test_items_that_cannot_be_accepted_say_why_and_the_others_are_stored(
    client: Any, monkeypatch: pytest.MonkeyPatch
):
    sample = sampled(client)
    for _ in range(2):
        client.post(ONE, json=YES, headers={"x-request-id": "again"})
    report = {"request_id": "never", "label": "a", "model": "pets", "correct": False}
    found = give(
        client,
        {"sample": "smp_" + "0" * 24, "correct": True},
        {"sample": sample, "truth": "b", "correct": True},
        {"sample": sample, "label": "b", "correct": True},
        {"request_id": "again", "label": "a", "correct": True},
        {"request_id": "never", "label": "a", "correct": True},
        report,
        report | {"model": "dogs", "answer": True},
        {"sample": sample, "correct": True},
    )
    assert [one["code"] for one in found["results"]] == [
        "unknown_sample",
        "contradiction",
        "contradiction",
        "ambiguous_request",
        "unknown_sample",
        "answer_required",
        "unknown_sample",
        None,
    ]
    assert found["accepted"] == 1
    monkeypatch.setattr("app.services.feedback.MAX_REPORTS", 1)
    reports = [report | {"request_id": name, "answer": True} for name in ("one", "two")]
    assert [one["code"] for one in give(client, *reports)["results"]] == [None, "too_many_reports"]


@pytest.mark.parametrize(
    "body",
    [
        {"feedback": []},
        {"feedback": [{"sample": "smp_x", "correct": True}]},
        {"feedback": [{"correct": True}]},
        {"feedback": [{"request_id": "r", "correct": True}]},
        {"feedback": [{"request_id": "r", "label": "a"}]},
        {"feedback": [{"sample": "smp_" + "0" * 24, "request_id": "r", "label": "a", "correct": True}]},
        {"feedback": [{"sample": "smp_" + "0" * 24, "correct": "yes"}]},
        {"feedback": [{"sample": "smp_" + "0" * 24, "correct": True, "x": 1}]},
        {"feedback": [{"request_id": "a b", "label": "a", "correct": True}]},
        {"feedback": [{"request_id": "r", "row": -1, "label": "a", "correct": True}]},
        {"feedback": [{"request_id": "r", "label": "a\u0000", "correct": True}]},
        {"feedback": [{"sample": "smp_" + "0" * 24, "correct": True}] * 1001},
    ],
)
def test_feedback_that_is_none_is_refused(client: Any, body: dict[str, Any]):
    response = client.post("/v1/feedback", json=body)
    assert response.status_code == 422, response.text
    assert response.json()["errors"]


def test_keys_speak_of_their_own_models_and_tenants_alone(make_client: Any, store: Store):
    publish_watched(store)
    keys = {
        "own": create_key(store, "own", {"query"}, {"pets"})[1],
        "other model": create_key(store, "other model", {"query"}, {"dogs"})[1],
        "other tenant": create_key(store.of_tenant("acme"), "acme", {"query"})[1],
        "train": create_key(store, "train", {"train"})[1],
    }
    client = make_client(query_samples="ids", require_keys=True)
    sent = {name: {"authorization": f"Bearer {key}"} for name, key in keys.items()}
    assert client.put(MONITOR, json=ALL, headers=sent["own"]).status_code == 403
    assert client.put(MONITOR, json=ALL, headers=sent["train"]).status_code == 200
    sample = client.post(ONE, json=YES, headers=sent["own"]).headers["x-sample-id"]
    for name in ("other model", "other tenant"):
        found = give(client, {"sample": sample, "correct": True}, headers=sent[name])
        assert [one["code"] for one in found["results"]] == ["unknown_sample"]
        by_request = {"request_id": "x", "label": "a", "model": "pets", "answer": True, "correct": False}
        found = give(client, by_request, headers=sent[name])
        assert [one["code"] for one in found["results"]] == ["unknown_sample"]
    assert client.get(SAMPLES, headers=sent["other tenant"]).status_code == 404
    assert client.get(SAMPLES, headers=sent["other model"]).status_code == 403
    assert give(client, {"sample": sample, "correct": True}, headers=sent["own"])["accepted"] == 1


def test_a_moved_alias_begins_a_new_run(client: Any, store: Store):
    sampled(client)
    publish_watched(store, alias=None)
    tag = client.get("/v1/models/pets/aliases/latest").headers["etag"]
    moved = client.put("/v1/models/pets/aliases/latest", json={"version": 2}, headers={"if-match": tag})
    assert moved.status_code == 200, moved.text
    assert client.get(MONITOR).json()["run"] == 2
    assert listed(client) == []
    assert sampled(client)
    assert [one["version"] for one in listed(client)] == [2]
    older = client.post("/v1/models/pets@1/classes/a:query", json=YES)
    assert "x-sample-id" not in older.headers, "the monitor is of what the alias points to"
