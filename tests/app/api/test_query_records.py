"""Records over HTTP: both paths of a query, several classes, the teacher, the other protocol, the schema."""

from __future__ import annotations

import gzip
import json
import threading
from typing import Any

import numpy as np
import pytest

from app.services.keys import create_key
from app.serving.columns import schema as record_schema
from app.store.tables import model_versions
from app.store.unit_of_work import Store
from core.packed import PackedStudent, PackedTeacher
from core.packed.encoder import Encoder
from tests.app.api.fast_path import fast_answer
from tests.app.serving.written_records import RECORD, columns_of, encoder, numbers_encoder, text_encoder
from tests.system.published import linear_student, linear_teacher, publish

ONE = "/v1/models/people/classes/a:query"
BOTH = "/v1/models/people:query"
PREDICT = "/v1/models/people:predict"
INFER = "/v2/models/people{}/infer"
LETTERS = ("a", "b")


def weights(known: Encoder) -> Any:
    return np.random.default_rng(5).normal(size=(2, known.layout.columns))


def publish_people(store: Store, known: Encoder, model: str = "people") -> None:
    rows = weights(known)
    students: dict[str, PackedStudent] = {
        label: linear_student(label, row) for label, row in zip(LETTERS, rows, strict=True)
    }
    teacher: PackedTeacher = linear_teacher(LETTERS, rows)
    publish(store, model, students, teacher, encoder=known)


@pytest.fixture
def people(client: Any, store: Store) -> Any:
    """A server with version 1 of "people", which has an encoder."""
    publish_people(store, encoder())
    return client


def test_the_fast_path_answers_records_as_the_other_one_does(make_client, store):
    publish_people(store, encoder())
    key = create_key(store, "tests", {"query"}, {"people"})[1]
    client = make_client(require_keys=True)
    bodies = [
        {"record": RECORD},
        {"record": RECORD, "explain": True},
        {"records": [RECORD, RECORD | {"age": None}]},
        {"columns": columns_of(RECORD, RECORD)},
    ]
    for body in bodies:
        data = json.dumps(body).encode()
        named = {"authorization": f"Bearer {key}", "content-length": str(len(data)), "x-request-id": "mine"}
        expected = client.post(ONE, content=data, headers=named)
        assert expected.status_code == 200
        response = fast_answer(client, ONE, named, data)
        assert response is not None
        assert response[1] == expected.content
    wrong = json.dumps({"record": RECORD | {"age": "x"}}).encode()
    headers = {"authorization": f"Bearer {key}", "content-length": str(len(wrong))}
    assert fast_answer(client, ONE, headers, wrong) is None


def test_a_fault_of_a_record_has_the_name_of_its_column(people, problem):
    response = people.post(ONE, json={"records": [RECORD, RECORD | {"age": "x", "job": []}]})
    document = problem(response, 400, "wrong_type")
    [age, job] = document["errors"]
    assert (age["name"], age["row"], age["column"], age["field"]) == ("age", 1, 0, "records.age")
    assert (job["name"], job["code"]) == ("job", "wrong_type")
    other = problem(people.post(ONE, json={"x": [1]}), 400, "needs_record")
    assert "name" not in other["errors"][0]


@pytest.mark.parametrize("named", [{}, {"params": {"class": ["a", "b"]}}])
def test_several_classes_are_asked_about_records(people, named: dict[str, Any]):
    more = {} if named else {"classes": ["a", "b"]}
    alone = [
        people.post(ONE.replace("/a:", f"/{label}:"), json={"record": RECORD, "explain": True}).json()
        for label in LETTERS
    ]
    answer = people.post(BOTH, json={"record": RECORD, "explain": True, **more}, **named).json()
    assert [one["score"] for one in answer["classes"]] == [one["score"] for one in alone]
    assert [one["gate"] for one in answer["classes"]] == [one["gate"] for one in alone]
    assert answer["unseen"] == []
    rows = people.post(BOTH, json={"records": [RECORD, RECORD], "explain": True, **more}, **named).json()
    assert [one["results"][1]["score"] for one in rows["classes"]] == [one["score"] for one in alone]
    assert [row["unseen"] for row in rows["rows"]] == [[], []]
    plain = people.post(BOTH, json={"columns": columns_of(RECORD, RECORD), **more}, **named).json()
    assert [one["results"][1]["score"] for one in plain["classes"]] == [one["score"] for one in alone]


