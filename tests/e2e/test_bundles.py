"""Versions that jobs have trained, as bundles and as ONNX models: the same answers wherever they are."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Callable
from typing import Any

import httpx
import numpy as np
import onnxruntime
import pytest

from tests.e2e.test_records_killed import table as orders

Json = dict[str, Any]
Call = Callable[..., Any]

HYPERPARAMETERS: dict[str, Json] = {
    "automatic": {"teacher": None, "student": None},
    "kernel": {
        "features": {"kind": "nystroem", "n_components": 60},
        "student": {"method": "polytope", "C": 10, "pieces": 2},
        "calibration": {"kind": "isotonic"},
        "threshold": {"folds": 3},
    },
    "fourier": {"features": {"kind": "fourier", "n_components": 64}, "calibration": {"kind": "sigmoid"}},
    "compact": {"compact": {"n_landmarks": 20}, "student": {"C": 10}},
    "gaussian": {"student": {"method": "gpc", "n_landmarks": 20}},
    "forest": {"teacher": {"method": "forest", "trees": 30}, "student": None},
    "boosting": {"teacher": {"method": "boosting", "iterations": 15, "min_leaf": 5}, "student": None},
    "hellinger": {"teacher": {"method": "interpolation", "jitter": 0.01, "row_scaling": "hellinger"}},
}


OF_EACH_FORM = ("automatic", "kernel", "forest")
KINDS = [
    kind if kind in OF_EACH_FORM else pytest.param(kind, marks=pytest.mark.long) for kind in HYPERPARAMETERS
]


def train_with(follow: Call, http: httpx.Client, dataset: str, model: str, changed: Json) -> Json:
    wanted = {"teacher": {"C": 10}, "student": {"C": 10}} | changed
    hyperparameters = {name: value for name, value in wanted.items() if value is not None}
    body = {"dataset_id": dataset, "model": model, "hyperparameters": hyperparameters}
    response = http.post("/v1/training-jobs", json=body)
    assert response.status_code == 202, response.text
    job: Json = follow(response.json())
    assert job["state"] == "succeeded", job["error"]
    return job


def manifest(data: bytes) -> Json:
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        found: Json = json.load(tar.extractfile("manifest.json"))
    return {name: value for name, value in found.items() if name not in {"model", "version"}}


def moved(http: httpx.Client, model: str) -> tuple[str, Json]:
    """The version, imported under another name, and its manifest; both bundles are equal but for the name."""
    data = http.get(f"/v1/models/{model}/versions/latest/bundle").content
    made = http.post("/v1/bundles", params={"model": f"moved_{model}"}, content=data)
    assert made.status_code == 201, made.text
    again = http.get(f"/v1/models/moved_{model}/versions/latest/bundle").content
    assert manifest(again) == manifest(data)
    return f"moved_{model}", manifest(data)


def answers(http: httpx.Client, model: str, label: str, rows: list[Any]) -> list[Json]:
    key = "records" if isinstance(rows[0], dict) else "rows"
    response = http.post(f"/v1/models/{model}/classes/{label}:query", json={key: rows})
    assert response.status_code == 200, response.text
    results: list[Json] = response.json()["results"]
    return results


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_student_answers_alike_after_the_move_and_as_onnx(
    http: httpx.Client, upload: Call, follow: Call, npz: Call, parts: Json, kind: str
):
    dataset = upload(npz(**parts), "npz", name="iris")["id"]
    model = f"bundled_{kind}"
    train_with(follow, http, dataset, model, HYPERPARAMETERS[kind])
    other, document = moved(http, model)
    rows = np.random.default_rng(0).uniform(0, 8, size=(200, 4))
    for label in document["classes"]:
        before, after = (answers(http, name, label, rows.tolist()) for name in (model, other))
        assert before == after
        sent = http.get(f"/v1/models/{other}/versions/latest/onnx", params={"class": label})
        assert sent.status_code == 200, sent.text
        run = onnxruntime.InferenceSession(sent.content, providers=["CPUExecutionProvider"])
        names = [output.name for output in run.get_outputs()]
        found = dict(zip(names, run.run(None, {"x": rows}), strict=True))
        assert found["match"].tolist() == [answer["match"] for answer in before]
        for name in names[1:]:
            np.testing.assert_allclose(found[name], [answer[name] for answer in before], atol=1e-11)
    job = http.get(f"/v1/models/{other}/versions/1").json()["job_id"]
    students = http.get(f"/v1/training-jobs/{job}/students").json()["data"]
    assert [row["label"] for row in students] == document["classes"]


@pytest.mark.long
def test_records_with_texts_and_dates_move_but_are_no_onnx_model(
    http: httpx.Client, upload: Call, follow: Call
):
    dataset = upload(orders(), "csv", label_column="label")["id"]
    train_with(follow, http, dataset, "bundled_orders", {})
    other, document = moved(http, "bundled_orders")
    assert document["encoder"]
    assert document["profile"]
    records = [
        {"amount": 5.5, "tier": 2, "since": "2024-03-04", "text": "my parcel is late"},
        {"amount": None, "tier": 1, "since": "2024-01-01", "text": "the bank charged my card twice"},
    ]
    for label in document["classes"]:
        before, after = (answers(http, name, label, records) for name in ("bundled_orders", other))
        assert before == after
    sent = http.get(f"/v1/models/{other}/versions/1/onnx", params={"class": "refund"})
    assert (sent.status_code, sent.json()["code"]) == (422, "no_onnx_form")
    assert sent.json()["errors"][0]["field"] in {"since", "text"}
    inputs = http.get(f"/v1/models/{other}/versions/1/inputs")
    assert inputs.status_code == 200, inputs.text


def test_records_of_numbers_and_categories_are_an_onnx_model(http: httpx.Client, upload: Call, follow: Call):
    rng = np.random.default_rng(1)
    lines = ["age,city,kind"]
    for k in range(300):
        age = "" if k % 9 == 0 else f"{rng.normal(40, 10):.1f}"
        city = ("Rome", "Oslo", "São Paulo")[k % 3]
        lines.append(f"{age},{city},{'old' if k % 9 and float(age) > 42 else 'young'}")
    dataset = upload("\n".join(lines).encode(), "csv", label_column="kind")["id"]
    train_with(follow, http, dataset, "bundled_people", {})
    sent = http.get("/v1/models/bundled_people/versions/latest/onnx", params={"class": "old"})
    assert sent.status_code == 200, sent.text
    run = onnxruntime.InferenceSession(sent.content, providers=["CPUExecutionProvider"])
    ages, cities = [30.0, 55.0, np.nan, 44.5], ["Rome", "Oslo", "Paris", "São Paulo"]
    fed = {"age": np.array(ages).reshape(-1, 1), "city": np.array(cities, dtype=object).reshape(-1, 1)}
    match, score = run.run(["match", "score"], fed)
    records = [
        {"age": None if np.isnan(age) else age, "city": city} for age, city in zip(ages, cities, strict=True)
    ]
    expected = answers(http, "bundled_people", "old", records)
    assert match.tolist() == [answer["match"] for answer in expected]
    np.testing.assert_allclose(score, [answer["score"] for answer in expected], atol=1e-11)
