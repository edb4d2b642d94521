"""A teacher and a student that are defined in this file alone, used over HTTP and on the command line.

The service loads this module as a plug-in of its operator (``STMS_PLUGINS=test_new_learner``): no file of
``core`` or ``app`` knows the two learners.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar

import httpx
import numpy as np
import pytest

from core.errors import InvalidProblem
from core.packed import LinearForm
from core.parameters import Doc, Ge, Gt, Le, check_parameters
from core.registry import Registry
from core.students.base import Decision, Problem, Student, StudentSpec
from core.teachers.base import Task, Teacher, TeacherSpec
from tests.system.deployment import QUICK_SOLVERS, Deployment

pytestmark = pytest.mark.long

Json = dict[str, Any]
ROOT = Path(__file__).parents[2]
STMS = Path(sys.executable).with_name("stms")


@dataclass(frozen=True, slots=True)
class NearestMean(TeacherSpec):
    """Nearest class mean: the score of a class is −‖φ − mean‖²/2 up to what all classes share."""

    name: ClassVar[str] = "nearest-mean"

    shrinkage: Annotated[
        float, Ge(0), Le(1), Doc("Part of the way that means move to the mean of all rows.")
    ] = 0.0

    def __post_init__(self) -> None:
        check_parameters(self, "teacher")

    def fit(self, task: Task, run: Any, start: Teacher | None = None) -> Teacher:
        # Imported here, as the API process reads the specifications and must not load SciPy.
        from core.solvers.solution import Summary
        from core.teachers.linear import LinearTeacher

        features = np.asarray(task.examples.features, dtype=np.float64)
        means = np.stack([features[task.labels == code].mean(axis=0) for code in range(task.n_classes)])
        means += self.shrinkage * (features.mean(axis=0) - means)
        weights = means.copy()
        # The last feature is the constant 1: it carries −‖mean‖²/2 of the others.
        weights[:, -1] = -0.5 * (means[:, :-1] ** 2).sum(axis=1)
        return LinearTeacher(weights, Summary(0.0, None, None, 1, 0.0, None))

    def restore(self, arrays: Any, n_classes: int, n_features: int, summary: Any) -> Teacher:
        from core.teachers.linear import LinearTeacher

        return LinearTeacher.restore(arrays, n_classes, n_features, summary)


@dataclass(frozen=True, slots=True)
class RidgeSpec(StudentSpec):
    """Ridge regression from the features to the class, +1 or −1, shifted by a part of the teacher's score."""

    name: ClassVar[str] = "ridge"

    alpha: Annotated[float, Gt(0), Le(1e6), Doc("Weight of the penalty ‖v‖².")] = 1.0
    trust: Annotated[float, Ge(0), Le(1), Doc("Part of the teacher's weights that is added.")] = 0.1

    def __post_init__(self) -> None:
        check_parameters(self, "student")

    def fit(self, problem: Problem, run: Any) -> Ridge:
        from core.solvers.solution import Summary

        features = np.asarray(problem.examples.features, dtype=np.float64)
        penalised = features.T @ features + self.alpha * np.eye(features.shape[1])
        weights = np.linalg.solve(penalised, features.T @ problem.signs)
        residual = float(((features @ weights - problem.signs) ** 2).sum())
        if problem.gate_weights is not None:
            weights = weights + self.trust * problem.gate_weights
        return Ridge(weights, problem.examples.feature_map, Summary(residual, None, None, 1, 0.0, None))

    def grid(self, choice: Any) -> tuple[RidgeSpec, ...]:
        return tuple(replace(self, alpha=alpha) for alpha in (0.1, 1.0, 10.0))


@dataclass(frozen=True, slots=True)
class Ridge(Student):
    weights: Any
    feature_map: Any
    summary: Any

    def scores(self, examples: Any) -> Any:
        return np.asarray(examples.features, dtype=np.float64) @ self.weights

    def pack(self) -> Decision:
        basis, coef, intercept = self.feature_map.fold(self.weights[np.newaxis])
        return Decision(basis, LinearForm(coef[0], float(intercept[0]), np.zeros(coef.shape[1]), 0.0))


def register(teachers: Registry[TeacherSpec], students: Registry[StudentSpec]) -> None:
    """What ``STMS_PLUGINS`` calls in every process of the service."""
    teachers.register(NearestMean)
    students.register(RidgeSpec)


