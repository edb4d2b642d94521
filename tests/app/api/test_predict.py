"""Predictions of the whole teacher over HTTP."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.system.published import linear_student, linear_teacher, publish

Check = Callable[..., dict[str, Any]]
PATH = "/v1/models/pets:predict"


def test_one_row_is_classified(client, pets):
    answer = client.post(PATH, json={"x": [0.5, 3, 1]}).json()
    assert answer == {"label": "dog", "model": "pets", "version": 1}
    assert client.post("/v1/models/pets@1:predict", json={"x": [-9, -9, -9]}).json()["label"] == "日本"


def test_many_rows_are_classified_with_scores(client, pets):
    body = {"rows": [[2, 0, 1], {"indices": [2], "values": [5]}], "scores": True}
    answer = client.post(PATH, json=body).json()
    assert [result["label"] for result in answer["results"]] == ["cat", "größe/1:x"]
    assert answer["results"][0]["scores"] == {"cat": 2.0, "dog": 0.0, "größe/1:x": 1.0, "日本": -3.0}


def test_a_target_is_decided_with_as_few_classes_as_possible(client, pets):
    answer = client.post(PATH, json={"rows": [[9, 0, 0], [1, 2, 3], [1, 0, 3]], "target": "cat"}).json()
    assert [(r["match"], r["classes_evaluated"]) for r in answer["results"]] == [
        (True, 4),
        (False, 2),
        (False, 3),
    ]
    assert answer["target"] == "cat"
    one = client.post(PATH, json={"x": {"indices": [1], "values": [1]}, "target": "dog"}).json()
    assert (one["match"], one["classes_evaluated"]) == (True, 4)


def test_a_prediction_ends_when_its_client_is_gone(client, pets, problem: Check, monkeypatch):
    async def gone(_request: object) -> bool:
        return True

    monkeypatch.setattr("app.api.predict.Request.is_disconnected", gone)
    problem(client.post(PATH, json={"x": [0.5, 3, 1]}), 400, "client_disconnected")


@pytest.mark.parametrize(
    ("body", "code", "place"),
    [
        ('{"x": [1, 2]}', "wrong_columns", (0, None)),
        ('{"x": [1, NaN, 2]}', "not_finite", (0, 1)),
        ('{"x": [1, 1e200, 2]}', "too_large", (0, 1)),
        ('{"x": {"indices": [3], "values": [1]}}', "wrong_columns", (0, None)),
        ('{"rows": [[1, 2, 3], [1, 2]]}', "wrong_columns", (1, None)),
        ('{"rows": [[1, 2, 3], [1, 2, true]]}', "wrong_type", (1, 2)),
        ('{"x": [1, 2, 3], "scores": "yes"}', "wrong_type", (None, None)),
    ],
)
def test_errors_name_bad_rows(client, pets, problem: Check, body: str, code: str, place: tuple[Any, Any]):
    [fault, *_] = problem(client.post(PATH, content=body), 400, code)["errors"]
    assert (fault["row"], fault["column"]) == place


def test_limits_are_enforced(make_client, pets, problem: Check):
    client = make_client(max_query_rows=3, max_query_bytes=2000)
    problem(client.post(PATH, json={"rows": [[1, 2, 3]] * 4}), 413, "too_many_rows")
    problem(client.post(PATH, json={"x": [1.5] * 1000}), 413, "body_too_large")


def test_too_many_scores_are_refused(client, pets, problem: Check, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("app.serving.query.requests.MAX_SCORES", 7)
    body = {"rows": [[1, 2, 3]] * 2, "scores": True}
    problem(client.post(PATH, json=body), 413, "too_many_scores")


def test_scores_beyond_float64_are_refused_with_their_row(client, store, problem: Check):
    student = linear_student("a", [1.0, 1.0])
    publish(store, "huge", {"a": student, "b": student}, linear_teacher(["a", "b"], [[1e300, 1e300], [0, 0]]))
    path = "/v1/models/huge:predict"
    problem(client.post(path, json={"x": [1e90, 1e90]}), 400, "out_of_range")
    document = problem(client.post(path, json={"rows": [[1, 1], [1e90, 1e90]]}), 400, "out_of_range")
    assert document["errors"][0]["row"] == 1