def test_bodies_may_be_compressed_and_answers_may_be_tensors(people):
    expected = people.post(ONE, json={"record": RECORD}).json()["score"]
    data = gzip.compress(json.dumps({"records": [RECORD, RECORD]}).encode())
    headers = {
        "content-encoding": "gzip",
        "content-type": "application/json",
        "accept": "application/octet-stream",
    }
    response = people.post(ONE, content=data, headers=headers)
    assert response.headers["x-tensor-shape"] == "2"
    assert np.frombuffer(response.content).tolist() == [expected] * 2


def test_a_teacher_classifies_records(people):
    scores = [
        people.post(ONE.replace("/a:", f"/{label}:"), json={"record": RECORD}).json()["score"]
        for label in LETTERS
    ]
    answer = people.post(PREDICT, json={"record": RECORD, "scores": True}).json()
    assert answer["label"] == LETTERS[int(np.argmax(scores))]
    assert list(answer["scores"].values()) == pytest.approx(scores)
    many = people.post(
        PREDICT, json={"columns": columns_of(RECORD, RECORD), "target": answer["label"]}
    ).json()
    assert [one["match"] for one in many["results"]] == [True, True]
    assert people.post(PREDICT, json={"record": RECORD | {"hours": None}}).json()["code"] == "missing_value"
    assert people.post(PREDICT, json={"rows": [[1]]}).json()["code"] == "needs_record"


def inference(**more: Any) -> dict[str, Any]:
    kinds = {bool: "BOOL", int: "INT64", float: "FP32", str: "BYTES", list: "FP64"}
    inputs = [
        {
            "name": name,
            "datatype": kinds[type(value)],
            "shape": [2, len(value)] if isinstance(value, list) else [2, 1],
            "data": [value, value],
            "parameters": {"content_type": {str: "str", int: "np"}.get(type(value), "pd")},
        }
        for name, value in RECORD.items()
    ]
    return {"inputs": inputs, "parameters": {"content_type": "pd"}} | more


def test_the_inference_protocol_takes_columns(people):
    scores = [
        people.post(ONE.replace("/a:", f"/{label}:"), json={"record": RECORD}).json()["score"]
        for label in LETTERS
    ]

    def found(response: Any) -> list[float]:
        assert response.status_code == 200, response.text
        return next(one["data"] for one in response.json()["outputs"] if one["name"] == "score")

    assert found(people.post(INFER.format(":a"), json=inference())) == [scores[0]] * 2
    by_parameter = inference(parameters={"class": "b"})
    assert found(people.post(INFER.format(""), json=by_parameter)) == [scores[1]] * 2
    target = {"name": "class", "datatype": "BYTES", "shape": [2], "data": ["b", "a"]}
    each = inference(parameters={}) | {"inputs": [*inference()["inputs"], target]}
    assert found(people.post(INFER.format(""), json=each)) == scores[::-1]
    explained = inference(outputs=[{"name": "score"}, {"name": "gate"}])
    assert found(people.post(INFER.format(":a"), json=explained)) == [scores[0]] * 2


def test_binary_inputs_of_the_inference_protocol(people):
    pieces, inputs = [], []
    for one in inference()["inputs"]:
        if one["datatype"] == "BYTES":
            raw = b"".join(len(text).to_bytes(4, "little") + text.encode() for text in one["data"])
        else:
            dtype = {"BOOL": "?", "INT64": "<i8", "FP32": "<f4", "FP64": "<f8"}[one["datatype"]]
            raw = np.array(one["data"], dtype).tobytes()
        pieces.append(raw)
        inputs.append(
            {key: one[key] for key in ("name", "datatype", "shape")}
            | {"parameters": {"binary_data_size": len(raw)}}
        )
    head = json.dumps({"inputs": inputs}).encode()
    response = people.post(
        INFER.format(":a"),
        content=head + b"".join(pieces),
        headers={"inference-header-content-length": str(len(head))},
    )
    expected = people.post(ONE, json={"record": RECORD}).json()["score"]
    assert next(one["data"] for one in response.json()["outputs"] if one["name"] == "score") == [expected] * 2


