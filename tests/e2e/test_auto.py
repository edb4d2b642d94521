"""A newcomer's whole use of the comparison of families over HTTP: train, see what was chosen and why, ask."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import numpy as np
import pytest

from core.students.auto import CANDIDATES

Json = dict[str, Any]
Call = Callable[..., Any]

pytestmark = pytest.mark.long

MODEL = "best_flowers"
FAMILIES = ["gsvm", "odm", "gpc"]
HYPERPARAMETERS = {
    "features": {"kind": "kernel"},
    "teacher": {"C": 100},
    "student": {"method": "auto", "families": FAMILIES},
    "threshold": {"folds": 3},
}


@pytest.fixture(scope="module")
def job(upload: Call, train: Call, npz: Call, parts: Json) -> Json:
    return train(upload(npz(**parts), "npz")["id"], MODEL, **HYPERPARAMETERS)


def test_the_job_says_which_family_each_class_got_and_what_it_was_compared_with(
    http: httpx.Client, job: Json
):
    path = f"/v1/training-jobs/{job['id']}/students"
    rows = http.get(path, params={"method": "auto"}).json()["data"]
    assert [row["label"] for row in rows] == ["setosa", "versicolor", "virginica"]
    for row in rows:
        assert row["chosen"]["family"] in FAMILIES
        assert row["chosen"]["second_family"] != row["chosen"]["family"]
        assert row["chosen"]["score"] >= row["chosen"]["second_score"]
        assert row["metrics"]["f1"] > 0.8
        points = http.get(f"{path}/{row['class_index']}/auto/trace").json()["points"]
        assert [one["family"] for one in points] == [
            spec.name for spec in CANDIDATES if spec.name in FAMILIES
        ]
        assert max(one["f1"] for one in points) == row["chosen"]["score"]


def test_the_published_students_answer(http: httpx.Client, job: Json, parts: Json):
    rows, truth = parts["X_test"].tolist(), parts["y_test"] == "virginica"
    response = http.post(f"/v1/models/{MODEL}/classes/virginica:query", json={"rows": rows})
    assert response.status_code == 200, response.text
    results = response.json()["results"]
    assert np.mean([one["match"] == bool(yes) for one, yes in zip(results, truth, strict=True)]) > 0.85


def test_an_unknown_family_is_named(http: httpx.Client, job: Json, problem: Call):
    body = {"dataset_id": job["dataset_id"], "model": MODEL}
    wrong = {"student": {"method": "auto", "families": ["forest"]}}
    response = http.post("/v1/training-jobs", json=body | {"hyperparameters": wrong})
    (fault,) = problem(response, 422, "invalid_body")["errors"]
    assert fault["field"] == "hyperparameters.student"
    assert "families must be of gsvm" in fault["message"]
