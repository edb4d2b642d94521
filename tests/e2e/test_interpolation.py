"""A newcomer's whole use of an interpolating teacher over HTTP: upload, train, look, ask, explain."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import numpy as np
import pytest

Json = dict[str, Any]
Call = Callable[..., Any]

MODEL = "interpolated_flowers"
HYPERPARAMETERS = {
    "features": {"kind": "nystroem", "n_components": 40},
    "teacher": {"method": "interpolation", "jitter": 0.01},
    "student": {"method": "gsvm"},
    "tuning": {"grid": {"C": [10, 1000], "margins": [1], "floors": [0.3]}, "folds": 3},
    "threshold": {"rule": "f1"},
    "calibration": {"kind": "sigmoid"},
    "evaluation": {"baselines": ["svm"]},
}


@pytest.fixture(scope="module")
def job(upload: Call, train: Call, npz: Call, parts: Json) -> Json:
    return train(upload(npz(**parts), "npz")["id"], MODEL, **HYPERPARAMETERS)


def test_the_job_shows_the_teacher_and_how_good_the_students_are(http: httpx.Client, job: Json):
    assert job["hyperparameters"]["teacher"]["method"] == "interpolation"
    assert job["hyperparameters"]["teacher"]["gamma"] is None
    path = f"/v1/training-jobs/{job['id']}/students"
    rows = http.get(path, params={"method": "gsvm"}).json()["data"]
    assert [row["label"] for row in rows] == ["setosa", "versicolor", "virginica"]
    for row in rows:
        assert row["chosen"]["C"] in (10, 1000)
        assert row["metrics"]["f1"] > 0.8
        assert row["metrics"]["brier"] < row["metrics"]["base_brier"]
    teachers = http.get(path, params={"method": "teacher"}).json()["data"]
    assert all(row["metrics"]["f1"] > 0.8 for row in teachers)


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
    # The gate is the teacher's score of the class, distilled: near 1 for its rows, near 0 for others.
    gates = np.array([result["gate"] for result in results])
    assert gates[truth].min() > gates[~truth].max()


def test_the_packed_teacher_answers_for_all_classes(http: httpx.Client, job: Json, parts: Json):
    best = http.post(f"/v1/models/{MODEL}:predict", json={"rows": parts["X_test"].tolist()}).json()["results"]
    assert np.mean([one["label"] == label for one, label in zip(best, parts["y_test"], strict=True)]) > 0.9


@pytest.mark.parametrize(
    ("teacher", "field"),
    [
        ({"method": "interpolation", "jitter": 0}, "hyperparameters.teacher.jitter"),
        ({"method": "interpolation", "C": 1}, "hyperparameters.teacher.C"),
        ({"method": "interpolation", "scaling": "idf"}, "hyperparameters.teacher.scaling"),
    ],
)
def test_a_wrong_hyper_parameter_is_named(
    http: httpx.Client, job: Json, problem: Call, teacher: Json, field: str
):
    body = {"dataset_id": job["dataset_id"], "model": MODEL, "hyperparameters": {"teacher": teacher}}
    response = http.post("/v1/training-jobs", json=body)
    assert [fault["field"] for fault in problem(response, 422, "invalid_body")["errors"]] == [field]
