"""The requests of the client and its reading of responses, against a server with scripted responses."""

from __future__ import annotations

import asyncio
import os
import ssl
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stms_client import (
    AsyncClient,
    Client,
    Conflict,
    Decision,
    EvaluationNotSucceeded,
    InvalidInput,
    InvalidRequest,
    JobEvent,
    JobNotSucceeded,
    NotAllowed,
    NotFound,
    Problem,
    Retry,
    ServerFault,
    StmsError,
    TooBusy,
    Unavailable,
)
from stms_client.events import EventReader
from stms_client.transport import options

QUERY = "/v1/models/pets@latest/classes/gr%C3%B6%C3%9Fe%2F1:query"
ANSWER = {"match": True, "score": 1.5, "threshold": 0.25, "model": "pets", "version": 3}
EXPLAINED = {"probability": 0.75, "gate": 2.5, "rejection": 1.0}
SERVER_PARTS = ("fastapi", "starlette", "uvicorn", "sqlalchemy", "dbos", "numba", "scipy", "sklearn", "numpy")

ONCE = Retry(attempts=1)


class Waiting:
    """`AsyncClient` asked as if it were `Client`, so that one test is about both."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self._runner = asyncio.Runner()
        self.asynchronous = AsyncClient(*arguments, **options)

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self.asynchronous, name)

        def call(*arguments: Any, **options: Any) -> Any:
            result = attribute(*arguments, **options)
            return self._runner.run(listed(result) if hasattr(result, "__aiter__") else result)

        return call if callable(attribute) else attribute

    def __enter__(self) -> Waiting:
        self._runner.run(self.asynchronous.__aenter__())
        return self

    def __exit__(self, *_: object) -> None:
        self._runner.run(self.asynchronous.__aexit__())
        self._runner.close()


async def listed(items: Any) -> list[Any]:
    return [item async for item in items]


@pytest.fixture(params=[Client, Waiting], ids=["sync", "async"])
def kind(request) -> Any:
    return request.param


@pytest.fixture
def client(kind, written):
    with kind(written.address, "stms_key", retry=ONCE) as opened:
        yield opened


def test_importing_the_client_loads_neither_server_nor_solver_nor_numpy():
    code = f"import sys, stms_client; print([name for name in {SERVER_PARTS!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_queries_with_lists_do_not_load_numpy(written):
    written.on("POST", QUERY, ANSWER)
    code = (
        "import sys; from stms_client import Client\n"
        "with Client(sys.argv[1]) as client: assert client.is_class('pets@latest', 'größe/1', [1, 2])\n"
        "print('numpy' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, written.address], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "False"


def test_a_query_sends_the_key_and_returns_a_decision(client, written):
    written.on("POST", QUERY, ANSWER)
    assert client.address == written.address
    decision = client.query("pets@latest", "größe/1", [1, 2.5])
    assert decision == Decision(True, 1.5, 0.25, "pets", 3)
    assert client.is_class("pets@latest", "größe/1", np.array([1.0, 2.5])) is True
    assert [request.json for request in written.requests] == [{"x": [1, 2.5]}, {"x": [1.0, 2.5]}]
    assert written.requests[0].headers["Authorization"] == "Bearer stms_key"


def test_a_sampled_answer_has_the_id_by_which_feedback_names_it(client, written):
    written.on("POST", QUERY, ANSWER, **{"x-sample-id": "smp_1"})
    assert client.query("pets@latest", "größe/1", [1, 2]).sample_id == "smp_1"
    written.on("POST", "/v1/feedback", {"accepted": 1, "replaced": 0, "results": []})
    assert client.give_feedback([{"sample": "smp_1", "correct": False}])["accepted"] == 1
    assert written.requests[-1].json == {"feedback": [{"sample": "smp_1", "correct": False}]}


def test_a_proxy_of_the_environment_is_used_but_for_this_machine(client, written, monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", written.address)
    path = "/v1/models/pets/classes/cat:query"
    answer = {"match": True, "score": 1, "threshold": 0, "model": "pets", "version": 1}
    for address in ("http://stms.test", written.address):
        written.on("POST", f"http://stms.test{path}" if address == "http://stms.test" else path, answer)
        with Client(address, "key") as asking:
            assert asking.query("pets", "cat", [1.0]).match
    assert [request.path for request in written.requests] == [f"http://stms.test{path}", path]


def test_authorities_are_loaded_only_where_something_may_be_encrypted(monkeypatch):
    def trusted(address: str) -> ssl.SSLContext | bool:
        return options(address, "", None, "tests")["verify"]()

    for name in [name for name in os.environ if name == "SSL_CERT_FILE" or name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)
    assert trusted("https://stms.example") is True
    assert trusted("http://stms.example").get_ca_certs() == []
    # It trusts nobody, and would refuse every encrypted connection.
    assert trusted("http://stms.example").verify_mode is ssl.CERT_REQUIRED
    monkeypatch.setenv("http_proxy", "https://proxy.example")
    assert trusted("http://stms.example") is True
    assert trusted("http://127.0.0.1:8000").get_ca_certs() == []


def test_a_sparse_row_and_an_explanation(client, written):
    written.on("POST", QUERY, ANSWER | EXPLAINED)
    row = {"indices": [3, 7], "values": np.array([1.0, 2.0])}
    decision = client.query("pets@latest", "größe/1", row, explain=True)
    assert (decision.probability, decision.gate, decision.rejection, decision.piece) == (0.75, 2.5, 1.0, None)
    assert written.requests[0].json == {"x": {"indices": [3, 7], "values": [1.0, 2.0]}, "explain": True}


def test_an_explanation_tells_which_of_several_rejections_decided(client, written):
    unnamed, named = (
        {"match": True, "score": 1.5, "threshold": 0.25, **EXPLAINED, "piece": 0},
        {"match": True, "score": 1.5, "threshold": 0.25, **EXPLAINED, "piece": 2, "rival": "dog"},
    )
    written.on("POST", QUERY, ANSWER | EXPLAINED | {"piece": 3, "rival": "dog"})
    for results in ([unnamed, unnamed], [unnamed, named]):
        written.on("POST", QUERY, {"results": results, "model": "pets", "version": 3})
    decision = client.query("pets@latest", "größe/1", [1.0], explain=True)
    assert (decision.piece, decision.rival) == (3, "dog")
    decisions = client.query_rows("pets@latest", "größe/1", [[1, 2], [3, 4]], explain=True)
    assert (decisions.pieces, decisions.rivals, decisions[0].rival) == ([0, 0], None, None)
    decisions = client.query_rows("pets@latest", "größe/1", [[1, 2], [3, 4]], explain=True)
    assert [(decision.piece, decision.rival) for decision in decisions] == [(0, None), (2, "dog")]


@pytest.mark.parametrize(
    ("label", "name"),
    [
        (0, "0"),
        (np.int64(3), "3"),
        (np.uint8(3), "3"),
        (2.0, "2"),
        (np.float32(2.0), "2"),
        (True, "true"),
        (np.bool_(False), "false"),
        (np.str_("a"), "a"),
    ],
)
def test_a_class_is_named_by_a_label_as_the_service_reads_it(client, written, label: Any, name: str):
    path = f"/v1/models/pets/classes/{name}:query"
    written.on("POST", path, ANSWER)
    assert client.is_class("pets", label, [1.0])
    assert client.query("pets", label, [1.0]).match
    written.answers["POST", path].clear()
    written.on("POST", path, {"results": [ANSWER], "model": "pets", "version": 3})
    assert client.query_rows("pets", label, [[1.0]]).matches == [True]
    of_classes = {"classes": [{"class": name, **ANSWER}], "model": "pets", "version": 3}
    written.on("POST", "/v1/models/pets:query", of_classes)
    assert list(client.query_classes("pets", np.array([label]), [1.0])) == [name]
    assert written.requests[-1].json["classes"] == [name]
    written.on("POST", "/v1/models/pets/versions", {"version": 4})
    client.publish_thresholds("pets", {label: 0.5})
    assert written.requests[-1].json["thresholds"] == {name: 0.5}


@pytest.mark.parametrize("label", [None, 1.5, float("nan"), b"a", ["a"], np.timedelta64(1, "ns"), object()])
def test_what_is_no_label_names_no_class(client, label: Any):
    with pytest.raises(InvalidInput):
        client.is_class("pets", label, [1.0])


def test_many_rows_explained_by_columns_have_the_effects_of_each(client, written):
    effects = [
        {"base": 0.5, "exact": True, "columns": [{"name": 0, "effect": effect}], "rest": 0.0}
        for effect in (1.0, -0.375)
    ]
    results = [{"match": True, "score": 1.5, "threshold": 0.25, **effects[0]}]
    results.append({"match": False, "score": 0.125, "threshold": 0.25, **effects[1]})
    written.on("POST", QUERY, {"results": results, "model": "pets", "version": 3})
    for rows in ([[1, 2], [3, 4]], np.array([[1.0, 2.0], [3.0, 4.0]])):
        decisions = client.query_rows("pets@latest", "größe/1", rows, explain="columns")
        assert decisions.effects == effects
        assert [decision.effects for decision in decisions] == effects
        assert written.requests[-1].json == {"rows": [[1, 2], [3, 4]], "explain": "columns"}


def test_many_rows_as_lists(client, written):
    results = [{"match": True, "score": 1.5, "threshold": 0.25, **EXPLAINED}]
    results.append({"match": False, "score": 0.125, "threshold": 0.25, **EXPLAINED})
    written.on("POST", QUERY, {"results": results, "model": "pets", "version": 3})
    decisions = client.query_rows("pets@latest", "größe/1", [[1, 2], [3, 4]], explain=True)
    assert len(decisions) == 2
    assert decisions[0] == Decision(True, 1.5, 0.25, "pets", 3, 0.75, 2.5, 1.0)
    assert [decision.match for decision in decisions] == decisions.matches == [True, False]
    assert decisions[1:] == [decisions[1]]
    assert written.requests[0].json == {"rows": [[1, 2], [3, 4]], "explain": True}


@pytest.mark.parametrize(("dtype", "name"), [("f4", "float32"), ("f8", "float64"), ("i2", "float64")])
def test_an_array_is_sent_and_returned_as_raw_numbers(client, written, dtype, name):
    rows = np.asfortranarray(np.arange(6).reshape(2, 3), dtype=dtype)
    headers = {"X_Tensor_Shape": "2", "X_Tensor_Columns": "score", "X_Threshold": "0.25"}
    headers |= {"X_Model": "pets", "X_Model_Version": "3"}
    written.on("POST", QUERY, np.array([1.5, 0.125], "<f8").tobytes(), **headers)
    decisions = client.query_rows("pets@latest", "größe/1", rows)
    assert decisions[0] == Decision(True, 1.5, 0.25, "pets", 3)
    assert decisions.matches.tolist() == [True, False]
    [request] = written.requests
    assert request.headers["X-Tensor-Shape"] == "2,3"
    assert request.headers["X-Tensor-Dtype"] == name
    assert request.headers["Content-Type"] == request.headers["Accept"] == "application/octet-stream"
    assert np.array_equal(np.frombuffer(request.body, name).reshape(2, 3), rows)


def test_an_array_with_explanation_has_columns(client, written):
    table = np.array([[1.5, 0.75, 2.5, 1.0, 3.0]])
    headers = {"X_Tensor_Shape": "1,5", "X_Tensor_Columns": "score,probability,gate,rejection,piece"}
    headers |= {"X_Threshold": "0.25", "X_Model": "pets", "X_Model_Version": "3"}
    written.on("POST", QUERY, table.tobytes(), **headers)
    decisions = client.query_rows("pets@latest", "größe/1", np.ones((1, 2)), explain=True)
    assert list(decisions) == [Decision(True, 1.5, 0.25, "pets", 3, 0.75, 2.5, 1.0, 3)]
    assert written.requests[0].path.endswith("?explain=true")


def test_an_array_of_rows_has_two_axes(client):
    with pytest.raises(ValueError, match="is needed"):
        client.query_rows("pets", "cat", np.ones(3))


def test_nan_is_rejected_before_the_request(client, written):
    with pytest.raises(ValueError, match="JSON"):
        client.query("pets", "cat", [float("nan")])
    assert written.requests == []


def test_several_classes_and_the_teacher(client, written):
    parts = [{"class": "a", "match": True, "score": 2.0, "threshold": 0.0}]
    parts.append({"class": "b", "match": False, "score": -2.0, "threshold": 0.0})
    written.on("POST", "/v1/models/pets:query", {"classes": parts, "model": "pets", "version": 3})
    written.on("POST", "/v1/models/pets:predict", {"label": "a", "model": "pets", "version": 3})
    found = client.query_classes("pets", ["a", "b"], [1])
    assert found == {
        "a": Decision(True, 2.0, 0.0, "pets", 3),
        "b": Decision(False, -2.0, 0.0, "pets", 3),
    }
    assert client.predict("pets", [1]) == "a"
    assert written.requests[0].json == {"classes": ["a", "b"], "x": [1]}


def test_a_file_is_sent_in_pieces_with_progress(client, written, tmp_path: Path):
    file = tmp_path / "rows of mine.csv"
    file.write_bytes(b"1,2,a\n" * 100_000)
    written.on("POST", "/v1/datasets", {"id": "ds_1"}, 201)
    seen: list[tuple[int, int]] = []
    document = client.upload_dataset(
        file, label_column="2", progress=lambda sent, total: seen.append((sent, total))
    )
    assert document == {"id": "ds_1"}
    assert seen[-1] == (600_000, 600_000)
    assert len(seen) == 3
    [request] = written.requests
    assert request.body == file.read_bytes()
    assert request.headers["Content-Type"] == "application/octet-stream"
    assert "name=rows+of+mine" in request.path
    assert "label_column=2" in request.path
    assert "format" not in request.path


def test_data_sets_models_and_heads(client, written, tmp_path: Path):
    written.on("GET", "/v1/datasets", {"data": [{"id": 1}]}, Link='</v1/datasets?after=1>; rel="next"')
    written.on("GET", "/v1/datasets", {"data": [{"id": 2}]})
    written.on("GET", "/v1/datasets/ds%2F1", {"id": "ds/1"})
    written.on("DELETE", "/v1/datasets/ds%2F1", None, 204)
    written.on("GET", "/v1/models", {"data": [{"name": "pets"}]})
    written.on("GET", "/v1/models/pets", {"name": "pets"})
    written.on("POST", "/v1/teachers", {"model": "faces", "version": 1}, 201)
    assert [item["id"] for item in client.datasets()] == [1, 2]
    assert client.dataset("ds/1") == {"id": "ds/1"}
    assert client.delete_dataset("ds/1") is None
    assert list(client.models()) == [{"name": "pets"}]
    assert client.model("pets") == {"name": "pets"}
    head = tmp_path / "head.npz"
    head.write_bytes(b"PK")
    assert client.import_head(head, "faces")["version"] == 1
    assert written.requests[-1].path == "/v1/teachers?model=faces&kind=head&alias=latest"
    client.import_head(head, "faces", rivals=4, row_norm=1.5)
    assert written.requests[-1].path.endswith("&alias=latest&rivals=4&row_norm=1.5")


def test_an_alias_is_moved_from_the_revision_that_was_read(client, written):
    path = "/v1/models/pets/aliases/best"
    written.on("GET", path, {"code": "alias_not_found", "detail": "None."}, 404)
    written.on("GET", path, {"revision": 7})
    written.on("PUT", path, {"version": 2})
    client.point_alias("pets", "best", 2)
    client.point_alias("pets", "best", 2)
    first, second = (request for request in written.requests if request.method == "PUT")
    assert first.headers["If-None-Match"] == "*"
    assert second.headers["If-Match"] == '"7"'
    assert second.json == {"version": 2}
    client.point_alias("pets", "best", 3, allow_schema_change=True)
    assert written.requests[-1].json == {"version": 3, "allow_schema_change": True}
    written.on("DELETE", path, None, 204)
    client.delete_alias("pets", "best")
    assert written.requests[-1].path == path
    client.delete_alias("pets", "best", allow_schema_change=True)
    assert written.requests[-1].path == f"{path}?allow_schema_change=true"


def test_versions_and_aliases_are_deleted_at_the_revision_that_was_read(client, written):
    written.on("GET", "/v1/models/pets/aliases/best", {"revision": 7})
    written.on("DELETE", "/v1/models/pets/aliases/best", None, 204)
    written.on("DELETE", "/v1/models/pets/versions/3", None, 204)
    client.delete_alias("pets", "best")
    assert written.requests[-1].headers["If-Match"] == '"7"'
    client.delete_version("pets", 3)
    assert written.requests[-1].method == "DELETE"


def test_each_job_is_submitted_with_its_own_idempotency_key(client, written):
    written.on("POST", "/v1/training-jobs", {"id": "j1"}, 202)
    written.on("GET", "/v1/training-jobs", {"data": [{"id": "j1"}]})
    written.on("GET", "/v1/training-jobs/j1", {"id": "j1"})
    written.on("GET", "/v1/training-jobs/j1/students", {"data": [{"label": "a"}]})
    written.on("POST", "/v1/training-jobs/j1/cancel", {"state": "cancelling"}, 202)
    written.on("POST", "/v1/training-jobs/j1/retry", {"state": "queued"}, 202)
    client.submit_job("ds_1", "pets", {"student": {"C": 10}})
    client.submit_job("ds_1", "pets", idempotency_key="mine")
    first, second = written.requests
    assert first.json == {"dataset_id": "ds_1", "model": "pets", "hyperparameters": {"student": {"C": 10}}}
    assert len(first.headers["Idempotency-Key"]) == 32
    assert second.headers["Idempotency-Key"] == "mine"
    assert list(client.jobs("running")) == [{"id": "j1"}]
    assert written.requests[-1].path == "/v1/training-jobs?status=running"
    assert client.job("j1") == {"id": "j1"}
    assert list(client.students("j1")) == [{"label": "a"}]
    written.on("DELETE", "/v1/training-jobs/j1", None, 204)
    client.delete_job("j1")
    assert client.cancel_job("j1") == {"state": "cancelling"}
    assert client.retry_job("j1") == {"state": "queued"}


def test_a_version_is_trained_again(client, written):
    path = "/v1/models/pets/retrain"
    written.on("POST", path, {"id": "j2", "state": "queued"}, 202)
    assert client.retrain("pets").id == "j2"
    assert written.requests[0].json == {"from": "latest", "hyperparameters": {}}
    assert len(written.requests[0].headers["Idempotency-Key"]) == 32
    given = {"base": 3, "hyperparameters": {"seed": 1}, "alias": "candidate", "idempotency_key": "mine"}
    client.retrain("pets", "ds_2", **given)
    assert written.requests[1].json == {
        "from": "3",
        "dataset_id": "ds_2",
        "alias": "candidate",
        "hyperparameters": {"seed": 1},
    }
    assert written.requests[1].headers["Idempotency-Key"] == "mine"


def stream(*events: tuple[int, str]) -> bytes:
    return "".join(
        f'id: {number}\nevent: {kind}\ndata: {{"n": {number}}}\n\n' for number, kind in events
    ).encode()


def test_a_job_is_followed_over_several_connections(client, written):
    path = "/v1/training-jobs/j1"
    written.on("GET", f"{path}/events", stream((1, "job_queued"), (2, "stage_started")))
    written.on("GET", f"{path}/events", {"detail": "busy"}, 503)
    written.on("GET", f"{path}/events", stream((3, "job_succeeded")))
    written.on("GET", path, {"id": "j1", "state": "running"})
    written.on("GET", path, {"id": "j1", "state": "succeeded"})
    events = list(client.follow_job("j1", pause=0.01))
    assert [event.id for event in events] == ["1", "2", "3"]
    assert events[0] == JobEvent("1", "job_queued", {"n": 1})
    asked = [request for request in written.requests if request.path.endswith("/events")]
    assert [request.headers.get("Last-Event-ID") for request in asked] == [None, "2", "2"]
    assert asked[0].headers["Accept"] == "text/event-stream"


def test_following_ends_with_a_permanent_error_or_when_patience_runs_out(client, written):
    written.on("GET", "/v1/training-jobs/j1/events", {"detail": "busy"}, 503)
    written.on("GET", "/v1/training-jobs/j2/events", {"detail": "none"}, 404)
    with pytest.raises(Unavailable):
        list(client.follow_job("j1", patience=0.05, pause=0.01))
    with pytest.raises(NotFound):
        list(client.follow_job("j2"))


@pytest.mark.parametrize("state", ["succeeded", "failed"])
def test_a_job_is_waited_for(client, written, state):
    written.on("GET", "/v1/training-jobs/j1/events", stream((1, "job_queued")))
    written.on("GET", "/v1/training-jobs/j1", {"id": "j1", "state": state, "error": {"message": "No disk"}})
    seen: list[JobEvent] = []
    if state == "succeeded":
        assert client.wait_for_job("j1", progress=seen.append)["state"] == "succeeded"
        assert len(seen) == 1
    else:
        with pytest.raises(JobNotSucceeded, match="ended failed: No disk") as caught:
            client.wait_for_job("j1")
        assert caught.value.job["id"] == "j1"


@pytest.mark.parametrize("state", ["succeeded", "failed"])
def test_an_evaluation_is_waited_for(client, written, state):
    path = "/v1/evaluations/ev_1"
    document = {
        "id": "ev_1",
        "version": "m@1",
        "progress_done": 0,
        "progress_total": 0,
        "error_message": "No",
    }
    written.on("GET", path, document | {"state": "running"})
    written.on("GET", path, document | {"state": state})
    seen: list[str] = []
    if state == "succeeded":
        ended = client.wait_for_evaluation("ev_1", progress=lambda found: seen.append(found["state"]))
        assert (ended["state"], seen) == ("succeeded", ["running", "succeeded"])
    else:
        with pytest.raises(EvaluationNotSucceeded, match="ended failed: No") as caught:
            client.wait_for_evaluation("ev_1", progress=True)
        assert caught.value.evaluation["id"] == "ev_1"


def test_a_gate_is_changed_under_the_revision_that_was_read(client, written):
    path = "/v1/models/m/aliases/live/gate"
    written.on("GET", path, {"code": "gate_not_found", "detail": "none"}, 404)
    written.on("GET", path, {"revision": 4})
    written.on("PUT", path, {"revision": 5})
    written.on("DELETE", path, None, 204)
    for _ in range(2):
        assert client.set_gate("m", "live", "ds_1", rule="no_class_worse")["revision"] == 5
    client.delete_gate("m", "live")
    first, second, deletion = (one.headers for one in written.requests if one.method != "GET")
    assert first["If-None-Match"] == "*"
    assert second["If-Match"] == deletion["If-Match"] == '"4"'


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (400, InvalidRequest),
        (401, NotAllowed),
        (403, NotAllowed),
        (404, NotFound),
        (409, Conflict),
        (412, Conflict),
        (413, InvalidRequest),
        (418, Problem),
        (422, InvalidRequest),
        (429, TooBusy),
        (500, ServerFault),
        (503, Unavailable),
    ],
)
def test_each_status_raises_its_exception_with_the_whole_document(client, written, status, error):
    fault = {"field": "x", "row": 0, "column": 2, "code": "not_finite", "message": "x is not finite"}
    document = {"detail": "No.", "code": "no", "request_id": "r1", "errors": [fault]}
    written.on("GET", "/v1/models/m", document, status, Retry_After="7")
    with pytest.raises(StmsError) as caught:
        client.model("m")
    problem = caught.value
    assert type(problem) is error
    assert (problem.status, problem.code, problem.detail, problem.request_id) == (status, "no", "No.", "r1")
    assert problem.faults == [fault]
    assert problem.retry_after == 7
    assert str(problem) == f"No. (HTTP {status}, no, request r1)\n  x, row 0, column 2: x is not finite"


@pytest.mark.parametrize(
    ("messages", "lines"),
    [
        (["The webhook cannot be stored."], []),
        (["url must begin with https"], ["url: url must begin with https"]),
        (["q1", "q2", "q3", "q4", "q5"], ["url: q1", "url: q2", "url: q3", "and 2 more, see `faults`"]),
    ],
)
def test_the_text_of_an_error_has_its_first_reasons_once(client, written, messages, lines):
    faults = [
        {"field": "url", "row": None, "column": None, "code": "c", "message": text} for text in messages
    ]
    document = {"detail": "The webhook cannot be stored.", "code": "invalid", "errors": faults}
    written.on("POST", "/v1/webhooks", document, 422)
    with pytest.raises(InvalidRequest) as caught:
        client.create_webhook("http://example.com", ["job.succeeded"])
    summary = "The webhook cannot be stored. (HTTP 422, invalid)"
    assert str(caught.value).splitlines() == [summary, *(f"  {line}" for line in lines)]


@pytest.mark.parametrize(
    ("body", "shown"), [(b"<html>busy</html>", "<html>busy</html>"), (["odd"], "odd"), ({}, "gave no reason")]
)
def test_an_error_without_a_problem_document_is_shown_as_text(client, written, body, shown):
    written.on("GET", "/v1/models/m", body, 502)
    with pytest.raises(Unavailable, match=shown):
        client.model("m")


@pytest.mark.parametrize(
    "address", ["http://[::1", "http://a:b:c", "127.0.0.1:8000", "ftp://host", "http://"]
)
def test_an_invalid_address_is_a_value_error(kind, address):
    with pytest.raises(ValueError, match="not an address"):
        kind(address)


def test_events_are_parsed_from_lines():
    lines = [": heartbeat", "", "id: 7", "event: job_started", 'data: {"a":', "data: 1}", "", "id: 8", ""]
    reader = EventReader()
    events = [event for line in lines if (event := reader.feed(line)) is not None]
    assert events == [JobEvent("7", "job_started", {"a": 1})]


def test_rotating_a_key_is_not_retried(client, written):
    written.on("POST", "/v1/keys/key_1/rotate", {"code": "unavailable", "detail": "away"}, status=503)
    with pytest.raises(Unavailable):
        client.rotate_key("key_1", overlap_seconds=5)
    [request] = written.requests
    assert request.json == {"overlap_seconds": 5}
    written.answers.clear()
    written.on("POST", "/v1/keys/key_1/rotate", {"key": "stms_new", "details": {}})
    assert client.rotate_key("key_1")["key"] == "stms_new"


@pytest.mark.parametrize(
    ("name", "arguments", "method", "path", "body"),
    [
        (
            "fetch_dataset",
            {"url": "https://b/a.csv", "file_format": "csv", "reading": {"header": "no"}},
            "POST",
            "/v1/datasets:fetch",
            {"url": "https://b/a.csv", "format": "csv", "reading": {"header": "no"}},
        ),
        (
            "plan_upload",
            {"size": 10, "sha256": "0" * 64},
            "POST",
            "/v1/uploads",
            {"bytes": 10, "sha256": "0" * 64},
        ),
        (
            "change_classes",
            {"model": "m", "rename": {"a": "b"}, "remove": ["c"], "base": 3},
            "PATCH",
            "/v1/models/m/classes",
            {"base": "3", "rename": {"a": "b"}, "remove": ["c"]},
        ),
        (
            "revise_dataset",
            {"dataset_id": "ds_1", "append": "ds_2", "delete": [4, 3], "note": "of March"},
            "POST",
            "/v1/datasets/ds_1/revisions",
            {"append_dataset_id": "ds_2", "note": "of March", "delete": {"rows": [4, 3]}},
        ),
        (
            "revise_dataset",
            {"dataset_id": "ds_1", "delete": [4]},
            "POST",
            "/v1/datasets/ds_1/revisions",
            {"delete": {"rows": [4]}},
        ),
        (
            "correct_suspects",
            {"job_id": "j1", "corrections": {3: "a"}, "keep": [4]},
            "POST",
            "/v1/training-jobs/j1/suspects",
            {"corrections": [{"row": 3, "label": "a"}, {"row": 4, "keep": True}], "name": None},
        ),
        (
            "correct_labels",
            {"job_id": "j1", "corrections": {3: "a", 4: None}, "rename": {"b": "c"}},
            "POST",
            "/v1/training-jobs/j1/labels",
            {
                "corrections": [{"row": 3, "label": "a"}, {"row": 4, "label": None}],
                "rename": {"b": "c"},
                "keep": "all",
                "name": None,
            },
        ),
        (
            "publish_thresholds",
            {"model": "pets", "thresholds": {"a": np.float32(0.5)}, "base": 2},
            "POST",
            "/v1/models/pets/versions",
            {"base": "2", "thresholds": {"a": 0.5}},
        ),
        (
            "choose_thresholds",
            {"model": "pets", "choose": {7: {"recall": 0.9}}, "base": 2},
            "POST",
            "/v1/models/pets/thresholds",
            {"base": "2", "choose": {"7": {"recall": 0.9}}},
        ),
        (
            "create_key",
            {"name": "n", "rate_limit": 0.0},
            "POST",
            "/v1/keys",
            {"name": "n", "scopes": ["query"], "models": [], "rate_limit": 0.0},
        ),
        (
            "revoke_tokens",
            {"issuer": "https://i", "sub": "robot"},
            "POST",
            "/v1/token-revocations",
            {"issuer": "https://i", "sub": "robot"},
        ),
        (
            "set_quotas",
            {"tenant": "t", "quotas": {"keys": 3, "datasets": None}},
            "PATCH",
            "/v1/quotas?tenant=t",
            {"keys": 3, "datasets": None},
        ),
        (
            "change_webhook",
            {"webhook_id": "wh_1", "events": ("job.failed",), "enabled": False},
            "PATCH",
            "/v1/webhooks/wh_1",
            {"events": ["job.failed"], "enabled": False},
        ),
    ],
)
def test_a_body_has_what_was_given_and_nulls_only_where_they_say_something(
    client, written, name, arguments, method, path, body
):
    written.on(method, path.partition("?")[0], {"id": "x"})
    assert getattr(client, name)(**arguments) == {"id": "x"}
    [request] = written.requests
    assert (request.method, request.path, request.json) == (method, path, body)
    assert request.headers["Content-Type"] == "application/json"


def test_the_audit_log_is_followed_over_pages_and_outages(client, written):
    link = '</v1/audit?order=asc&after=aud_1>; rel="next"'
    written.on("GET", "/v1/audit", {"data": [{"id": "aud_1"}], "has_more": True}, link=link)
    written.on("GET", "/v1/audit", {"detail": "away"}, 503)
    written.on("GET", "/v1/audit", {"data": [{"id": "aud_2"}], "has_more": False})
    written.on("GET", "/v1/audit", {"data": [], "has_more": False})
    written.on("GET", "/v1/audit", {"data": [{"id": "aud_3"}], "has_more": False})
    written.on("GET", "/v1/audit", {"detail": "none"}, 404)
    with pytest.raises(NotFound):
        list(client.follow_audit(after="aud_0", action="a", pause=0.01))
    assert [request.path for request in written.requests] == [
        "/v1/audit?action=a&order=asc&after=aud_0",
        "/v1/audit?order=asc&after=aud_1",
        "/v1/audit?action=a&order=asc&after=aud_1",
        "/v1/audit?action=a&order=asc&after=aud_2",
        "/v1/audit?action=a&order=asc&after=aud_2",
        "/v1/audit?action=a&order=asc&after=aud_3",
    ], "each goes on after the last record that came"


def test_following_the_audit_log_ends_when_patience_runs_out(client, written):
    written.on("GET", "/v1/audit", {"detail": "away"}, 503)
    with pytest.raises(Unavailable):
        list(client.follow_audit(patience=0.05, pause=0.01))


def test_the_audit_log_is_read_page_by_page(client, written):
    link = '</v1/audit?actor=a&after=aud_2>; rel="next"'
    written.on("GET", "/v1/audit", {"data": [{"id": "aud_2"}], "has_more": True}, link=link)
    written.on("GET", "/v1/audit", {"data": [{"id": "aud_1"}], "has_more": False})
    assert [record["id"] for record in client.audit(actor="a", since=1.5)] == ["aud_2", "aud_1"]
    assert [request.path for request in written.requests] == [
        "/v1/audit?actor=a&since=1.5",
        "/v1/audit?actor=a&after=aud_2",
    ]
