"""A newcomer's whole use of SVM+ students over HTTP: upload, train, look, ask, explain.

The widths and lengths of the petals are privileged: a query knows the sepals alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import numpy as np
import pytest

Json = dict[str, Any]
Call = Callable[..., Any]

MODEL = "svm_plus_flowers"
HYPERPARAMETERS = {
    "features": {"kind": "kernel"},
    "teacher": {"C": 100},
    "student": {"method": "svm+", "privileged": "columns", "C": 1e4},
    "threshold": {"rule": "f1", "folds": 3},
    "calibration": {"kind": "sigmoid"},
}


@pytest.fixture(scope="module")
def job(upload: Call, train: Call, npz: Call, parts: Json) -> Json:
    sepals = {f"X_{part}": parts[f"X_{part}"][:, :2] for part in ("train", "test")}
    dataset = upload(npz(**(parts | sepals), privileged_train=parts["X_train"][:, 2:]), "npz")
    assert dataset["summary"]["privileged"]["columns"] == 2
    return train(dataset["id"], MODEL, **HYPERPARAMETERS)


def test_the_job_shows_how_good_the_students_are(http: httpx.Client, job: Json):
    assert job["hyperparameters"]["student"]["privileged"] == "columns"
    path = f"/v1/training-jobs/{job['id']}/students"
    rows = http.get(path, params={"method": "svm+"}).json()["data"]
    assert [row["label"] for row in rows] == ["setosa", "versicolor", "virginica"]
    assert rows[0]["metrics"]["f1"] > 0.9
    assert all(row["metrics"]["auc"] > 0.7 for row in rows)


def test_the_published_students_answer_and_explain(http: httpx.Client, job: Json, parts: Json):
    body = {"rows": parts["X_test"][:, :2].tolist(), "explain": True}
    response = http.post(f"/v1/models/{MODEL}/classes/setosa:query", json=body)
    assert response.status_code == 200, response.text
    results = response.json()["results"]
    assert np.mean([result["match"] for result in results] == (parts["y_test"] == "setosa")) > 0.9
    for result in results:
        assert 0.0 <= result["probability"] <= 1.0
        assert result["gate"] == 0.0, "the teacher is privileged information, not a gate"
        assert -result["rejection"] == pytest.approx(result["score"], abs=1e-9)


def test_a_data_set_without_privileged_columns_is_refused(
    http: httpx.Client, flowers_data: Json, problem: Call
):
    body = {"dataset_id": flowers_data["id"], "model": MODEL, "hyperparameters": HYPERPARAMETERS}
    refused = problem(http.post("/v1/training-jobs", json=body), 422, "no_privileged")
    assert "svm+ needs privileged columns" in refused["detail"]


def test_a_wrong_hyper_parameter_is_named(http: httpx.Client, job: Json, problem: Call):
    body = {"dataset_id": job["dataset_id"], "model": MODEL}
    wrong = {"student": {"method": "svm+", "kernel": "poly"}}
    response = http.post("/v1/training-jobs", json=body | {"hyperparameters": wrong})
    assert [fault["field"] for fault in problem(response, 422, "invalid_body")["errors"]] == [
        "hyperparameters.student.kernel"
    ]
