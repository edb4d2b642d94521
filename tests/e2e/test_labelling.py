"""A newcomer's whole use of labelling over HTTP: upload rows without labels, train, look, correct, ask."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import numpy as np
import pytest

pytestmark = pytest.mark.long

Json = dict[str, Any]
Call = Callable[..., Any]

ODMC = {"method": "odmc", "clusters": 3}


@pytest.fixture(scope="module")
def unlabelled(upload: Call, csv: Call, iris: tuple[Any, Any]) -> Json:
    return upload(csv(iris[0], [""] * 150, "a,b,c,d,kind"), unlabelled="accept")


@pytest.fixture(scope="module")
def clustered(train: Call, unlabelled: Json) -> Json:
    return train(unlabelled["id"], "found_flowers", labelling=ODMC)


@pytest.fixture(scope="module")
def labels(http: httpx.Client, clustered: Json) -> list[Json]:
    response = http.get(f"/v1/training-jobs/{clustered['id']}/labels", params={"limit": 1000})
    rows: list[Json] = response.json()["data"]
    return rows


def names_of(labels: list[Json], truth: Any) -> dict[str, str]:
    """The species that most rows of each cluster are of."""
    found = np.array([one["label"] for one in labels])
    names = {}
    for cluster in np.unique(found):
        species, counts = np.unique(truth[found == cluster], return_counts=True)
        names[str(cluster)] = str(species[counts.argmax()])
    return names


def test_rows_without_any_label_are_a_data_set(unlabelled: Json):
    assert unlabelled["classes"] == []
    assert unlabelled["summary"]["unlabelled_rows"] == 150
    assert "unlabelled_rows" in [one["code"] for one in unlabelled["summary"]["warnings"]]


def test_they_are_trained_with_a_labelling_only(http: httpx.Client, unlabelled: Json, problem: Call):
    body = {"dataset_id": unlabelled["id"], "model": "found_flowers"}
    problem(http.post("/v1/training-jobs", json=body), 422, "no_labels")
    for wrong in ({"method": "ssodm"}, None):
        response = http.post("/v1/training-jobs", json=body | {"hyperparameters": {"labelling": wrong}})
        problem(response, 422, "nothing_to_label" if wrong else "no_labels")
    held_out = {"labelling": ODMC, "evaluation": {"test_fraction": 0.3}}
    response = http.post("/v1/training-jobs", json=body | {"hyperparameters": held_out})
    problem(response, 422, "no_labels")


def test_the_job_shows_how_it_labelled(http: httpx.Client, clustered: Json, labels: list[Json]):
    shown = clustered["labelling"]
    assert shown["rows"] == shown["labelled"] == sum(shown["class_counts"].values()) == 150
    assert list(shown["class_counts"]) == ["cluster 1", "cluster 2", "cluster 3"]
    assert shown["objective"] > 0
    events = http.get(f"/v1/training-jobs/{clustered['id']}/events").json()["data"]
    stages = [one["data"]["stage"] for one in events if one["type"] == "stage_started"]
    assert stages.index("labelling") < stages.index("teacher")
    assert "labels_stored" in [one["type"] for one in events]
    assert [one["row"] for one in labels] == list(range(150))


def test_labels_come_by_certainty_and_class(http: httpx.Client, clustered: Json, labels: list[Json]):
    path = f"/v1/training-jobs/{clustered['id']}/labels"
    page = http.get(path, params={"order": "certainty", "limit": 20}).json()
    certainties = [one["certainty"] for one in page["data"]]
    assert certainties == sorted(one["certainty"] for one in labels)[:20]
    assert page["has_more"]
    after = http.get(path, params={"order": "certainty", "limit": 20, "after": 20}).json()["data"]
    assert after[0]["certainty"] >= certainties[-1]
    own = http.get(path, params={"label": "cluster 2", "limit": 1000}).json()["data"]
    assert own == [one for one in labels if one["label"] == "cluster 2"]


def test_corrected_labels_are_a_data_set_that_trains_a_better_model(
    http: httpx.Client, train: Call, clustered: Json, labels: list[Json], iris: tuple[Any, Any]
):
    X, truth = iris
    names = names_of(labels, truth)
    wrong = [one["row"] for one in labels if names[one["label"]] != truth[one["row"]]]
    assert len(wrong) < 40
    body = {
        "rename": names,
        "corrections": [{"row": row, "label": str(truth[row])} for row in wrong],
        "name": "iris by hand",
    }
    path = f"/v1/training-jobs/{clustered['id']}/labels"
    response = http.post(path, json=body)
    assert response.status_code == 201, response.text
    corrected = response.json()
    assert corrected["classes"] == ["setosa", "versicolor", "virginica"]
    assert corrected["summary"]["class_counts"] == dict.fromkeys(corrected["classes"], 50)
    assert corrected["summary"]["unlabelled_rows"] == 0
    again = http.post(path, json=body)
    assert (again.status_code, again.json()["id"]) == (200, corrected["id"])
    # Its classes are others than those of the version of clusters, which answers until now.
    train(
        corrected["id"],
        "found_flowers",
        features={"kind": "kernel"},
        teacher={"C": 1e4},
        allow_schema_change=True,
    )
    found = http.post("/v1/models/found_flowers:predict", json={"rows": X.tolist()}).json()["results"]
    assert np.mean([one["label"] for one in found] == truth) > 0.9


def test_a_few_labels_by_hand_label_the_rest_again(
    http: httpx.Client, train: Call, clustered: Json, iris: tuple[Any, Any]
):
    X, truth = iris
    rows = [*range(5), *range(50, 55), *range(100, 105)]
    body = {"keep": "given", "corrections": [{"row": row, "label": str(truth[row])} for row in rows]}
    few = http.post(f"/v1/training-jobs/{clustered['id']}/labels", json=body).json()
    assert few["summary"]["unlabelled_rows"] == 135
    job = train(few["id"], "few_flowers", labelling={"method": "ssodm"}, student={"method": "svm"})
    labels = http.get(f"/v1/training-jobs/{job['id']}/labels", params={"limit": 1000}).json()["data"]
    assert np.mean([one["label"] for one in labels] == truth) > 0.8
    assert [one["row"] for one in labels if one["certainty"] is None] == rows
    answer = http.post("/v1/models/few_flowers/classes/setosa:query", json={"rows": X.tolist()}).json()
    assert np.mean([one["match"] for one in answer["results"]] == (truth == "setosa")) > 0.95


def test_wrong_corrections_are_named(http: httpx.Client, clustered: Json, flowers: Json, problem: Call):
    path = f"/v1/training-jobs/{clustered['id']}/labels"
    for body, code in (
        ({"corrections": [{"row": 150, "label": "x"}]}, "unknown_row"),
        ({"rename": {"cluster 9": "x"}}, "unknown_class"),
        ({"rename": {f"cluster {k}": "x" for k in (1, 2, 3)}}, "class_too_small"),
        ({"corrections": [{"row": 0, "label": "alone"}]}, "class_too_small"),
    ):
        problem(http.post(path, json=body), 400, code)
    problem(http.get(f"/v1/training-jobs/{flowers['id']}/labels"), 404, "labels_not_found")