HYPERPARAMETERS = {
    "features": {"kind": "nystroem", "n_components": 30},
    "teacher": {"method": "nearest-mean", "shrinkage": 0.05},
    "student": {"method": "ridge", "trust": 0.05},
    "tuning": {"folds": 3, "strategy": "exhaustive"},
    "threshold": {"rule": "f1"},
    "calibration": {"kind": "sigmoid"},
    "evaluation": {"baselines": ["svm"]},
}


@pytest.fixture(scope="module")
def parts() -> dict[str, Any]:
    from sklearn.datasets import load_iris
    from sklearn.model_selection import train_test_split

    X, y = load_iris(return_X_y=True)
    labels = np.array(["setosa", "versicolor", "virginica"])[y]
    X_train, X_test, y_train, y_test = train_test_split(
        X, labels, test_size=0.3, random_state=0, stratify=labels
    )
    return {"X_train": X_train, "y_train": y_train, "X_test": X_test, "y_test": y_test}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """`stms serve` on SQLite, which loads this file as its plug-in."""
    folder = tmp_path_factory.mktemp("service")
    (folder / "tmp").mkdir()
    settings = QUICK_SOLVERS | {
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), str(ROOT)]),
        "STMS_PLUGINS": "test_new_learner",
        "STMS_REQUIRE_KEYS": "false",
        "TMPDIR": str(folder / "tmp"),
    }
    with Deployment(folder, serve=True, settings=settings, is_clean=True) as started:
        yield started


@pytest.fixture(scope="module")
def environment(service: Deployment) -> dict[str, str]:
    """Of the service and of commands beside it."""
    return service.environ


@pytest.fixture(scope="module")
def address(service: Deployment) -> str:
    return service.url


@pytest.fixture(scope="module")
def http(service: Deployment) -> Iterator[httpx.Client]:
    with service.client() as client:
        yield client


@pytest.fixture(scope="module")
def job(http: httpx.Client, npz: Any, parts: dict[str, Any]) -> Json:
    """The ended job that trained, tuned, calibrated and published the two learners over HTTP."""
    response = http.post("/v1/datasets", content=npz(**parts), params={"format": "npz", "name": "iris"})
    assert response.status_code == 201, response.text
    body = {"dataset_id": response.json()["id"], "model": "flowers", "hyperparameters": HYPERPARAMETERS}
    response = http.post("/v1/training-jobs", json=body)
    assert response.status_code == 202, response.text
    job: Json = response.json()
    deadline = time.monotonic() + 300.0
    while job["state"] in {"queued", "running"}:
        assert time.monotonic() < deadline
        time.sleep(0.05)
        job = http.get(f"/v1/training-jobs/{job['id']}").json()
    assert job["state"] == "succeeded", job["error"]
    return job


def stms(environment: dict[str, str], *arguments: str) -> str:
    done = subprocess.run(
        [STMS, *arguments], env=environment | {"COLUMNS": "200"}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_job_says_which_learners_it_trained_with_all_their_hyper_parameters(job: Json):
    told = job["hyperparameters"]
    assert told["teacher"] == {"model": None, "method": "nearest-mean", "shrinkage": 0.05}
    assert told["student"] == {"method": "ridge", "alpha": 1.0, "trust": 0.05}


def test_the_student_was_tuned_calibrated_and_measured(http: httpx.Client, job: Json):
    path = f"/v1/training-jobs/{job['id']}/students"
    rows = http.get(path, params={"method": "ridge"}).json()["data"]
    assert [row["label"] for row in rows] == ["setosa", "versicolor", "virginica"]
    for row in rows:
        assert row["chosen"]["alpha"] in (0.1, 1.0, 10.0)
        assert row["chosen"]["points"] == 3
        assert row["metrics"]["calibration"] == "sigmoid"
        assert row["metrics"]["brier"] < row["metrics"]["base_brier"]
        assert row["metrics"]["f1"] > 0.8
    assert {row["state"] for row in http.get(path, params={"method": "svm"}).json()["data"]} == {"succeeded"}
    trace = http.get(f"{path}/1/ridge/trace").json()
    assert sorted(point["alpha"] for point in trace["points"]) == [0.1, 1.0, 10.0]
    assert all({"score", "folds", "standard_error", "trust"} <= set(point) for point in trace["points"])


def test_the_published_student_answers_queries(http: httpx.Client, job: Json, parts: dict[str, Any]):
    rows, labels = parts["X_test"].tolist(), parts["y_test"]
    response = http.post("/v1/models/flowers/classes/setosa:query", json={"rows": rows})
    assert response.status_code == 200, response.text
    results = response.json()["results"]
    assert [result["match"] for result in results] == (labels == "setosa").tolist()
    assert all(0.0 <= result["probability"] <= 1.0 for result in results)
    one = http.post("/v1/models/flowers/classes/setosa:query", json={"x": rows[0]}).json()
    assert one["score"] == pytest.approx(results[0]["score"], rel=1e-9)
    best = http.post("/v1/models/flowers:predict", json={"rows": rows}).json()["results"]
    assert np.mean([result["label"] == label for result, label in zip(best, labels, strict=True)]) > 0.8


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({"student": {"method": "ridge", "alpha": 0}}, "hyperparameters.student.alpha"),
        ({"student": {"method": "ridge", "C": 1}}, "hyperparameters.student.C"),
        ({"student": {"method": "lasso"}}, "hyperparameters.student.method"),
        ({"teacher": {"method": "nearest-mean", "shrinkage": 2}}, "hyperparameters.teacher.shrinkage"),
        ({"evaluation": {"baselines": ["lasso"]}}, "hyperparameters.evaluation.baselines.0"),
    ],
)
def test_a_wrong_hyper_parameter_of_the_new_learners_is_named(
    http: httpx.Client, job: Json, changed: Json, field: str
):
    body = {"dataset_id": job["dataset_id"], "model": "flowers", "hyperparameters": changed}
    response = http.post("/v1/training-jobs", json=body)
    assert response.status_code in {400, 422}, response.text
    assert [error["field"] for error in response.json()["errors"]] == [field]


