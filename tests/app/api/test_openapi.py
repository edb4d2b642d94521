"""The types that describe the answers in the OpenAPI document are those of the answers that are sent."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from app.http.problem import ProblemDocument
from app.serving.open_inference import responses
from app.serving.query import openapi

CAT = "/v1/models/pets/classes/cat:query"
ONE: dict[str, Any] = {"x": [1, 2, 3]}
MANY: dict[str, Any] = {"rows": [[1, 2, 3], {"indices": [0], "values": [1]}]}


def check(document: Any, kind: Any) -> None:
    """Raise for a missing or wrong value; fields that ``kind`` does not have make a difference."""
    assert msgspec.convert(document, kind) == document


@pytest.mark.parametrize(
    ("path", "body", "kind"),
    [
        (CAT, ONE, openapi.RowAnswer),
        (CAT, ONE | {"explain": True}, openapi.RowAnswer),
        (CAT, MANY, openapi.RowsAnswer),
        (CAT, MANY | {"explain": True}, openapi.RowsAnswer),
        ("/v1/models/pets:predict", ONE, openapi.PredictRowAnswer),
        ("/v1/models/pets:predict", MANY | {"scores": True}, openapi.PredictRowsAnswer),
        ("/v1/models/pets:predict", ONE | {"target": "cat"}, openapi.TargetRowAnswer),
        ("/v1/models/pets:predict", MANY | {"target": "cat"}, openapi.TargetRowsAnswer),
    ],
)
def test_an_answer_has_exactly_the_documented_fields(client, pets, path: str, body: Any, kind: Any):
    response = client.post(path, json=body)
    assert response.status_code == 200
    check(response.json(), kind)


@pytest.mark.parametrize(("body", "kind"), [(ONE, openapi.ClassRowAnswer), (MANY, openapi.ClassRowsAnswer)])
def test_an_answer_of_several_classes_has_exactly_the_documented_fields(client, pets, body: Any, kind: Any):
    answer = client.post("/v1/models/pets:query", json=body | {"classes": ["cat", "dog"]}).json()
    check(answer, openapi.ClassesQueryAnswer)
    for each in answer["classes"]:
        check(each, kind)


INFERENCE: dict[str, Any] = {
    "parameters": {"class": "cat"},
    "inputs": [{"name": "x", "shape": [1, 3], "datatype": "FP64", "data": [1, 2, 3]}],
}


@pytest.mark.parametrize(
    ("method", "path", "body", "kind"),
    [
        ("GET", "/v2", None, responses.InferenceServer),
        ("GET", "/v2/health/live", None, responses.InferenceLive),
        ("GET", "/v2/health/ready", None, responses.InferenceReady),
        ("GET", "/v2/models/pets", None, responses.InferenceModel),
        ("GET", "/v2/models/pets/ready", None, responses.InferenceModelReady),
        ("GET", "/v2/models/pets/stats", None, responses.InferenceStatistics),
        ("POST", "/v2/repository/index", None, list[responses.InferenceIndexEntry]),
        ("POST", "/v2/models/pets/infer", INFERENCE, responses.InferenceAnswer),
        ("POST", "/v2/models/pets/infer", {**INFERENCE, "id": "a"}, responses.InferenceAnswer),
        ("GET", "/v2/models/none", None, responses.InferenceError),
    ],
)
def test_an_answer_of_the_protocol_has_exactly_the_documented_fields(
    client, pets, method: str, path: str, body: Any, kind: Any
):
    check(client.request(method, path, json=body).json(), kind)


def test_an_error_has_exactly_the_documented_fields(client, pets):
    document = client.post(CAT, json={"x": [1, "two", 3]}).json()
    check({**document, "errors": []}, ProblemDocument)
    assert set(document["errors"][0]) == {"field", "code", "message", "row", "column"}


def test_every_field_that_a_query_decodes_is_documented(client):
    schemas = client.get("/openapi.json").json()["components"]["schemas"]
    for name, fields in (
        ("QueryRequest", {"x", "rows", "explain"}),
        ("ClassesQueryRequest", {"x", "rows", "explain", "classes"}),
        ("PredictRequest", {"x", "rows", "scores", "target"}),
    ):
        for shape in schemas[name]["oneOf"]:
            assert set(shape["properties"]) == fields
            assert shape["additionalProperties"] is False
