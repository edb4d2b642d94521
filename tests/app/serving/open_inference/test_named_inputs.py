"""Requests with one input for each column, as clients of data frames send them."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from app.domain.entities import ModelVersion
from app.store.unit_of_work import Store
from tests.app.serving.open_inference.test_inference import binary, outputs, tensor
from tests.system.published import linear_student, linear_teacher, publish

BOX = "/v2/models/boxes:box/infer"
NAMES = ["length", "width", "height"]
COLUMNS = {"height": [100.0, 0.0], "length": [1.0, 0.5], "width": [20.0, 3.0]}
SCORES = [1 + 200 + 10_000, 0.5 + 30]


def publish_boxes(store: Store, **inputs: Any) -> ModelVersion:
    """Score of "box": length + 10 width + 100 height."""
    weights = np.array([[1.0, 10.0, 100.0], [0.0, 1.0, 0.0]])
    students = {name: linear_student(name, row) for name, row in zip(["box", "bag"], weights, strict=True)}
    return publish(store, "boxes", students, linear_teacher(["box", "bag"], weights), inputs=inputs or None)


@pytest.fixture
def boxes(store: Store) -> Callable[..., ModelVersion]:
    publish_boxes(store, columns=NAMES, label_column="kind")
    return publish_boxes


def named(shape: Any = (2, 1), datatype: str = "FP64", **changed: Any) -> dict[str, Any]:
    """A request with one input a column, in another order than the model's."""
    return {"inputs": [tensor(data, datatype, shape, name) for name, data in (COLUMNS | changed).items()]}


@pytest.mark.parametrize("shape", [(2,), (2, 1)])
@pytest.mark.parametrize("datatype", ["FP64", "FP32"])
@pytest.mark.parametrize("form", ["json", "nested", "binary"])
def test_columns_are_put_into_the_order_of_the_model(client, boxes, shape, datatype: str, form: str):
    document, headers = named(shape, datatype), {}
    body: Any = json.dumps(document).encode()
    if form == "nested":
        for given in document["inputs"]:
            given["data"] = [[value] for value in given["data"]]
            given["shape"] = [2, 1]
        body = json.dumps(document).encode()
    if form == "binary":
        dtype = {"FP64": "<f8", "FP32": "<f4"}[datatype]
        body, headers = binary(document, *(np.array(data, dtype).tobytes() for data in COLUMNS.values()))
    assert outputs(client.post(BOX, content=body, headers=headers))["score"] == SCORES


def test_columns_may_be_of_different_datatypes(client, boxes):
    inputs = [
        tensor([2**40, 3], "INT64", (2, 1), "width"),
        tensor([True, False], "BOOL", (2,), "height"),
        tensor([1, 0], "FP32", (2, 1), "length"),
    ]
    found = outputs(client.post(BOX, content=json.dumps({"inputs": inputs}).encode()))
    assert found["score"] == [1 + 10.0 * 2**40 + 100, 30.0]


def test_the_class_is_named_as_always(client, boxes):
    target = tensor(["bag", "box"], "BYTES", (2,), "class")
    for more in ({"parameters": {"class": "box"}}, {}):
        document = named() | more
        document["inputs"] += [] if more else [target]
        found = outputs(client.post("/v2/models/boxes/infer", content=json.dumps(document).encode()))
        assert found["score"] == (SCORES if more else [20.0, SCORES[1]])


def test_the_label_column_of_the_training_file_is_left_out(client, boxes):
    for datatype, values in (("BYTES", ["box", "bag"]), ("INT64", [1, 0])):
        document = named()
        document["inputs"].append(tensor(values, datatype, (2, 1), "kind"))
        assert outputs(client.post(BOX, content=json.dumps(document).encode()))["score"] == SCORES


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"depth": [1.0, 2.0]}, "no column 'depth'"),
        ({"width": None}, "'width' has no value"),
        ({"width": None, "widht": [1.0, 2.0]}, "did you mean 'width'?"),
    ],
)
def test_names_that_do_not_fit_are_refused(client, boxes, change, words: str):
    document = {"inputs": [given for given in named(**change)["inputs"] if given["data"] is not None]}
    response = client.post(BOX, content=json.dumps(document).encode())
    assert response.status_code == 400
    assert words in response.json()["error"]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (tensor([1.0, 2.0, 3.0], "FP64", (3, 1), "width"), "same number of rows"),
        (tensor([1.0, 2.0, 3.0, 4.0], "FP64", (2, 2), "width"), "same number of rows"),
        (tensor([1.0, 2.0], "FP64", (1, 2), "width"), "same number of rows"),
        (tensor(1.0, "FP64", (), "width"), "same number of rows"),
        (tensor(["a", "b"], "BYTES", (2, 1), "width"), "must be a number, not a text"),
        (tensor([1.0, "b"], "FP64", (2, 1), "width"), "'width'"),
        (tensor([1.0, 1e200], "FP64", (2, 1), "width"), "width"),
    ],
)
def test_a_column_of_another_form_is_refused(client, boxes, given, words: str):
    document = named()
    document["inputs"] = [one for one in document["inputs"] if one["name"] != "width"] + [given]
    response = client.post(BOX, content=json.dumps(document).encode())
    assert response.status_code == 400, response.text
    assert words in response.json()["error"]


def test_metadata_name_the_columns(client, boxes, store: Store):
    assert client.get("/v2/models/boxes:box").json()["parameters"]["columns"] == NAMES
    publish_boxes(store)
    with store.begin() as uow:
        # It keeps the version without names from answering.
        uow.models.delete_alias("boxes", "latest", expected_revision=1)
    client.refresh()
    assert "columns" not in client.get("/v2/models/boxes:box").json()["parameters"]
