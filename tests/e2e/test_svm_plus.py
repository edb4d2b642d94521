"""A newcomer's whole use of SVM+ students over HTTP: upload, train, look, ask, explain."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import pytest

Json = dict[str, Any]
Call = Callable[..., Any]

MODEL = "svm_plus_flowers"
HYPERPARAMETERS = {
    "features": {"kind": "kernel"},
    "teacher": {"C": 100},
    "student": {"method": "svm+", "privileged": "teacher", "C": 1000},
    "threshold": {"rule": "f1", "folds": 3},
    "calibration": {"kind": "sigmoid"},
}


@pytest.fixture(scope="module")
def job(upload: Call, train: Call, npz: Call, parts: Json) -> Json:
    return train(upload(npz(**parts), "npz")["id"], MODEL, **HYPERPARAMETERS)


def test_the_job_shows_how_good_the_students_are(http: httpx.Client, job: Json):
    assert job["hyperparameters"]["student"]["privileged"] == "teacher"
    path = f"/v1/training-jobs/{job['id']}/students"
    rows = http.get(path, params={"method": "svm+"}).json()["data"]
    assert [row["label"] for row in rows] == ["setosa", "versicolor", "virginica"]
    assert all(row["metrics"]["f1"] > 0.8 for row in rows)


def test_the_published_students_answer_and_explain(http: httpx.Client, job: Json, parts: Json):
    body = {"rows": parts["X_test"].tolist(), "explain": True}
    response = http.post(f"/v1/models/{MODEL}/classes/setosa:query", json=body)
    assert response.status_code == 200, response.text
    results = response.json()["results"]
    assert [result["match"] for result in results] == (parts["y_test"] == "setosa").tolist()
    for result in results:
        assert 0.0 <= result["probability"] <= 1.0
        assert result["gate"] == 0.0, "the teacher is privileged information, not a gate"
        assert -result["rejection"] == pytest.approx(result["score"], abs=1e-9)


def test_a_wrong_hyper_parameter_is_named(http: httpx.Client, job: Json, problem: Call):
    body = {"dataset_id": job["dataset_id"], "model": MODEL}
    wrong = {"student": {"method": "svm+", "kernel": "poly"}}
    response = http.post("/v1/training-jobs", json=body | {"hyperparameters": wrong})
    assert [fault["field"] for fault in problem(response, 422, "invalid_body")["errors"]] == [
        "hyperparameters.student.kernel"
    ]
