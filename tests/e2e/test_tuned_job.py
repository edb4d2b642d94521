"""A job that tunes and calibrates, and one of compact students, over sockets."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest

pytestmark = pytest.mark.long

Json = dict[str, Any]
Call = Callable[..., Any]

GRID = {"C": [1, 10, 100, 1000], "margins": [0.3, 1.0], "floors": [0.3, 0.5]}
TUNED = {
    "features": {"kind": "nystroem", "n_components": 40},
    "tuning": {"grid": GRID, "folds": 4},
    "threshold": {"rule": "f1"},
    "evaluation": {"baselines": ["svm"]},
}
COMPACT = {
    "features": {"kind": "nystroem", "n_components": 40},
    "compact": {"n_landmarks": 6},
    "calibration": {"kind": "sigmoid"},
    "threshold": {"folds": 2},
    "classes": ["setosa"],
}


@pytest.fixture(scope="module")
def tuned(train: Call, flowers_data: Json) -> Json:
    return train(flowers_data["id"], "tuned_flowers", **TUNED)


@pytest.fixture(scope="module")
def compact(train: Call, flowers_data: Json) -> Json:
    return train(flowers_data["id"], "compact_flowers", **COMPACT)


def path_of(job: Json, *rest: str) -> str:
    return "/".join(["/v1/training-jobs", job["id"], *rest])


def students(http: httpx.Client, job: Json, method: str) -> list[Json]:
    return http.get(path_of(job, "students"), params={"method": method}).json()["data"]


def test_the_table_of_students_shows_what_was_chosen_and_how_far_to_trust_it(http, tuned):
    rows = students(http, tuned, "gsvm")
    assert [row["label"] for row in rows] == ["setosa", "versicolor", "virginica"]
    for row in rows:
        chosen = row["chosen"]
        assert chosen["C"] in GRID["C"]
        assert (chosen["margin"], chosen["floor"]) in [
            (m, f) for m in GRID["margins"] for f in GRID["floors"]
        ]
        assert 0.8 < chosen["score"] <= 1.0
        assert chosen["standard_error"] >= 0.0
        assert (chosen["points"], chosen["folds"], chosen["strategy"]) == (16, 4, "halving")
        assert row["metrics"]["brier"] < row["metrics"]["base_brier"]
        assert sum(each["count"] for each in row["metrics"]["reliability"]) == 45
    assert {row["chosen"]["points"] for row in students(http, tuned, "svm")} == {4}
    assert {row["chosen"] for row in students(http, tuned, "teacher")} == {None}


def test_a_trace_has_every_point_and_what_the_table_says(http, tuned):
    (row, *_) = students(http, tuned, "gsvm")
    response = http.get(path_of(tuned, "students", "0", "gsvm", "trace"))
    assert response.status_code == 200
    trace = response.json()
    assert {name: trace[name] for name in ("job_id", "class_index", "label", "method", "chosen")} == {
        "job_id": tuned["id"],
        "class_index": 0,
        "label": "setosa",
        "method": "gsvm",
        "chosen": row["chosen"],
    }
    points = {(point["C"], point["margin"], point["floor"]): point for point in trace["points"]}
    assert len(points) == 16
    best = points[row["chosen"]["C"], row["chosen"]["margin"], row["chosen"]["floor"]]
    assert (best["score"], best["folds"]) == (row["chosen"]["score"], 4)


@pytest.mark.parametrize(
    ("place", "code"),
    [
        (("0", "gsvm0"), "student_not_found"),
        (("3", "gsvm"), "student_not_found"),
        (("0", "teacher"), "trace_not_found"),
        (("-1", "gsvm"), "not_found"),
        (("4294967296", "gsvm"), "not_found"),
        (("0", "GSVM"), "not_found"),
        (("0", "a" * 17), "not_found"),
    ],
)
def test_a_missing_trace_is_not_found(http, problem, tuned, place, code):
    problem(http.get(path_of(tuned, "students", *place, "trace")), 404, code)


def test_a_job_that_did_not_tune_has_no_traces(http, problem, flowers):
    problem(http.get(path_of(flowers, "students", "0", "gsvm", "trace")), 404, "trace_not_found")
    problem(http.get("/v1/training-jobs/job_0/students/0/gsvm/trace"), 404, "job_not_found")
    assert {row["chosen"] for row in students(http, flowers, "gsvm")} == {None}


def test_only_trainers_see_a_trace(camera, stranger, problem, tuned):
    path = path_of(tuned, "students", "0", "gsvm", "trace")
    problem(camera.get(path), 403, "scope_required")
    problem(stranger.get(path), 401, "key_required")


def test_events_report_the_search(http, tuned):
    events = http.get(path_of(tuned, "events")).json()["data"]
    found = [event["data"] for event in events if event["type"] == "student_tuned"]
    assert {(data["label"], data["method"]) for data in found} == {
        (label, method) for label in ("setosa", "versicolor", "virginica") for method in ("gsvm", "svm")
    }
    assert all(len(json.dumps(data)) < 500 for data in found)
    stages = [event["data"]["stage"] for event in events if event["type"] == "stage_started"]
    assert stages[-2:] == ["tuning_teacher", "students"]


def test_a_search_for_everything_is_told_with_its_estimate_and_what_it_tried(
    http, train, flowers_data, parts
):
    hyperparameters = {"features": {}, "tuning": {"scope": "job"}, "student": {"method": "gsvm"}}
    job = train(flowers_data["id"], "searched_flowers", **hyperparameters)
    provenance = http.get(path_of(job)).json()["provenance"]
    search, features = provenance["search"], provenance["features"]
    assert set(search["tried"]) == {"maps", "teachers", "gsvm", "thresholds"}
    assert len(search["tried"]["maps"]) >= 17
    contest = search["contest"]
    assert contest["rows"] + contest["learnt_from"] == len(parts["y_train"])
    gain = contest["searched_f1"] - contest["automatic_f1"]
    assert (contest["taken"], gain > contest["standard_error"]) == ("automatic", False)
    assert "This is kept after a search" in features["reason"]
    events = http.get(path_of(job, "events")).json()["data"]
    stages = {one["data"]["stage"]: one["data"] for one in events if one["type"] == "stage_started"}
    assert stages["setting"]["expected_seconds"] > 0.0
    assert {"choice", "points", "contest", "teacher"} <= set(stages)
    (chosen,) = [one["data"] for one in events if one["type"] == "setting_chosen"]
    assert chosen["tried"] == sum(map(len, search["tried"].values()))
    assert chosen["students"] == search["students"]
    (student, *_) = students(http, job, "gsvm")
    assert student["chosen"] is None
    rows = parts["X_test"].tolist()
    answer = http.post("/v1/models/searched_flowers/classes/setosa:query", json={"rows": rows})
    assert [one["match"] for one in answer.json()["results"]] == (parts["y_test"] == "setosa").tolist()


def test_the_published_version_says_that_its_students_are_calibrated(http, tuned, compact):
    for job, method, calibrated in [(tuned, "gsvm", 3), (compact, "compact", 1)]:
        version = http.get(f"/v1/models/{job['model']}/versions/{job['version']}").json()
        assert version["method"] == method
        assert version["metrics"]["calibration"] == {"sigmoid": calibrated}
        assert 0.0 <= version["metrics"]["means"][method]["brier"] < 0.1


def test_compact_students_answer_queries(http, compact, parts):
    rows = parts["X_test"].tolist()
    answer = http.post("/v1/models/compact_flowers/classes/setosa:query", json={"rows": rows})
    assert answer.status_code == 200, answer.text
    matches = [result["match"] for result in answer.json()["results"]]
    assert matches == (parts["y_test"] == "setosa").tolist()
    (row, *_) = students(http, compact, "compact")
    assert (row["chosen"]["n_landmarks"], row["method"]) == (6, "compact")
    assert 0.0 < row["chosen"]["relative_cost"] < 1.0


def test_hyper_parameters_that_do_not_go_together_are_refused(http, problem, upload, flowers_data):
    def refused(dataset: Json, code: str | None, **hyperparameters: Any) -> Json:
        body = {"dataset_id": dataset["id"], "model": "m", "hyperparameters": hyperparameters}
        response = http.post("/v1/training-jobs", json=body)
        document = response.json()
        assert response.status_code == 422, document
        return problem(response, 422, code or document["code"])

    nothing = refused(flowers_data, None, compact={}, tuning={})
    assert "compact students have no grid" in nothing["errors"][0]["message"]
    both = refused(flowers_data, None, compact={"n_landmarks": 5, "relative_cost": 0.1})
    assert both["errors"][0]["field"] == "hyperparameters.compact"
    sparse = upload(b"a 1:1 2:3\na 1:2\nb 2:1\nb 3:1\n", "svmlight")
    assert refused(sparse, "compact_sparse", compact={})["errors"][0]["field"] == "hyperparameters.compact"
    assert (
        refused(sparse, "too_many_folds", tuning={})["errors"][0]["field"] == "hyperparameters.tuning.folds"
    )


def test_a_class_too_small_for_folds_fails_the_job_by_name(http, submit, follow, upload, csv, iris):
    labels = iris[1].copy()
    labels[:2] = "rare"
    data = upload(csv(iris[0], labels), name="rare flower")
    job = follow(submit(data["id"], "rare", tuning={}, evaluation={"test_fraction": 0.5}))
    assert job["state"] == "failed"
    assert job["error"]["code"] == "class_too_small"
    assert "'rare'" in job["error"]["message"]
