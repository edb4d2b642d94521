"""A newcomer's whole use of trees over HTTP: a mixed table, two teachers, records asked and explained."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import numpy as np
import pytest

pytestmark = pytest.mark.long

Json = dict[str, Any]
Call = Callable[..., Any]

FOREST, BOOSTED = "forest_parcels", "boosted_parcels"


def parcel(k: int) -> Json:
    """Its class is a rule of its weight and its depot, one for heavy, one for fragile, one for the rest."""
    rng = np.random.default_rng(k)
    weight, depot = round(float(rng.uniform(0, 30)), 2), str(rng.choice(["north", "south", "east"]))
    known = None if k % 11 == 0 else weight
    kind = "heavy" if weight > 20 and depot != "south" else "fragile" if weight < 4 else "plain"
    return {"weight": known, "depot": depot, "paid": bool(k % 2), "kind": kind}


def table(first: int, last: int) -> bytes:
    lines = ["weight,depot,paid,kind"]
    for k in range(first, last):
        one = parcel(k)
        weight = "" if one["weight"] is None else one["weight"]
        lines.append(f"{weight},{one['depot']},{str(one['paid']).lower()},{one['kind']}")
    return "\n".join(lines).encode()


@pytest.fixture(scope="module")
def jobs(http: httpx.Client, upload: Call, follow: Call) -> dict[str, Json]:
    dataset = upload(table(0, 600), "csv", label_column="kind")["id"]
    teachers = {
        FOREST: {"method": "forest", "trees": 60},
        BOOSTED: {"method": "boosting", "iterations": 30, "min_leaf": 5},
    }
    ended = {}
    for model, teacher in teachers.items():
        hyperparameters = {"teacher": teacher, "evaluation": {"test_fraction": 0.3}}
        body = {"dataset_id": dataset, "model": model, "hyperparameters": hyperparameters}
        response = http.post("/v1/training-jobs", json=body)
        assert response.status_code == 202, response.text
        ended[model] = follow(response.json())
        assert ended[model]["state"] == "succeeded", ended[model]["error"]
    return ended


@pytest.mark.parametrize("model", [FOREST, BOOSTED])
def test_students_of_trees_are_as_good_as_their_teacher(
    http: httpx.Client, jobs: dict[str, Json], model: str
):
    job = jobs[model]
    assert job["hyperparameters"]["student"]["method"] == "trees"
    path = f"/v1/training-jobs/{job['id']}/students"
    by_method = {
        method: {row["label"]: row["metrics"] for row in rows["data"]}
        for method in ("trees", "teacher")
        for rows in [http.get(path, params={"method": method}).json()]
    }
    assert set(by_method["trees"]) == {"heavy", "fragile", "plain"}
    for label, metrics in by_method["trees"].items():
        assert metrics["f1"] > by_method["teacher"][label]["f1"] - 0.05 > 0.7
        assert metrics["calibration"] == "sigmoid"
        assert metrics["brier"] < metrics["base_brier"]


@pytest.mark.parametrize("model", [FOREST, BOOSTED])
def test_records_are_asked_and_explained_by_exact_sums(http: httpx.Client, jobs: dict[str, Json], model: str):
    records = [{k: v for k, v in parcel(k).items() if k != "kind"} for k in range(700, 760)]
    truth = np.array([parcel(k)["kind"] == "heavy" for k in range(700, 760)])
    path = f"/v1/models/{model}/classes/heavy:query"
    response = http.post(path, json={"records": records, "explain": "columns"})
    assert response.status_code == 200, response.text
    results = response.json()["results"]
    assert np.mean(np.array([one["match"] for one in results]) == truth) > 0.85
    for record, one in zip(records, results, strict=True):
        columns = {entry["name"]: entry["effect"] for entry in one["columns"]}
        assert set(columns) == set(record)
        assert one["exact"] is True
        assert one["base"] + sum(columns.values()) == pytest.approx(one["score"], abs=1e-9)
    single = http.post(path, json={"record": records[0]}).json()
    assert single["score"] == results[0]["score"]
    heavy = next(one for one, is_heavy in zip(results, truth, strict=True) if is_heavy and one["match"])
    assert {entry["name"] for entry in heavy["columns"][:2]} == {"weight", "depot"}


def test_the_whole_forest_answers_for_all_classes(http: httpx.Client, jobs: dict[str, Json]):
    records = [{k: v for k, v in parcel(k).items() if k != "kind"} for k in range(700, 760)]
    best = http.post(f"/v1/models/{FOREST}:predict", json={"records": records}).json()["results"]
    truth = [parcel(k)["kind"] for k in range(700, 760)]
    assert np.mean([one["label"] == kind for one, kind in zip(best, truth, strict=True)]) > 0.85


def test_trees_need_a_teacher_of_trees(http: httpx.Client, jobs: dict[str, Json], problem: Call):
    wrong = {"teacher": {"method": "ssvm"}, "student": {"method": "trees"}}
    body = {"dataset_id": jobs[FOREST]["dataset_id"], "model": FOREST, "hyperparameters": wrong}
    found = problem(http.post("/v1/training-jobs", json=body), 422, "invalid_body")
    assert [fault["field"] for fault in found["errors"]] == ["hyperparameters"]
