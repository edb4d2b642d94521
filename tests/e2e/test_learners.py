"""A newcomer's whole use of each learner over HTTP: upload, train, look, ask, explain, and be refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import httpx
import numpy as np
import pytest

from core.students.auto import CANDIDATES

Json = dict[str, Any]
Call = Callable[..., Any]

LABELS = ["setosa", "versicolor", "virginica"]
FAMILIES = ["gsvm", "odm", "gpc"]
QUICK_SEARCH = {"threshold": {"rule": "f1"}, "calibration": {"kind": "sigmoid"}}
FOLDS = {"threshold": {"rule": "f1", "folds": 3}, "calibration": {"kind": "sigmoid"}}


@dataclass(frozen=True)
class Case:
    """A learner in a job on iris, and how good it has to be on the test part.

    hyperparameters: of the job. method: of the students. columns: those of a query; others are privileged.
    arrays: further ones of the file. told: hyper-parameters that the job shows. label: the class that is
    asked. f1: least F of each class. right: least share of right answers about that class. predicted: least
    share of right answers of the teacher for all classes. gated: whether the gate is the teacher's.
    """

    hyperparameters: Json
    method: str
    columns: int = 4
    arrays: Json = field(default_factory=dict)
    told: Json = field(default_factory=dict)
    label: str = "setosa"
    f1: tuple[float, float, float] = (0.8, 0.8, 0.8)
    right: float = 1.0
    predicted: float = 0.0
    gated: bool = True


CASES = {
    "odm": Case(
        {
            "features": {"kind": "kernel"},
            "teacher": {"C": 100},
            "student": {"method": "odm", "gate": "teacher"},
            "tuning": {"grid": {"C": [10, 1000]}, "folds": 3},
            "evaluation": {"baselines": ["svm"]},
            **QUICK_SEARCH,
        },
        "odm",
        predicted=0.85,
    ),
    "mcodm": Case(
        {
            "features": {"kind": "nystroem", "n_components": 40},
            "teacher": {"method": "mcodm", "C": 1000, "band": 0.4},
            "student": {"method": "polytope", "pieces": 2},
            **QUICK_SEARCH,
        },
        "polytope",
        told={"teacher": {"method": "mcodm", "C": 1000, "band": 0.4, "excess": 0.2}},
        predicted=0.85,
    ),
    "svm+": Case(
        {
            "features": {"kind": "kernel"},
            "teacher": {"C": 100},
            "student": {"method": "svm+", "privileged": "columns", "C": 1e4},
            **FOLDS,
        },
        "svm+",
        columns=2,
        told={"student": {"privileged": "columns"}},
        f1=(0.9, 0.0, 0.0),
        right=0.9,
        gated=False,
    ),
    "multiview": Case(
        {
            "teacher": {"C": 100},
            "student": {"method": "multiview", "measure": "roc_area", "C": 1e4},
            **FOLDS,
        },
        "multiview",
        arrays={"views": np.array([[0, 2], [2, 4]]), "view_names": np.array(["sepal", "petal"])},
        told={"student": {"measure": "roc_area"}},
        f1=(0.95, 0.0, 0.0),
        right=0.95,
        gated=False,
    ),
    "interpolation": Case(
        {
            "features": {"kind": "nystroem", "n_components": 40},
            "teacher": {"method": "interpolation", "jitter": 0.01},
            "student": {"method": "gsvm"},
            "tuning": {"grid": {"C": [10, 1000], "margins": [1], "floors": [0.3]}, "folds": 3},
            "evaluation": {"baselines": ["svm"]},
            **QUICK_SEARCH,
        },
        "gsvm",
        told={"teacher": {"method": "interpolation", "gamma": None}},
        predicted=0.9,
    ),
    "auto": Case(
        {
            "features": {"kind": "kernel"},
            "teacher": {"C": 100},
            "student": {"method": "auto", "families": FAMILIES},
            "threshold": {"folds": 3},
        },
        "auto",
        label="virginica",
        right=0.85,
        gated=False,
    ),
}


@dataclass(frozen=True)
class Trained:
    """A case, its job and the model that answers."""

    case: Case
    job: Json
    model: str

    @property
    def path(self) -> str:
        return f"/v1/training-jobs/{self.job['id']}/students"

    def students(self, http: httpx.Client, method: str) -> list[Json]:
        rows: list[Json] = http.get(self.path, params={"method": method}).json()["data"]
        return rows


@pytest.fixture(scope="module")
def trained_case(upload: Call, train: Call, npz: Call, parts: Json) -> Callable[[str], Trained]:
    """Trains a case once."""

    @cache
    def run(name: str) -> Trained:
        case, model = CASES[name], f"{name.rstrip('+')}_flowers"
        arrays = parts | case.arrays
        if case.columns < 4:
            arrays |= {f"X_{part}": parts[f"X_{part}"][:, : case.columns] for part in ("train", "test")}
            arrays["privileged_train"] = parts["X_train"][:, case.columns :]
        dataset = upload(npz(**arrays), "npz")
        summary, views = dataset["summary"], list(case.arrays.get("view_names", []))
        assert (summary.get("privileged") or {}).get("columns", 0) == 4 - case.columns
        assert [view["name"] for view in summary.get("views") or []] == views
        return Trained(case, train(dataset["id"], model, **case.hyperparameters), model)

    return run


@pytest.fixture(
    params=[pytest.param(name, marks=[pytest.mark.long] if name == "auto" else []) for name in CASES]
)
def trained(request: pytest.FixtureRequest, trained_case: Callable[[str], Trained]) -> Trained:
    return trained_case(request.param)


def test_the_job_shows_what_was_trained_and_how_good_it_is(http: httpx.Client, trained: Trained):
    case = trained.case
    for part, told in case.told.items():
        assert told.items() <= trained.job["hyperparameters"][part].items()
    for method in {case.method, "teacher"} if case.predicted else {case.method}:
        rows = trained.students(http, method)
        assert [row["label"] for row in rows] == LABELS
        for row, least in zip(rows, case.f1, strict=True):
            assert row["metrics"]["f1"] > least
            assert row["metrics"]["auc"] > 0.7
    grid = case.hyperparameters.get("tuning", {}).get("grid", {})
    for row in trained.students(http, case.method) if grid else ():
        assert row["chosen"]["C"] in grid["C"]
        assert row["metrics"]["brier"] < row["metrics"]["base_brier"]


def test_the_published_students_answer_and_explain(http: httpx.Client, trained: Trained, parts: Json):
    case = trained.case
    rows, truth = parts["X_test"][:, : case.columns].tolist(), parts["y_test"] == case.label
    body = {"rows": rows, "explain": True}
    response = http.post(f"/v1/models/{trained.model}/classes/{case.label}:query", json=body)
    assert response.status_code == 200, response.text
    results = response.json()["results"]
    assert np.mean([result["match"] for result in results] == truth) >= case.right
    for result in results:
        if "calibration" in case.hyperparameters:
            assert 0.0 <= result["probability"] <= 1.0
            # Where the teacher is privileged information or another view, it is no gate.
            assert case.gated or result["gate"] == 0.0
            assert result["gate"] - result["rejection"] == pytest.approx(result["score"], abs=1e-9)
    if case.predicted:
        best = http.post(f"/v1/models/{trained.model}:predict", json={"rows": rows}).json()["results"]
        right = [one["label"] == label for one, label in zip(best, parts["y_test"], strict=True)]
        assert np.mean(right) > case.predicted


def test_a_search_of_an_odm_tries_the_points_of_its_grid(
    http: httpx.Client, trained_case: Callable[[str], Trained]
):
    rows = trained_case("odm").students(http, "odm")
    assert {row["chosen"]["points"] for row in rows} == {8}


def test_the_gate_of_an_interpolating_teacher_is_near_1_for_its_rows(
    http: httpx.Client, trained_case: Callable[[str], Trained], parts: Json
):
    model = trained_case("interpolation").model
    body = {"rows": parts["X_test"].tolist(), "explain": True}
    results = http.post(f"/v1/models/{model}/classes/setosa:query", json=body).json()["results"]
    gates, truth = np.array([result["gate"] for result in results]), parts["y_test"] == "setosa"
    assert gates[truth].min() > gates[~truth].max()


@pytest.mark.long
def test_each_class_gets_the_best_family_and_the_job_says_what_it_was_compared_with(
    http: httpx.Client, trained_case: Callable[[str], Trained]
):
    trained = trained_case("auto")
    for row in trained.students(http, "auto"):
        assert row["chosen"]["family"] in FAMILIES
        assert row["chosen"]["second_family"] != row["chosen"]["family"]
        assert row["chosen"]["score"] >= row["chosen"]["second_score"]
        points = http.get(f"{trained.path}/{row['class_index']}/auto/trace").json()["points"]
        names = [spec.name for spec in CANDIDATES if spec.name in FAMILIES]
        assert [one["family"] for one in points] == names
        assert max(one["f1"] for one in points) == row["chosen"]["score"]


@pytest.mark.parametrize(
    ("part", "wrong", "at"),
    [
        ("student", {"method": "odm", "band": 1}, ".band"),
        ("teacher", {"method": "mcodm", "band": 1}, ".band"),
        ("student", {"method": "svm+", "kernel": "poly"}, ".kernel"),
        ("student", {"method": "multiview", "measure": "f2"}, ".measure"),
        ("student", {"method": "auto", "families": ["forest"]}, ""),
        ("student", {"method": "gpc", "n_landmarks": 1}, ".n_landmarks"),
        ("student", {"method": "gpc", "privileged": "teacher"}, ".privileged"),
        ("student", {"method": "gpc+", "privileged": "labels"}, ".privileged"),
        ("teacher", {"method": "interpolation", "jitter": 0}, ".jitter"),
        ("teacher", {"method": "interpolation", "C": 1}, ".C"),
        ("teacher", {"method": "interpolation", "scaling": "idf"}, ".scaling"),
        ("teacher", {"method": "forest", "trees": 0}, ".trees"),
        ("teacher", {"method": "boosting", "leaves": 1}, ".leaves"),
        ("student", {"method": "trees", "rivals": -1}, ".rivals"),
    ],
)
def test_a_wrong_hyper_parameter_is_named(
    http: httpx.Client, flowers_data: Json, problem: Call, part: str, wrong: Json, at: str
):
    body = {"dataset_id": flowers_data["id"], "model": "never", "hyperparameters": {part: wrong}}
    document = problem(http.post("/v1/training-jobs", json=body), 422, "invalid_body")
    assert [fault["field"] for fault in document["errors"]] == [f"hyperparameters.{part}{at}"]
    if "families" in wrong:
        assert "families must be of gsvm" in document["errors"][0]["message"]


def test_students_of_privileged_columns_need_a_data_set_with_some(
    http: httpx.Client, flowers_data: Json, problem: Call
):
    hyperparameters = CASES["svm+"].hyperparameters
    body = {"dataset_id": flowers_data["id"], "model": "never", "hyperparameters": hyperparameters}
    refused = problem(http.post("/v1/training-jobs", json=body), 422, "no_privileged")
    assert "svm+ needs privileged columns" in refused["detail"]
