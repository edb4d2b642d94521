"""A newcomer's whole use over HTTP with a teacher from outside: upload with scores, train, ask, explain."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import numpy as np
import pytest
from sklearn.ensemble import RandomForestClassifier
from sklearn.model_selection import cross_val_predict

pytestmark = pytest.mark.long

Json = dict[str, Any]
Call = Callable[..., Any]

MODEL = "outside_flowers"
HYPERPARAMETERS = {
    "features": {"kind": "nystroem", "n_components": 40},
    "teacher": {"method": "scores"},
    "student": {"method": "gsvm", "C": 1000},
    "threshold": {"rule": "f1", "folds": 3},
    "evaluation": {"test_fraction": 0.3, "baselines": ["polytope"]},
}


@pytest.fixture(scope="module")
def content(iris: tuple[Any, Any]) -> str:
    """Iris as CSV: rows, a privileged column, and log-probabilities of a forest that had not seen the row."""
    X, labels = iris
    forest = RandomForestClassifier(50, random_state=0)
    known = cross_val_predict(forest, X, labels, cv=5, method="predict_proba")
    scores = np.log(np.maximum(known, 1e-3)).round(6)
    names = ["sepal length", "sepal width", "petal length", "petal width", "privileged:area"]
    names += [f"score:{name}" for name in ("setosa", "versicolor", "virginica")]
    table = np.column_stack([X, X[:, 2] * X[:, 3], scores])
    rows = [",".join([*map(str, row), label]) for row, label in zip(table, labels, strict=True)]
    return "\n".join([",".join([*names, "species"]), *rows])


@pytest.fixture(scope="module")
def data(upload: Call, content: str) -> Json:
    return upload(content.encode())


@pytest.fixture(scope="module")
def job(http: httpx.Client, data: Json, follow: Call) -> Json:
    body = {"dataset_id": data["id"], "model": MODEL, "hyperparameters": HYPERPARAMETERS}
    response = http.post("/v1/training-jobs", json=body)
    assert response.status_code == 202, response.text
    ended = follow(response.json())
    assert ended["state"] == "succeeded", ended["error"]
    return ended


def test_the_data_set_shows_its_privileged_column_and_how_often_the_scores_are_right(
    http: httpx.Client, data: Json
):
    shown = http.get(f"/v1/datasets/{data['id']}").json()
    assert (shown["rows"], shown["columns"]) == (150, 4)
    assert shown["summary"]["privileged"] == {"columns": 1, "names": ["area"]}
    assert shown["summary"]["teacher_scores"]["accuracy"] > 0.9


def test_students_learn_from_the_scores_and_are_measured(http: httpx.Client, job: Json):
    for method in ("gsvm", "polytope"):
        path = f"/v1/training-jobs/{job['id']}/students"
        rows = http.get(path, params={"method": method}).json()["data"]
        assert [row["label"] for row in rows] == ["setosa", "versicolor", "virginica"]
        assert np.mean([row["metrics"]["f1"] for row in rows]) > 0.85


def test_a_query_needs_the_four_columns_only_and_explains(
    http: httpx.Client, job: Json, iris: tuple[Any, Any]
):
    X, labels = iris
    path = f"/v1/models/{MODEL}/classes/virginica:query"
    results = http.post(path, json={"rows": X.tolist(), "explain": True}).json()["results"]
    matches = [one["match"] == (label == "virginica") for one, label in zip(results, labels, strict=True)]
    assert np.mean(matches) > 0.9
    for one in results:
        assert one["gate"] - one["rejection"] == pytest.approx(one["score"], rel=1e-9, abs=1e-9)
    answer = http.post(f"/v1/models/{MODEL}:predict", json={"rows": X.tolist()}).json()["results"]
    assert np.mean([one["label"] == label for one, label in zip(answer, labels, strict=True)]) > 0.7


def test_without_scores_the_teacher_is_refused_by_name(
    http: httpx.Client, upload: Call, csv: Call, iris: Any, problem: Call
):
    plain = upload(csv(*iris))
    body = {"dataset_id": plain["id"], "model": MODEL, "hyperparameters": HYPERPARAMETERS}
    document = problem(http.post("/v1/training-jobs", json=body), 422, "no_teacher_scores")
    assert [fault["field"] for fault in document["errors"]] == ["hyperparameters.teacher.method"]


def test_rows_without_a_label_take_part(http: httpx.Client, content: str, upload: Call, train: Call):
    lines = content.split("\n")
    blank = [f"{line.rpartition(',')[0]}," if k % 4 == 2 else line for k, line in enumerate(lines)]
    refused = http.post("/v1/datasets", content="\n".join(blank).encode(), params={"format": "csv"})
    assert refused.status_code == 400
    data = upload("\n".join(blank).encode(), unlabelled="accept")
    assert data["summary"]["unlabelled_rows"] == 38
    job = train(data["id"], "partly_labelled", teacher={"method": "ssvm", "C": 100})
    rows = http.get(f"/v1/training-jobs/{job['id']}/students").json()["data"]
    assert {row["state"] for row in rows} == {"succeeded"}


def test_scores_of_another_class_are_refused_at_the_upload(http: httpx.Client, content: str, problem: Call):
    wrong = content.replace("score:virginica", "score:tulip").encode()
    response = http.post("/v1/datasets", content=wrong, params={"format": "csv"})
    document = problem(response, 400, "invalid_dataset")
    assert {fault["code"] for fault in document["errors"]} == {"unknown_class", "missing_class"}
