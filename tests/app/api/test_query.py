"""Queries of one class over HTTP: correct answers, precise errors, and no SQL when warm."""

from __future__ import annotations

import asyncio
import json
import logging
import math
import threading
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import numpy as np
import pytest
import sqlalchemy as sa

from app.domain.entities import Caller
from app.serving.query import handler
from app.serving.query.handler import QueryHandler
from app.serving.query.paths import ParsedPath, parse_query_path
from app.store.unit_of_work import Store
from tests.app.api.conftest import counted_statements

Check = Callable[..., dict[str, Any]]
CAT = "/v1/models/pets/classes/cat:query"


def test_one_row_gets_a_decision(standing):
    assert standing.post(CAT, json={"x": [0.25, -1, 7]}).json() == {
        "match": True,
        "score": 0.25,
        "threshold": 0.0,
        "model": "pets",
        "version": 1,
    }
    assert standing.post(CAT, json={"x": [-0.25, -1, 7]}).json()["match"] is False
    zeros = {"x": [0, 0, 0]}
    assert standing.post(CAT, json=zeros).json()["match"] is True, "the threshold itself is a yes"
    several = standing.post("/v1/models/pets:query", json=zeros | {"classes": ["cat", "dog"]}).json()
    assert [one["match"] for one in several["classes"]] == [True, True]


def test_many_rows_get_decisions_in_order(standing):
    body = {"rows": [[1, 0, 0], [-2, 0, 0], {"indices": [0, 2], "values": [3, 9]}, [0, 0, 0]]}
    answer = standing.post(CAT, json=body).json()
    assert [(r["match"], r["score"], r["threshold"]) for r in answer["results"]] == [
        (True, 1.0, 0.0),
        (False, -2.0, 0.0),
        (True, 3.0, 0.0),
        (True, 0.0, 0.0),
    ]
    assert (answer["model"], answer["version"]) == ("pets", 1)


def test_a_sparse_row_equals_the_row_with_zeros(standing):
    answer = standing.post(CAT, json={"x": {"indices": [0, 1], "values": [1.5, 4]}}).json()
    assert answer["score"] == 1.5


@pytest.mark.parametrize("encoded", [True, False])
def test_class_names_may_contain_any_character(standing, encoded: bool):
    label = "größe/1:x"
    path = f"/v1/models/pets/classes/{quote(label, safe='') if encoded else label}:query"
    assert standing.post(path, json={"x": [0, 0, 5]}).json()["score"] == 5.0
    path = f"/v1/models/pets%40latest/classes/{quote('日本')}%3Aquery"
    assert standing.post(path, json={"x": [0, 0, 5]}).json()["score"] == -5.0


def test_a_version_can_be_named(client, pets, publish_again):
    publish_again()
    scores = {
        reference: client.post(f"/v1/models/{reference}/classes/cat:query", json={"x": [1, 2, 3]}).json()[
            "score"
        ]
        for reference in ("pets", "pets@latest", "pets@1", "pets@2")
    }
    assert scores == {"pets": -1.0, "pets@latest": -1.0, "pets@1": 1.0, "pets@2": -1.0}


def test_other_methods_than_post_are_refused(standing, problem: Check):
    response = standing.get(CAT)
    problem(response, 405, "method_not_allowed")
    assert response.headers["allow"] == "POST"


@pytest.mark.parametrize(
    ("body", "code", "field", "row", "column"),
    [
        ('{"x": [1, 2]}', "wrong_columns", "x", 0, None),
        ('{"x": []}', "wrong_columns", "x", 0, None),
        ('{"x": [1, NaN, 3]}', "not_finite", "x", 0, 1),
        ('{"x": [1, 2, Infinity]}', "not_finite", "x", 0, 2),
        ('{"x": [-Infinity, 2, 3]}', "not_finite", "x", 0, 0),
        ('{"x": [1, 1e400, 3]}', "too_large", "x", 0, 1),
        ('{"x": [1, 1e300, 3]}', "too_large", "x", 0, 1),
        ('{"x": [1, "2", 3]}', "wrong_type", "x", 0, 1),
        ('{"x": [1, true, 3]}', "wrong_type", "x", 0, 1),
        ('{"x": [1, null, 3]}', "missing_value", "x", 0, 1),
        ('{"x": [[1, 2, 3]]}', "wrong_type", "x", 0, 0),
        ('{"x": [1, {}, 3]}', "wrong_type", "x", 0, 1),
        ('{"x": 3}', "wrong_type", "x", 0, None),
        ('{"x": {"indices": [5], "values": [1]}}', "wrong_columns", "x.indices", 0, None),
        ('{"x": {"indices": [1.5], "values": [1]}}', "wrong_type", "x.indices", 0, 0),
        ('{"x": {"indices": [1], "values": []}}', "wrong_length", "x.values", 0, None),
        ('{"x": {"indices": [1], "values": [1], "more": 1}}', "wrong_type", "x", 0, None),
        ('{"rows": []}', "empty", "rows", None, None),
        ('{"rows": {}}', "wrong_type", "rows", None, None),
        ('{"rows": [[]]}', "wrong_columns", "rows", 0, None),
        ('{"rows": [[1, 2, 3], [1, 2]]}', "wrong_columns", "rows", 1, None),
        ('{"rows": [[1, 2, 3], [1, 2, NaN]]}', "not_finite", "rows", 1, 2),
        ('{"rows": [[1, 2, 3], [1, -1e200, 3]]}', "too_large", "rows", 1, 1),
        ('{"rows": [[1, 2, 3], [1, "a", 3]]}', "wrong_type", "rows", 1, 1),
        ('{"rows": [[1, 2, 3], 4]}', "wrong_type", "rows", 1, None),
        ('{"rows": [{"indices": [9], "values": [1]}]}', "wrong_columns", "rows.indices", 0, None),
        ('{"rows": [{"indices": [1], "values": []}]}', "wrong_length", "rows.values", 0, None),
        ('{"x": [1, 2, 3], "rows": [[1, 2, 3]]}', "wrong_body", "body", None, None),
        ("{}", "wrong_body", "body", None, None),
        ('{"y": [1]}', "wrong_body", "body", None, None),
    ],
)
def test_an_error_names_field_row_and_column_of_bad_input(
    standing, problem: Check, body: str, code: str, field: str, row: int | None, column: int | None
):
    document = problem(standing.post(CAT, content=body), 400, code)
    [fault, *_] = document["errors"]
    assert (fault["code"], fault["field"], fault["row"], fault["column"]) == (code, field, row, column)