WRONG_INPUTS = {
    "an unknown column": ({"name": "agee"}, "has no column 'agee'; did you mean 'age'?"),
    "texts for numbers": ({"datatype": "BYTES", "data": ["a", "b"]}, "'age' must be a number, not a text"),
    "another shape": ({"shape": [1, 2]}, "a column of the shape [rows] or [rows, 1]"),
    "too few": ({"data": [1.0]}, "has 1 numbers; its shape needs 2"),
    "too few with null": ({"data": [None]}, "has 1 numbers; its shape needs 2"),
    "too many with null": ({"data": [None] * 3}, "more than 2 numbers"),
    "no numbers": ({"data": [None, "x"]}, "must be a list of numbers"),
    "too large": ({"datatype": "FP64", "data": [1e101, 0]}, "beyond ±1e+100"),
}


@pytest.mark.parametrize(("change", "text"), WRONG_INPUTS.values(), ids=WRONG_INPUTS)
def test_inputs_that_are_no_columns_are_refused(people, change: dict[str, Any], text: str):
    document = inference()
    [age] = [one for one in document["inputs"] if one["name"] == "age"]
    age |= change
    for path, more in ((":a", {}), ("", {"parameters": {"class": "a"}})):
        response = people.post(INFER.format(path), json=document | more)
        assert response.status_code == 400
        assert text in response.json()["error"]


def test_null_nan_empty_texts_and_absent_inputs_are_gaps(people):
    gap = people.post(ONE, json={"record": RECORD | {"age": None, "job": None}}).json()["score"]
    null, empty, absent = inference(), inference(), inference()
    for document, job in ((null, [None, None]), (empty, ["", ""])):
        for one in document["inputs"]:
            if one["name"] == "age":
                one |= {"data": [None, None], "datatype": "FP64"}
            if one["name"] == "job":
                one |= {"data": job, "shape": [2]}
    absent["inputs"] = [one for one in absent["inputs"] if one["name"] not in ("age", "job")]
    for document in (null, empty, absent):
        outputs = people.post(INFER.format(":a"), json=document).json()["outputs"]
        assert next(one["data"] for one in outputs if one["name"] == "score") == [gap] * 2
    missing = inference()
    missing["inputs"] = [one for one in missing["inputs"] if one["name"] != "hours"]
    error = people.post(INFER.format(":a"), json=missing).json()["error"]
    assert "'hours' has no value, and had one in every training row" in error


def test_the_metadata_of_the_protocol_list_the_columns(people):
    document = people.get("/v2/models/people:a").json()
    assert [(one["name"], one["datatype"], one["shape"]) for one in document["inputs"]] == [
        ("age", "FP64", [-1]),
        ("hours", "FP64", [-1]),
        ("member", "BOOL", [-1]),
        ("job", "BYTES", [-1]),
        ("grade", "BYTES", [-1]),
        ("since", "BYTES", [-1]),
        ("place", "FP64", [-1, 2]),
    ]
    optional = [one["name"] for one in document["inputs"] if one.get("parameters", {}).get("optional")]
    assert optional == ["age", "job"]
    config = people.get("/v2/models/people:a/config").json()
    assert config["input"][3]["data_type"] == "TYPE_STRING"
    assert people.get("/v2/models/people").json()["inputs"][-1]["name"] == "class"


def test_the_schema_of_a_record(people, store):
    schema = people.get("/v1/models/people/versions/1/schema").json()
    assert people.get("/v1/models/people/versions/latest/schema").json() == schema
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert schema["required"] == ["hours", "member", "grade", "since", "place"]
    assert schema["additionalProperties"] is False
    properties = schema["properties"]
    assert list(properties) == list(encoder().names)
    assert properties["age"]["type"] == ["number", "null"]
    assert properties["age"]["description"].startswith("In training from ")
    assert properties["member"] == {"type": "boolean"}
    assert properties["job"]["type"] == ["string", "number", "boolean", "null"]
    assert {"clerk", "cook", "nurse"} <= set(properties["job"]["examples"])
    assert "enum" not in properties["job"]
    assert properties["since"]["type"] == "string"
    assert (properties["place"]["minItems"], properties["place"]["maxItems"]) == (2, 2)
    assert "'kind', 'id'" in schema["description"]
    publish_people(store, text_encoder(), "notes")
    assert people.get("/v1/models/notes/versions/1/schema").json()["properties"]["text"]["type"] == "string"
    assert people.get("/v1/models/people/versions/9/schema").status_code == 404


