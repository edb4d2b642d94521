"""Queries by the names of columns, with an index base, and outside the range of the training rows."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from app.store.unit_of_work import Store
from tests.system.published import linear_student, linear_teacher, publish

Check = Callable[..., dict[str, Any]]

NAMES = ["length", "width", "height"]
WEIGHTS = np.array([[1.0, 10.0, 100.0], [0.0, 1.0, 0.0]])
BOX = "/v1/models/boxes/classes/box:query"
BOTH = "/v1/models/boxes:query"
PREDICT = "/v1/models/boxes:predict"
NAMED = {"columns": NAMES, "label_column": "kind", "ranges": [[0.0, 10.0], [-1.0, 1.0], [0.1, 0.3]]}


@pytest.fixture
def boxes(client: Any, store: Store) -> Callable[..., Any]:
    """Publishes versions of "boxes": score of "box" is length + 10 width + 100 height."""

    def make(**inputs: Any) -> Any:
        students = {
            name: linear_student(name, row) for name, row in zip(["box", "bag"], WEIGHTS, strict=True)
        }
        publish(store, "boxes", students, linear_teacher(list(students), WEIGHTS), inputs=inputs or None)
        return client

    return make


ROW = {"height": 3, "length": 1.0, "width": 2}
FORMS = [
    {"x": ROW},
    {"columns": ["height", "length", "width"], "x": [3, 1, 2]},
    {"x": ROW | {"kind": "box"}},
    {"x": ROW | {"kind": 7}},
    {"columns": ["kind", "height", "length", "width"], "x": [9, 3, 1, 2]},
]


@pytest.mark.parametrize("body", FORMS)
@pytest.mark.parametrize("explain", [False, True])
def test_one_row_is_put_into_the_order_of_the_model(boxes, body: dict[str, Any], explain: bool):
    client, more = boxes(**NAMED), {"explain": True} if explain else {}
    plain = client.post(BOX, json={"x": [1, 2, 3]} | more)
    assert plain.json()["score"] == 321.0
    assert client.post(BOX, json=body | more).content == plain.content
    of_both = client.post(BOTH, json={"classes": ["box", "bag"], "x": [1, 2, 3]} | more)
    assert client.post(BOTH, json={"classes": ["box", "bag"], **body, **more}).content == of_both.content


def test_rows_are_put_into_the_order_of_the_model(boxes):
    client = boxes(**NAMED)
    rows = [[1, 2, 3], [4, 5, 6], [0, 0, 7]]
    plain = client.post(BOX, json={"rows": rows}).json()
    assert [result["score"] for result in plain["results"]] == [321.0, 654.0, 700.0]
    named = [dict(zip(NAMES, row, strict=True)) for row in rows]
    named[0] = dict(reversed(named[0].items()))
    named[1]["kind"] = "bag"
    assert client.post(BOX, json={"rows": named}).json() == plain
    mixed = [named[0], rows[1], {"indices": [2], "values": [7]}]
    assert client.post(BOX, json={"rows": mixed}).json() == plain
    turned = {"columns": ["width", "height", "length"], "rows": [[b, c, a] for a, b, c in rows]}
    assert client.post(BOX, json=turned).json() == plain
    scores = client.post(BOX, json=turned, headers={"accept": "application/octet-stream"})
    assert np.frombuffer(scores.content, "<f8").tolist() == [321.0, 654.0, 700.0]


@pytest.mark.parametrize(
    "body",
    [
        {"x": ROW},
        {"columns": ["height", "length", "width"], "x": [3, 1, 2]},
        {"columns": ["height", "length", "width"], "rows": [[3, 1, 2]]},
        {"rows": [ROW]},
    ],
)
def test_the_teacher_takes_names_too(boxes, body: dict[str, Any]):
    client = boxes(**NAMED)
    answer = client.post(PREDICT, json=body | {"scores": True}).json()
    scores = answer["results"][0]["scores"] if "rows" in body else answer["scores"]
    assert scores == {"box": 321.0, "bag": 2.0}


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"lenght": 1, "width": 2, "height": 3}, "did you mean 'length'?"),
        ({"Width": 2, "length": 1, "height": 3}, "did you mean 'width'?"),
        (ROW | {"depth": 1}, "its columns are 'length', 'width', 'height'."),
    ],
)
def test_a_name_that_may_be_meant_is_suggested(boxes, problem: Check, row: dict[str, int], words: str):
    assert words in problem(boxes(**NAMED).post(BOX, json={"x": row}), 400, "unknown_column")["detail"]


def test_all_columns_at_fault_are_named(boxes, problem: Check):
    document = problem(boxes(**NAMED).post(BOX, json={"rows": [ROW, {}]}), 400, "missing_value")
    faults = [(fault["name"], fault["row"], fault["column"]) for fault in document["errors"]]
    assert faults == [(name, 1, place) for place, name in enumerate(NAMES)]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ('{"x": {"length": 1, "width": 2, "width": 2, "height": 3}}', "x has the key 'width' twice"),
        ('{"rows": [{"length": 1, "wid\\u0074h": 2, "width": 3, "height": 3}]}', "row 0.*'width' twice"),
        ('{"record": {"length": 1, "width": 2, "width": 2, "height": 3}}', "the key 'width' twice"),
        ('{"x": [1, 2, 3], "x": [3, 4, 5]}', "The body has the field 'x' twice"),
        ('{"x": [1, 2, 3], "\\u0078": [3, 4, 5]}', "The body has the field 'x' twice"),
        ('{"rows": [[1, 2, 3]], "rows": [[3, 4, 5]]}', "the field 'rows' twice"),
        ('{"rows": [[1, 2, 3]], "rows": null, "x": [3, 4, 5]}', "the field 'rows' twice"),
        ('{"x": {"indices": [0], "values": [1], "values": [2]}}', "x has the key 'values' twice"),
        ('{"rows": [[1, 2, 3], {"indices": [0], "indices": [1], "values": [2]}]}', "row 1.*'indices' twice"),
        (
            '{"columns": ["length"], "columns": ["length", "width", "height"], "x": [1, 2, 3]}',
            "'columns' twice",
        ),
    ],
)
@pytest.mark.parametrize("target", [BOX, f"{BOTH}?class=box", PREDICT])
def test_a_key_twice_in_a_body_is_refused(boxes, problem: Check, body: str, words: str, target: str):
    document = problem(boxes(**NAMED).post(target, content=body), 400, "duplicate_key")
    assert re.search(words, document["detail"])
    assert "duplicate_key" in {fault["code"] for fault in document["errors"]}


@pytest.mark.parametrize(
    ("target", "body"),
    [
        (BOX, '{"x": [1, 2, 3], "explain": false, "explain": true}'),
        (BOTH, '{"x": [1, 2, 3], "classes": ["box"], "classes": ["bag"]}'),
        (PREDICT, '{"x": [1, 2, 3], "target": "box", "target": "bag"}'),
    ],
)
def test_a_field_of_an_endpoint_twice_is_refused(boxes, problem: Check, target: str, body: str):
    problem(boxes(**NAMED).post(target, content=body), 400, "duplicate_key")


TENSOR = '"name": "x", "shape": [1, 3], "datatype": "FP64", "data": [1, 2, 3]'


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ('{"inputs": [{TENSOR}], "inputs": [{TENSOR}]}', "The body has the field 'inputs' twice"),
        ('{"inputs": [{TENSOR, "data": [3, 4, 5]}]}', r"inputs\[0\] has the key 'data' twice"),
        ('{"inputs": [{TENSOR, "shape": [3]}]}', r"inputs\[0\] has the key 'shape' twice"),
        ('{"inputs": [{TENSOR}], "id": "a", "id": "b"}', "the field 'id' twice"),
        ('{"inputs": [{TENSOR}], "parameters": {"a": 1, "a": 2}}', "parameters has the key 'a' twice"),
        ('{"inputs": [{TENSOR}], "outputs": [{"name": "score", "name": "match"}]}', r"outputs\[0\]"),
    ],
)
def test_a_key_twice_in_an_inference_is_refused(boxes, body: str, words: str):
    client = boxes(**NAMED)
    plain = client.post(
        "/v2/models/boxes:box/infer", content='{"inputs": [{TENSOR}]}'.replace("TENSOR", TENSOR)
    )
    assert plain.status_code == 200
    answer = client.post("/v2/models/boxes:box/infer", content=body.replace("TENSOR", TENSOR))
    assert answer.status_code == 400
    assert re.search(words, answer.text), answer.text


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ('{"columns": ["length", "width", "width", "height"], "x": [1, 2, 2, 3]}', "duplicate_key"),
        ('{"columns": ["length", "width", "width"], "rows": [[1, 2, 2]]}', "duplicate_key"),
        ('{"columns": ["length", "width"], "rows": [[1, 2]]}', "missing_value"),
        ('{"columns": ["length", "width", "height", "depth"], "rows": [[1, 2, 3, 4]]}', "unknown_column"),
    ],
)
def test_names_of_the_numbers_in_lists_must_fit(boxes, problem: Check, body: str, code: str):
    problem(boxes(**NAMED).post(BOX, content=body), 400, code)


@pytest.mark.parametrize(
    ("body", "code", "words"),
    [
        ('{"x": {"length": 1, "width": 1' + "0" * 400 + ', "height": 3}}', "too_large", "'width'"),
        ('{"columns": ["length", "width", "height"], "x": [1, 2]}', "wrong_columns", "3 are needed"),
        ('{"columns": ["length", "width", "height"], "rows": [[1, 2]]}', "wrong_columns", "3 are needed"),
        ('{"columns": ["length", "width", "height"], "x": {"length": 1}}', "wrong_body", ""),
        ('{"columns": ["length", "width", "height"], "rows": [{"length": 1}]}', "wrong_body", "row 0"),
        (
            '{"columns": ["length", "width", "height"], "x": {"indices": [0], "values": [1]}}',
            "wrong_body",
            "",
        ),
        ('{"columns": "length", "x": [1, 2, 3]}', "wrong_type", "columns"),
        ('{"columns": ["length", "width", "height"]}', "wrong_body", '"rows"'),
    ],
)
def test_values_with_names_are_checked_as_those_without(boxes, problem: Check, body, code: str, words: str):
    assert words in problem(boxes(**NAMED).post(BOX, content=body), 400, code)["detail"]


@pytest.mark.parametrize("inputs", [{"columns": ["a", "a", "b"]}, {"columns": None}])
def test_a_version_without_usable_names_refuses_them(boxes, problem: Check, inputs):
    body = {"columns": NAMES, "rows": [[1, 2, 3]]}
    document = problem(boxes(**inputs).post(BOX, json=body), 400, "no_column_names")
    assert "list of its 3 numbers" in document["detail"]


def test_columns_that_are_called_as_the_parts_of_a_sparse_row(boxes, store: Store):
    client = boxes(columns=["indices", "values", "z"])
    assert client.post(BOX, json={"x": {"values": 2, "indices": 1, "z": 3}}).json()["score"] == 321.0


def test_a_huge_row_of_names_is_refused_undecoded(boxes, problem: Check):
    body = '{"x": {' + ",".join(f'"{i}":1' for i in range(30_000)) + "}}"
    problem(boxes(**NAMED).post(BOX, content=body), 413, "too_many_parts")


SPARSE = {"indices": [1, 3], "values": [1, 3]}


@pytest.mark.parametrize("form", ["x", "rows", "explained", "classes", "predict"])
@pytest.mark.parametrize(
    ("of_file", "stated", "score"),
    [
        (1, 1, 301.0),
        (0, 0, None),
        (1, 0, None),
        (None, 1, 301.0),
        (1, None, "index_base_missing"),
        (0, 1, "wrong_index_base"),
    ],
)
def test_the_first_index_of_sparse_rows_is_never_guessed(
    boxes, problem: Check, of_file, stated, score, form: str
):
    client = boxes(index_base=of_file)
    row = SPARSE if stated is None else SPARSE | {"index_base": stated}
    body = {
        "x": {"x": row},
        "rows": {"rows": [row]},
        "explained": {"x": row, "explain": True},
        "classes": {"x": row, "classes": ["box"]},
        "predict": {"x": row, "scores": True},
    }[form]
    response = client.post({"classes": BOTH, "predict": PREDICT}.get(form, BOX), json=body)
    if isinstance(score, float):
        assert f'"score":{score}' in response.text or f'"box":{score}' in response.text
    else:
        status, code = (400, "wrong_columns") if score is None else (422, score)
        problem(response, status, code)


def test_sparse_rows_count_from_0_where_nothing_else_is_known(boxes):
    client = boxes()
    row = {"indices": [0, 2], "values": [1, 3]}
    for more in ({}, {"index_base": 0}):
        assert client.post(BOX, json={"x": row | more}).json()["score"] == 301.0


@pytest.mark.parametrize("form", [b'{"x": %s}', b'{"rows": [%s]}'])
def test_names_that_are_not_utf_8_are_refused(boxes, problem: Check, form: bytes):
    client = boxes(**NAMED)
    for path in (BOX, PREDICT):
        for row in (b'{"b\xce": 1}', b'{"a": 2, "k\xff": 2}', b'{"a": "\xff"}'):
            problem(client.post(path, content=form % row), 400, "malformed_json")


def test_an_index_that_no_column_has_is_told_as_it_was_sent(boxes):
    row = {"indices": [0, 2], "values": [1, 3], "index_base": 1}
    for path, body in ((BOX, {"x": row}), (BOX, {"rows": [row]}), (PREDICT, {"x": row})):
        response = boxes().post(path, json=body)
        assert "column index 0 is outside 1 to 3" in response.json()["detail"]


def test_an_explained_row_tells_what_is_outside_the_range(boxes):
    client = boxes(**NAMED)
    told = client.post(BOX, json={"x": [11, 0, 0.2], "explain": True}).json()
    assert (told["outside"], told["outside_count"]) == (["length"], 1)
    told = client.post(BOX, json={"x": [10, -1, 0.3], "explain": True}).json()
    assert (told["outside"], told["outside_count"]) == ([], 0)
    assert "outside" not in client.post(BOX, json={"x": [11, 0, 0.2]}).json()
    rows = {"rows": [[-1, 2, 0], [5, 0, 0.2]], "explain": True}
    told = client.post(BOX, json=rows).json()
    assert [(one["outside"], one["outside_count"]) for one in told["results"]] == [(NAMES, 3), ([], 0)]
    told = client.post(BOTH, json=rows | {"classes": ["box", "bag"]}).json()
    assert told["rows"] == [
        {"outside": NAMES, "outside_count": 3},
        {"outside": [], "outside_count": 0},
    ]
    told = client.post(BOTH, json={"x": [11, 0, 0.2], "classes": ["bag"], "explain": True}).json()
    assert (told["outside"], told["outside_count"]) == (["length"], 1)


def test_explained_rows_outside_the_range_are_counted(boxes):
    client = boxes(**NAMED)
    rows = {"rows": [[-1, 2, 0], [5, 0, 0.2], [11, 0, 0.2]]}
    client.post(BOX, json=rows)
    client.post(BOX, json={"x": [11, 0, 0.2], "explain": True})
    client.post(BOTH, json=rows | {"classes": ["box", "bag"], "explain": True})
    assert "stms_explained_rows_outside_total 3.0" in client.get("/metrics").text


def test_rounding_to_float32_is_not_outside(boxes):
    client = boxes(**NAMED)
    ends = np.array([[10.0, 1.0, 0.3], [0.0, -1.0, 0.1]], dtype=np.float32)
    told = client.post(BOX, json={"rows": ends.astype(float).tolist(), "explain": True}).json()
    assert [one["outside"] for one in told["results"]] == [[], []]


@pytest.mark.parametrize(
    ("inputs", "names"), [({}, [0, 2]), ({"index_base": 1}, [1, 3]), ({"index_base": 0}, [0, 2])]
)
def test_columns_without_names_are_told_by_number_as_in_their_file(boxes, inputs, names):
    client = boxes(ranges=NAMED["ranges"], **inputs)
    told = client.post(BOX, json={"x": [-5, 0, 9], "explain": True}).json()
    assert told["outside"] == names


def test_without_ranges_nothing_is_outside(boxes):
    told = boxes(columns=NAMES).post(BOX, json={"x": [1e6, 0, 0], "explain": True}).json()
    assert "outside" not in told


def test_ten_columns_are_named_and_all_counted(client, store: Store):
    wide = {"a": linear_student("a", np.ones(40))}
    inputs = {"columns": [f"c{i}" for i in range(40)], "ranges": [[0, 1]] * 40}
    publish(store, "wide", wide, linear_teacher(["a"], np.ones((1, 40))), inputs=inputs)
    body = {"x": [0.5] * 5 + [2] * 35, "explain": True}
    told = client.post("/v1/models/wide/classes/a:query", json=body).json()
    assert told["outside"] == [f"c{i}" for i in range(5, 15)]
    assert told["outside_count"] == 35


@pytest.mark.parametrize(
    ("field", "words"),
    [
        ("instances", '"rows" here'),
        ("dataframe_split", '"columns" and "rows" here'),
        ("dataframe_records", '"records" here'),
        ("data", '"rows" here'),
        ("inputs", "/v2/models"),
        ("row", "is 'rows' meant?"),
        ("Explain", "is 'explain' meant?"),
        ("zzz", "only x, rows, record, records, columns"),
    ],
)
@pytest.mark.parametrize("path", [BOX, BOTH, PREDICT])
def test_an_unknown_field_says_which_are_wanted(boxes, problem: Check, field: str, words: str, path: str):
    if path == PREDICT and field == "Explain":
        field, words = "Scores", "is 'scores' meant?"
    body = json.dumps({field: [[1, 2, 3]]})
    document = problem(boxes(**NAMED).post(path, content=body), 400, "wrong_body")
    assert words in document["detail"]


def test_a_key_that_is_no_text_is_an_error_of_the_body(boxes):
    body = b'{"inputs": [{%s}], "id": null, "o\xff": 1}' % TENSOR.encode()
    answer = boxes(**NAMED).post("/v2/models/boxes:box/infer", content=body)
    assert answer.status_code == 400
    assert "it is not UTF-8" in answer.text
