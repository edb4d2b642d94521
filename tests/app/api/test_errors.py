"""Every error is problem+json with a code and the id of the request."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from app.domain import errors
from app.domain.errors import InputFault, ServiceError
from app.http.problem import MAX_FAULTS, STATUS_OF, Problem, problem_of
from app.http.request_id import request_id_for

Check = Callable[..., dict[str, Any]]


def service_errors() -> list[type[ServiceError]]:
    return [
        kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, ServiceError)
    ]


@pytest.mark.parametrize("kind", [kind for kind in service_errors() if kind is not ServiceError])
def test_every_domain_error_has_a_status(kind: type[ServiceError]):
    found = problem_of(kind("It went wrong."))
    assert found.status == STATUS_OF[kind]
    assert found.code == kind.code
    document = json.loads(found.body("r1", "/v1"))
    assert document["detail"] == "It went wrong."


def test_retry_after_is_whole_seconds_and_never_zero():
    assert (b"retry-after", b"1") in problem_of(errors.Overloaded("busy", retry_after=0.2)).headers()
    assert (b"retry-after", b"3") in problem_of(errors.Unavailable("down", retry_after=2.1)).headers()


def test_a_change_that_may_have_been_made_does_not_ask_to_be_repeated():
    problem = problem_of(errors.OutcomeUnknown("It may have been made."))
    assert problem.status == 502
    assert "retry-after" not in {name.decode() for name, _ in problem.headers()}


def test_a_problem_names_at_most_a_hundred_faults():
    faults = [InputFault("x", "bad", "bad", row=i) for i in range(MAX_FAULTS + 5)]
    assert len(json.loads(Problem(400, "bad", "bad", faults).body("r", "/"))["errors"]) == MAX_FAULTS


def test_a_problem_can_quote_a_lone_surrogate():
    assert json.loads(Problem(404, "x", "no class '\ud800'").body("r", "/"))["detail"] == "no class '\ud800'"


def test_an_unknown_path_is_a_problem(client, problem: Check):
    assert problem(client.get("/v1/nothing?x=1"), 404, "no_such_path")["instance"] == "/v1/nothing"


def test_a_wrong_method_is_a_problem_that_names_the_right_ones(client, problem: Check):
    response = client.put("/v1/datasets")
    problem(response, 405, "method_not_allowed")
    assert response.headers["allow"] == "GET, HEAD, POST"


def test_a_body_with_wrong_values_names_each_field(client, problem: Check):
    body = {
        "dataset_id": "../etc",
        "model": "a/b",
        "priority": 1,
        "hyperparameters": {
            "student": {"C": -1, "margin": "x"},
            "seed": 0.5,
            "teacher": {"C": 0},
            "threshold": {"folds": 1},
            "colour": "red",
        },
    }
    document = problem(client.post("/v1/training-jobs", json=body), 422, "invalid_body")
    fields = {fault["field"] for fault in document["errors"]}
    deep = ("student.C", "student.margin", "seed", "teacher.C", "threshold.folds", "colour")
    assert fields == {"dataset_id", "model", "priority", *(f"hyperparameters.{name}" for name in deep)}


def test_a_wrong_parameter_is_400_and_a_wrong_path_404(client, problem: Check):
    document = problem(client.get("/v1/training-jobs", params={"status": "lost"}), 400, "invalid_parameter")
    assert document["errors"][0]["field"].startswith("status")
    problem(client.get("/v1/training-jobs/a%00b"), 404, "not_found")


def test_a_json_body_over_the_limit_is_413(make_client: Callable[..., Any], problem: Check):
    client = make_client(max_body_bytes=2048)
    body = {"dataset_id": "ds", "model": "a" * 4000}
    problem(client.post("/v1/training-jobs", json=body), 413, "body_too_large")

    async def pieces():
        for _ in range(10):
            yield b" " * 1000

    headers = {"content-type": "application/json"}
    problem(client.post("/v1/training-jobs", content=pieces(), headers=headers), 413, "body_too_large")


@pytest.mark.parametrize("path", ["/v1/models", "/v1/training-jobs/job_none"])
def test_a_declared_length_over_the_limit_is_413_on_any_route(make_client, problem: Check, path: str):
    client = make_client(max_body_bytes=2048)
    document = problem(client.request("GET", path, content=b" " * 4000), 413, "body_too_large")
    assert document["detail"] == "The body is larger than 2048 bytes."


def test_a_client_that_disconnects_within_its_body_is_recorded_as_truncated(client):
    messages = iter([{"type": "http.request", "body": b"{", "more_body": True}, {"type": "http.disconnect"}])

    async def receive() -> Any:
        return next(messages)

    headers = {"content-type": "application/json"}
    sent = client.run(client.exchange("POST", "/v1/training-jobs", receive, headers))
    assert sent[0]["status"] == 400
    assert json.loads(sent[1]["body"])["code"] == "truncated_upload"


def test_an_unexpected_error_reveals_no_internals(client, problem: Check, caplog: pytest.LogCaptureFixture):
    @client.control.get("/boom")
    def boom() -> None:
        raise RuntimeError("the password is swordfish")

    response = client.get("/boom", headers={"x-request-id": "find-me"})
    assert "swordfish" not in problem(response, 500, "internal_error")["detail"]
    assert "find-me" in caplog.text
    assert "swordfish" in caplog.text


def test_a_line_break_in_a_path_makes_no_line_of_the_log(client, caplog: pytest.LogCaptureFixture):
    @client.control.get("/boom/{what}")
    def boom(what: str) -> None:
        raise RuntimeError("no")

    assert client.get("/boom/a%0A2026-11-23 INFO app: all is well").status_code == 500
    [record] = [record for record in caplog.records if "/boom" in record.getMessage()]
    assert "%0A" in record.getMessage()
    assert "\n" not in record.getMessage()


def test_a_valid_request_id_is_returned_and_an_invalid_one_replaced(client):
    assert client.get("/livez", headers={"x-request-id": "abc:1"}).headers["x-request-id"] == "abc:1"
    made = client.get("/livez", headers={"x-request-id": 'bad "id"'}).headers["x-request-id"]
    assert made != 'bad "id"'
    assert client.get("/livez").headers["x-request-id"] != made


def test_request_ids_are_unique():
    assert len({request_id_for(None) for _ in range(1000)}) == 1000
    assert request_id_for(b"a" * 129) != b"a" * 129


def test_a_path_with_a_verb_has_the_methods_of_the_verb(client, pets):
    for method in ("GET", "OPTIONS", "DELETE"):
        response = client.request(method, "/v1/models/pets:predict")
        assert response.status_code == 405
        assert response.headers["allow"] == "POST"
    assert client.get("/v1/models/no such model").status_code == 404


@pytest.mark.parametrize(
    ("change", "field", "message"),
    [
        ({"model": "bad name!"}, "model", "The name of a model or tenant begins with a letter or digit"),
        ({"hyperparameters": {"studnt": 1}}, "hyperparameters.studnt", "Is 'student' meant?"),
        ({"hyperparameters": {"student": {"margn": 1}}}, "hyperparameters.student.margn", "Is 'margin' mea"),
        ({"prioriti": "low"}, "prioriti", "There is no such field."),
    ],
)
def test_a_name_that_cannot_be_used_is_told_in_words(
    client, problem: Check, change: dict[str, Any], field: str, message: str
):
    body = {"dataset_id": "ds_1", "model": "m"} | change
    [fault] = problem(client.post("/v1/training-jobs", json=body), 422, "invalid_body")["errors"]
    assert fault["field"] == field
    assert message in fault["message"]


@pytest.mark.parametrize(
    ("path", "meant"),
    [
        ("/v1/jobs", " Is /v1/training-jobs meant?"),
        ("/v1/dataset/x", " Is /v1/datasets meant?"),
        ("/v1/models/x/y/z", ""),
        ("/v1/nothing", ""),
        ("/v1", ""),
    ],
)
def test_an_unknown_path_names_the_resource_that_may_be_meant(client, problem: Check, path: str, meant: str):
    detail = problem(client.get(path), 404, "no_such_path")["detail"]
    assert detail == f"There is nothing at this path.{meant}"