def test_up_to_ten_bad_values_are_reported(standing, problem: Check):
    rows = [[1, "a", None]] * 8
    document = problem(standing.post(CAT, json={"rows": rows}), 400, "wrong_type")
    places = [(fault["row"], fault["column"]) for fault in document["errors"]]
    assert places == [(i, j) for i in range(5) for j in (1, 2)]


def test_limits_are_enforced(make_client, pets, problem: Check):
    client = make_client(max_query_rows=3, max_query_bytes=2000)
    problem(client.post(CAT, json={"rows": [[1, 2, 3]] * 4}), 413, "too_many_rows")
    assert client.post(CAT, json={"rows": [[1, 2, 3]] * 3}).status_code == 200
    problem(client.post(CAT, json={"x": [1.5] * 1000}), 413, "body_too_large")

    async def pieces():
        for _ in range(10):
            yield b" " * 500

    problem(client.post(CAT, content=pieces()), 413, "body_too_large")
    headers = {"content-length": "90"}
    problem(client.post(CAT, content=b'{"x": [1, 2, 3]}', headers=headers), 400, "truncated_upload")


def test_a_body_in_pieces_is_concatenated(standing):
    async def pieces():
        for piece in (b'{"x": ', b"[1, 2", b", 3]}"):
            yield piece

    assert standing.post(CAT, content=pieces()).json()["score"] == 1.0


