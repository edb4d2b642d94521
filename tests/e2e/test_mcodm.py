"""A newcomer's whole use of an mcODM teacher over HTTP: upload, train, look, ask, explain."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import numpy as np
import pytest

Json = dict[str, Any]
Call = Callable[..., Any]

MODEL = "mcodm_flowers"
HYPERPARAMETERS = {
    "features": {"kind": "nystroem", "n_components": 40},
    "teacher": {"method": "mcodm", "C": 1000, "band": 0.4},
    "student": {"method": "polytope", "pieces": 2},
    "threshold": {"rule": "f1"},
    "calibration": {"kind": "sigmoid"},
}


@pytest.fixture(scope="module")
def job(upload: Call, train: Call, npz: Call, parts: Json) -> Json:
    return train(upload(npz(**parts), "npz")["id"], MODEL, **HYPERPARAMETERS)


def test_the_job_shows_the_teacher_and_how_good_the_students_are(http: httpx.Client, job: Json):
    told = job["hyperparameters"]["teacher"]
    assert (told["method"], told["C"], told["band"], told["excess"]) == ("mcodm", 1000, 0.4, 0.2)
    path = f"/v1/training-jobs/{job['id']}/students"
    for method in ("polytope", "teacher"):
        rows = http.get(path, params={"method": method}).json()["data"]
        assert [row["label"] for row in rows] == ["setosa", "versicolor", "virginica"]
        assert all(row["metrics"]["f1"] > 0.8 for row in rows)


def test_the_published_students_answer_and_explain(http: httpx.Client, job: Json, parts: Json):
    rows, truth = parts["X_test"].tolist(), parts["y_test"] == "setosa"
    body = {"rows": rows, "explain": True}
    response = http.post(f"/v1/models/{MODEL}/classes/setosa:query", json=body)
    assert response.status_code == 200, response.text
    results = response.json()["results"]
    assert [result["match"] for result in results] == truth.tolist()
    for result in results:
        assert 0.0 <= result["probability"] <= 1.0
        assert result["gate"] - result["rejection"] == pytest.approx(result["score"], abs=1e-9)
    best = http.post(f"/v1/models/{MODEL}:predict", json={"rows": rows}).json()["results"]
    assert np.mean([one["label"] == label for one, label in zip(best, parts["y_test"], strict=True)]) > 0.85


def test_a_wrong_hyper_parameter_is_named(http: httpx.Client, job: Json, problem: Call):
    body = {"dataset_id": job["dataset_id"], "model": MODEL}
    wrong = {"teacher": {"method": "mcodm", "band": 1}}
    response = http.post("/v1/training-jobs", json=body | {"hyperparameters": wrong})
    assert [fault["field"] for fault in problem(response, 422, "invalid_body")["errors"]] == [
        "hyperparameters.teacher.band"
    ]
