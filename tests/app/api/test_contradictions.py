"""Every part of a request is validated, even a part that has no effect beside another."""

from __future__ import annotations

import pytest


@pytest.fixture
def job(client, dataset_id: str) -> str:
    body = {"dataset_id": dataset_id, "model": "numbers", "hyperparameters": {"automatic": False}}
    return str(client.post("/v1/training-jobs", json=body).json()["id"])


def test_a_method_that_a_job_does_not_train_has_no_students(client, job: str):
    path = f"/v1/training-jobs/{job}/students"
    assert client.get(path, params={"method": "none", "limit": 1}).json() == {"data": [], "has_more": False}
    page = client.get(path, params={"method": "gsvm", "limit": 1}).json()
    assert [row["method"] for row in page["data"]] == ["gsvm"]
    assert page["has_more"]


def test_an_invalid_last_event_id_is_rejected_even_with_after(client, job: str, problem):
    answer = client.get(
        f"/v1/training-jobs/{job}/events", params={"after": 0}, headers={"last-event-id": "none"}
    )
    problem(answer, 400, "bad_last_event_id")


@pytest.mark.parametrize(
    ("classes", "status", "code"),
    [
        (["cat", "cat"], 400, "duplicate"),
        ([""], 404, "class_not_found"),
        ([f"c{i}" for i in range(257)], 413, "too_many_classes"),
    ],
)
def test_classes_in_the_query_string_are_validated_even_with_classes_in_the_body(
    client, pets, problem, classes: list[str], status: int, code: str
):
    answer = client.post(
        "/v1/models/pets:query", params={"class": classes}, json={"classes": ["dog"], "x": [1, 2, 3]}
    )
    problem(answer, status, code)


def test_an_empty_class_name_in_the_body_is_not_found(client, pets, problem):
    answer = client.post("/v1/models/pets:query", json={"classes": [""], "x": [1, 2, 3]})
    problem(answer, 404, "class_not_found")


def test_tensor_headers_are_validated_even_for_json_bodies(client, pets, problem):
    path, body = "/v1/models/pets/classes/cat:query", {"x": [1, 2, 3]}
    good = client.post(path, json=body, headers={"x-tensor-shape": "3", "x-tensor-dtype": "float32"})
    assert good.json() == client.post(path, json=body).json()
    problem(client.post(path, json=body, headers={"x-tensor-shape": "three"}), 400, "bad_header")


def test_parameters_are_validated_even_for_a_registered_file(client, dataset_id: str, csv: bytes, problem):
    same = client.post("/v1/datasets", params={"label_column": "", "name": ""}, content=csv)
    assert (same.status_code, same.json()["id"]) == (200, dataset_id)
    problem(client.post("/v1/datasets", params={"format": "exe"}, content=csv), 415, "unsupported_format")
    problem(client.post("/v1/datasets", params={"name": "a\u202eb"}, content=csv), 400, "invalid_request")


def test_long_quoted_texts_are_truncated(client, pets):
    key = "k" * 100_000
    for path in ("/v1/models/pets/classes/cat:query", "/v2/models/pets:cat/infer"):
        answer = client.post(path, json={key: 1, "inputs": [{"name": key}]})
        assert answer.status_code == 400
        assert len(answer.content) < 10_000


def test_true_is_not_accepted_as_a_number(client, dataset_id: str, problem):
    body = {"dataset_id": dataset_id, "model": "numbers", "hyperparameters": {"student": {"margin": False}}}
    found = problem(client.post("/v1/training-jobs", json=body), 422, "invalid_body")
    assert found["errors"][0]["field"] == "hyperparameters.student.margin"