def test_the_api_documents_the_new_learners(http: httpx.Client):
    schemas = http.get("/openapi.json").json()["components"]["schemas"]
    ridge = schemas["RidgeSpecStudentParameters"]["properties"]
    assert ridge["alpha"]["description"] == "Weight of the penalty ‖v‖²."
    assert (ridge["alpha"]["exclusiveMinimum"], ridge["alpha"]["maximum"]) == (0, 1e6)
    assert ridge["method"]["const"] == "ridge"
    assert "shrinkage" in schemas["NearestMeanTeacherParameters"]["properties"]
    assert "C" in schemas["StudentParameters"]["properties"]


def test_the_command_line_trains_lists_and_documents_them(
    environment: dict[str, str], address: str, job: Json, npz: Any, parts: dict[str, Any], tmp_path: Path
):
    shown = stms(environment, "hyperparameters")
    assert "student.alpha = 1.0  (> 0 and ≤ 1000000)" in shown
    assert "teacher.shrinkage = 0.0  (≥ 0 and ≤ 1)" in shown
    page = tmp_path / "page.md"
    page.write_text((ROOT / "docs" / "hyperparameters.md").read_text(encoding="utf-8"), encoding="utf-8")
    stms(environment, "hyperparameters", "--update", str(page))
    assert "| `student.alpha` | `1.0` |" in page.read_text(encoding="utf-8")

    file = tmp_path / "iris.npz"
    file.write_bytes(npz(**parts))
    sets = ["student.method=ridge", "student.alpha=2", "teacher.method=nearest-mean"]
    options = [part for assignment in sets for part in ("--set", assignment)]
    stms(environment, "train", str(file), "--model", "petals", "--server", address, *options)
    model = json.loads(stms(environment, "models", "show", "petals", "--server", address, "--json"))
    assert model
    listed = stms(environment, "jobs", "students", job["id"], "--server", address)
    assert "ridge" in listed
    assert "alpha" in listed


def test_without_the_plug_in_the_command_line_refuses_the_learner_by_name(
    environment: dict[str, str], tmp_path: Path
):
    plain = {name: value for name, value in environment.items() if name != "STMS_PLUGINS"}
    file = tmp_path / "iris.csv"
    file.write_text("1,2,a\n2,1,b\n", encoding="utf-8")
    command = [STMS, "train", str(file), "--model", "m", "--set", "student.method=ridge"]
    done = subprocess.run(command, env=plain, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "student.method" in done.stderr


@pytest.mark.parametrize("name", ["no_such_module", "json"])
def test_a_plug_in_that_cannot_be_loaded_is_named(environment: dict[str, str], name: str):
    done = subprocess.run(
        [STMS, "version"],
        env=environment | {"STMS_PLUGINS": name},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert f"STMS_PLUGINS names '{name}'" in done.stderr + done.stdout


def test_a_name_that_is_taken_or_unusable_is_refused():
    registry: Registry[StudentSpec] = Registry("student", RidgeSpec)
    with pytest.raises(InvalidProblem, match="ridge"):
        registry.register(RidgeSpec)

    class Shouting(RidgeSpec):
        name: ClassVar[str] = "RIDGE!"

    with pytest.raises(InvalidProblem, match="small letters"):
        registry.register(Shouting)