def test_a_schema_is_encoded_once_beside_the_event_loop_and_has_a_tag(people, monkeypatch):
    made = []

    def remembering(inputs: Any) -> Any:
        made.append(threading.get_ident())
        return original(inputs)

    original = record_schema.record_schema
    monkeypatch.setattr(record_schema, "record_schema", remembering)
    path = "/v1/models/people/versions/1/schema"
    first = people.get(path)
    again = people.get(path.replace("/1/", "/latest/"))
    known = people.get(path, headers={"if-none-match": first.headers["etag"]})
    assert (first.status_code, again.status_code, known.status_code) == (200, 200, 304)
    assert first.headers["content-type"] == "application/json"
    assert first.headers["etag"] == again.headers["etag"] == known.headers["etag"]
    assert (first.content, known.content) == (again.content, b"")
    assert len(made) == 1
    assert threading.get_ident() not in made, "the event loop of this test"


def test_versions_without_encoder_have_a_schema_if_their_columns_have_names(client, store, pets):
    rows = np.eye(2)
    students = {label: linear_student(label, row) for label, row in zip(LETTERS, rows, strict=True)}
    named = {"columns": ["p", "q"], "label_column": "kind", "ranges": [[0.0, 1.0], [-1.0, 1.0]]}
    publish(store, "named", students, linear_teacher(LETTERS, rows), inputs=named)
    schema = client.get("/v1/models/named/versions/1/schema").json()
    assert schema["required"] == ["p", "q"]
    assert schema["properties"]["q"]["description"] == "In training from -1 to 1."
    response = client.get("/v1/models/pets/versions/1/schema")
    assert (response.status_code, response.json()["code"]) == (404, "no_column_names")


def test_versions_without_encoder_take_records_of_numbers(client, store):
    rows = np.array([[1.0, 10.0], [0.0, 1.0]])
    students = {label: linear_student(label, row) for label, row in zip(LETTERS, rows, strict=True)}
    publish(store, "named", students, linear_teacher(LETTERS, rows), inputs={"columns": ["p", "q"]})
    path, both = "/v1/models/named/classes/a:query", "/v1/models/named:query"
    one, two = {"q": 2, "p": 1.0}, {"p": 0.5, "q": 0}
    for more in ({}, {"explain": True}):
        assert client.post(path, json={"record": one} | more).content == (
            client.post(path, json={"x": one} | more).content
        )
        assert client.post(path, json={"records": [one, two]} | more).content == (
            client.post(path, json={"rows": [one, two]} | more).content
        )
    assert client.post(both, json={"classes": ["a", "b"], "record": one}).content == (
        client.post(both, json={"classes": ["a", "b"], "x": one}).content
    )


def test_models_of_numbers_take_tables_and_columns(client, store):
    publish_people(store, numbers_encoder(), "numbers")
    path = "/v1/models/numbers/classes/a:query"
    expected = client.post(path, json={"x": [1, 2]}).json()["score"]
    assert client.post(path, json={"record": {"q": 2, "p": 1}}).json()["score"] == expected
    table = {"inputs": [{"name": "x", "datatype": "FP64", "shape": [1, 2], "data": [1, 2]}]}
    outputs = client.post("/v2/models/numbers:a/infer", json=table).json()["outputs"]
    assert outputs[1]["data"] == pytest.approx([expected])
    predicted = client.post("/v1/models/numbers:predict", json={"x": [1, 2], "scores": True}).json()
    assert predicted["scores"]["a"] == pytest.approx(expected)


def test_a_list_has_the_numbers_of_the_columns_that_are_used(client, store):
    publish_people(store, numbers_encoder(), "pairs")
    with store.begin() as uow:
        # Its data set had a column more, which identifies the rows.
        uow.connection.execute(model_versions.update().values(columns=3))
    rows = [[0.5, 1.0], [0.25, -1.0]]
    records = [{"p": p, "q": q} for p, q in rows]
    path = "/v1/models/pairs/classes/a:query"
    by_names = client.post(path, json={"records": records})
    by_lists = client.post(path, json={"rows": rows})
    assert (by_lists.status_code, by_lists.json()) == (200, by_names.json())
