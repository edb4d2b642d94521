"""A newcomer's use of students that optimise a measure, over HTTP: upload, train, look, ask, explain."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import numpy as np
import pytest

Json = dict[str, Any]
Call = Callable[..., Any]

MODEL = "measured_flowers"
HYPERPARAMETERS = {
    "teacher": {"C": 100},
    "student": {"method": "multiview", "measure": "roc_area", "C": 1e4},
    "threshold": {"rule": "f1", "folds": 3},
    "calibration": {"kind": "sigmoid"},
}


@pytest.fixture(scope="module")
def job(upload: Call, train: Call, npz: Call, parts: Json) -> Json:
    views = {"views": np.array([[0, 2], [2, 4]]), "view_names": np.array(["sepal", "petal"])}
    dataset = upload(npz(**parts, **views), "npz")
    assert [view["name"] for view in dataset["summary"]["views"]] == ["sepal", "petal"]
    return train(dataset["id"], MODEL, **HYPERPARAMETERS)


def test_the_job_shows_how_good_the_students_are(http: httpx.Client, job: Json):
    assert job["hyperparameters"]["student"]["measure"] == "roc_area"
    path = f"/v1/training-jobs/{job['id']}/students"
    rows = http.get(path, params={"method": "multiview"}).json()["data"]
    assert [row["label"] for row in rows] == ["setosa", "versicolor", "virginica"]
    assert all(row["metrics"]["auc"] > 0.7 for row in rows)
    assert rows[0]["metrics"]["f1"] > 0.95


def test_the_published_students_answer_and_explain(http: httpx.Client, job: Json, parts: Json):
    body = {"rows": parts["X_test"].tolist(), "explain": True}
    response = http.post(f"/v1/models/{MODEL}/classes/setosa:query", json=body)
    assert response.status_code == 200, response.text
    results = response.json()["results"]
    assert np.mean([result["match"] for result in results] == (parts["y_test"] == "setosa")) > 0.95
    for result in results:
        assert 0.0 <= result["probability"] <= 1.0
        assert result["gate"] == 0.0
        assert -result["rejection"] == pytest.approx(result["score"], abs=1e-9)


def test_a_wrong_measure_is_named(http: httpx.Client, job: Json, problem: Call):
    body = {"dataset_id": job["dataset_id"], "model": MODEL}
    wrong = {"student": {"method": "multiview", "measure": "f2"}}
    response = http.post("/v1/training-jobs", json=body | {"hyperparameters": wrong})
    assert [fault["field"] for fault in problem(response, 422, "invalid_body")["errors"]] == [
        "hyperparameters.student.measure"
    ]