@pytest.mark.parametrize("pieces", [1, 2, 7])
def test_the_answer_does_not_depend_on_the_number_of_messages(standing, pieces: int):
    body = b'{"x": [1.5, 2, 3]}'
    step = -(-len(body) // pieces)
    parts = [body[at : at + step] for at in range(0, len(body), step)]
    messages = [{"type": "http.request", "body": part, "more_body": part is not parts[-1]} for part in parts]

    async def receive() -> dict[str, Any]:
        return messages.pop(0)

    standing.post(CAT, content=body)
    headers = {"content-length": str(len(body)), "x-request-id": "r-1"}
    start, answer = standing.run(standing.exchange("POST", CAT, receive, headers))
    assert start["status"] == 200
    assert dict(start["headers"])[b"x-request-id"] == b"r-1"
    assert int(dict(start["headers"])[b"content-length"]) == len(answer["body"])
    assert json.loads(answer["body"])["score"] == 1.5


def test_queries_beyond_the_limit_in_flight_get_429(make_client, pets, problem: Check):
    client = make_client(max_inflight_queries=1)
    client.context.budgets.queries.take(Caller("another", "key_1"))
    response = client.post(CAT, json={"x": [1, 2, 3]})
    problem(response, 429, "overloaded")
    assert response.headers["retry-after"] == "1"
    client.context.budgets.queries.release(Caller("another", "key_1"))
    assert client.post(CAT, json={"x": [1, 2, 3]}).status_code == 200
    assert client.context.budgets.queries.used == 0


def test_a_warm_query_runs_no_sql(client, pets):
    client.post(CAT, json={"x": [1, 2, 3]})
    # What was published is seen: the refresher has no more to read than the clock.
    client.refresh()
    with counted_statements(client) as statements:
        for _ in range(5):
            assert client.post(CAT, json={"x": [1, 2, 3]}).status_code == 200
        assert client.post(CAT, json={"rows": [[1, 2, 3]] * 50}).status_code == 200
        assert client.post(CAT, json={"x": [1]}).status_code == 400
    assert statements == []


def test_a_large_batch_is_evaluated_in_a_thread(client, pets, monkeypatch: pytest.MonkeyPatch):
    threads: list[str] = []

    def watch(name: str) -> None:
        real = getattr(handler, name)

        def watched(*arguments: Any) -> Any:
            threads.append(threading.current_thread().name)
            return real(*arguments)

        monkeypatch.setattr(handler, name, watched)

    watch("answer_class")
    rows = np.random.default_rng(0).normal(size=(3000, 3)).round(6)
    answer = client.post(CAT, json={"rows": rows.tolist()}).json()
    client.post(CAT, json={"x": [1, 2, 3]})
    assert threads[0].startswith("stms-query")
    assert threads[1] == "MainThread"
    np.testing.assert_array_equal([result["score"] for result in answer["results"]], rows[:, 0])


def test_an_error_names_a_bad_value_far_down_a_large_batch(standing, problem: Check):
    body = json.dumps({"rows": [[1.5, 2.5, 3.5]] * 20_000}).replace("3.5]]}", "NaN]]}")
    [fault] = problem(standing.post(CAT, content=body), 400, "not_finite")["errors"]
    assert (fault["row"], fault["column"]) == (19_999, 2)
    body = body.replace("NaN]]}", "1e150]]}")
    [fault] = problem(standing.post(CAT, content=body), 400, "too_large")["errors"]
    assert (fault["row"], fault["column"]) == (19_999, 2)
    assert "row 19999" in fault["message"]


def test_concurrent_requests_are_all_answered(standing):
    async def ask() -> list[int]:
        client_ = standing._http
        requests = [client_.post(CAT, json={"x": [i, 2, 3]}) for i in range(100)]
        return [round(r.json()["score"]) for r in await asyncio.gather(*requests)]

    assert standing.run(ask()) == list(range(100))


def test_an_unexpected_error_is_a_500_without_details(
    client, pets, problem: Check, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    def fail(*_arguments: Any) -> None:
        raise RuntimeError("swordfish")

    monkeypatch.setattr(handler, "answer_class", fail)
    with caplog.at_level(logging.ERROR):
        response = client.post(CAT, json={"x": [1, 2, 3]}, headers={"x-request-id": "r-77"})
    assert "swordfish" not in problem(response, 500, "internal_error")["detail"]
    assert "r-77" in caplog.text
    assert "swordfish" in caplog.text


def test_a_damaged_student_gets_503_and_others_are_served(client, pets, store: Store, problem: Check):
    with store.engine.begin() as connection:
        digest = "(SELECT digest FROM job_students WHERE label = 'cat')"
        harm = sa.text(f"UPDATE blob_chunks SET data = :data WHERE digest = {digest}")
        connection.execute(harm, {"data": b"\0"})
    problem(client.post(CAT, json={"x": [1, 2, 3]}), 503, "blob_damaged")
    assert client.post("/v1/models/pets/classes/dog:query", json={"x": [1, 2, 3]}).status_code == 200


def test_answers_never_contain_nan(standing):
    for value in ("1e100", "-1e100", "1e-320", "0.1e-400"):
        answer = standing.post(CAT, content=f'{{"x": [{value}, {value}, {value}]}}')
        assert answer.status_code in {200, 400}
        if answer.status_code == 200:
            assert math.isfinite(answer.json()["score"])


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        (b"/v1/models/a/classes/b:query", ParsedPath("a", "a", "b")),
        (b"/v1/models/a@3/classes/x/classes/y:query", ParsedPath("a@3", "a", "x/classes/y")),
        (b"/v1/models/a/classes/b:query:query", ParsedPath("a", "a", "b:query")),
        (b"/v1/models/a/classes/100%25:query", ParsedPath("a", "a", "100%")),
        (b"/v1/models/a%40new:query", ParsedPath("a@new", "a", None)),
        (b"/v1/models/a%3Aquery", ParsedPath("a", "a", None)),
    ],
)
def test_paths_are_parsed(path: bytes, expected: ParsedPath):
    assert parse_query_path(path) == expected


def test_only_query_paths_bypass_the_framework():
    assert QueryHandler.matches({"type": "http", "raw_path": b"/v1/models/a/classes/b%3aquery"})
    assert not QueryHandler.matches({"type": "http", "raw_path": b"/v1/models/a:predict"})
    assert not QueryHandler.matches({"type": "http", "raw_path": b"/other/a:query"})
    assert not QueryHandler.matches({"type": "lifespan"})


@pytest.mark.parametrize("field", ["instances", "dataframe_split", "data"])
def test_the_body_of_another_server_is_told_the_right_one(standing, problem: Check, field: str):
    document = problem(standing.post(CAT, json={field: [[1, 2, 3]]}), 400, "wrong_body")
    assert field in document["detail"]
    assert 'For example: {"x": [0.0, 0.0, 0.0]}' in document["detail"]


def test_an_unknown_class_is_told_how_many_there_are_and_which_is_near(standing, problem: Check):
    for label, near in (("Cat", "'cat'"), ("dogg", "'dog'"), ("xyzzy", None)):
        path = f"/v1/models/pets/classes/{label}:query"
        detail = problem(standing.post(path, json={"x": [1, 2, 3]}), 404, "class_not_found")["detail"]
        assert "it has 4 classes" in detail
        assert ("meant" in detail) == (near is not None)
        assert near is None or near in detail
