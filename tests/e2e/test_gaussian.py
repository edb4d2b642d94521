"""A newcomer's whole use of Gaussian process students over HTTP: upload, train, ask, explain."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import numpy as np
import pytest
from scipy.stats import norm

Json = dict[str, Any]
Call = Callable[..., Any]

pytestmark = pytest.mark.long

MODEL = "gaussian_flowers"
HYPERPARAMETERS = {
    "teacher": {"C": 100},
    "student": {"method": "gpc", "n_landmarks": 40},
    "evaluation": {"baselines": ["gpc+", "svm"]},
}


@pytest.fixture(scope="module")
def job(upload: Call, train: Call, npz: Call, parts: Json) -> Json:
    return train(upload(npz(**parts), "npz")["id"], MODEL, **HYPERPARAMETERS)


def ask(http: httpx.Client, body: Json, label: str = "versicolor") -> Json:
    response = http.post(f"/v1/models/{MODEL}/classes/{label}:query", json=body)
    assert response.status_code == 200, response.text
    answer: Json = response.json()
    return answer


def test_the_job_shows_what_the_evidence_chose_and_from_which_rows(http: httpx.Client, job: Json):
    path = f"/v1/training-jobs/{job['id']}/students"
    for method, source in (("gpc", {"none"}), ("gpc+", {"teacher", "none"})):
        rows = http.get(path, params={"method": method}).json()["data"]
        assert [row["label"] for row in rows] == ["setosa", "versicolor", "virginica"]
        for row in rows:
            assert row["chosen"]["noise_from"] in source
            assert row["chosen"]["n_landmarks"] <= (40 if method == "gpc" else 100)
            assert row["chosen"]["site_change"] <= 1e-4
            assert row["metrics"]["f1"] > 0.8
            assert row["metrics"]["calibration"] == "probit"
            assert row["metrics"]["brier"] < row["metrics"]["base_brier"]


def test_the_published_students_answer_with_probabilities_and_explain(
    http: httpx.Client, job: Json, parts: Json
):
    rows, truth = parts["X_test"].tolist(), parts["y_test"] == "versicolor"
    results = ask(http, {"rows": rows, "explain": True})["results"]
    assert np.mean([one["match"] == bool(yes) for one, yes in zip(results, truth, strict=True)]) > 0.85
    for x, result in zip(rows[:5], results, strict=False):
        assert result["probability"] == pytest.approx(norm.cdf(result["score"]), rel=1e-9)
        assert (result["gate"], result["rejection"]) == (0.0, -result["score"])
        one = ask(http, {"x": x})
        assert one["score"] == pytest.approx(result["score"], rel=1e-9, abs=1e-12)
        assert one["probability"] == pytest.approx(result["probability"], rel=1e-9)
        sparse = ask(http, {"x": {"indices": list(range(len(x))), "values": x}})
        assert sparse["score"] == pytest.approx(result["score"], rel=1e-9, abs=1e-12)
    far = ask(http, {"x": [1e4] * len(rows[0])})
    assert 0.05 < far["probability"] < 0.6


def test_other_formats_and_the_open_inference_protocol_give_the_same(
    http: httpx.Client, job: Json, parts: Json
):
    X = parts["X_test"][:4]
    expected = [one["score"] for one in ask(http, {"rows": X.tolist()})["results"]]
    response = http.post(
        f"/v1/models/{MODEL}/classes/versicolor:query",
        content=np.ascontiguousarray(X, dtype="<f8").tobytes(),
        headers={
            "content-type": "application/octet-stream",
            "x-tensor-shape": ",".join(map(str, X.shape)),
            "x-tensor-dtype": "float64",
        },
    )
    assert response.status_code == 200, response.text
    scores = [one["score"] for one in response.json()["results"]]
    np.testing.assert_allclose(scores, expected, rtol=1e-9)
    tensor = {"name": "x", "shape": list(X.shape), "datatype": "FP64", "data": X.ravel().tolist()}
    answer = http.post(f"/v2/models/{MODEL}:versicolor/infer", json={"inputs": [tensor]})
    assert answer.status_code == 200, answer.text
    outputs = {one["name"]: one["data"] for one in answer.json()["outputs"]}
    np.testing.assert_allclose(outputs["score"], expected, rtol=1e-9)
    np.testing.assert_allclose(outputs["probability"], norm.cdf(expected), rtol=1e-9)
