"""Versions that are trained again over HTTP, up to the queue."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from app.domain.entities import Json
from app.services.class_changes import change_classes
from app.services.curves import publish_thresholds
from app.settings import Settings
from app.store.blob_cache import BlobCache
from app.store.unit_of_work import Store

Check = Callable[..., dict[str, Any]]
SPEC: Json = {
    "student": {"method": "svm", "C": 7.0},
    "threshold": {"rule": "f1", "folds": 4},
    "evaluation": {"test_fraction": 0.25},
    "seed": 9,
    "classes": ["cat"],
}


@pytest.fixture
def dataset_id(client: Any) -> str:
    """Rows of cats and dogs with the columns of "pets"."""
    lines = [f"{i % 5},{i % 7},{i % 3},{'cat' if i % 2 else 'dog'}" for i in range(60)]
    content = "\n".join(["a,b,c,label", *lines]).encode()
    return str(client.post("/v1/datasets?format=csv", content=content).json()["id"])


@pytest.fixture
def spec(store: Store, pets: Any, dataset_id: str) -> Callable[..., None]:
    """Lets the job of version 1 have been submitted with these hyper-parameters, on the data set."""

    def change(**values: Any) -> None:
        with store.begin() as uow:
            uow.jobs.change(str(pets.job_id), spec=values, dataset_id=dataset_id)

    change(**SPEC)
    return change


@pytest.fixture
def again(client: Any, spec: Any) -> Callable[..., Any]:
    def ask(headers: dict[str, str] | None = None, **body: Any) -> Any:
        return client.post("/v1/models/pets/retrain", json=body, headers=headers)

    return ask


def test_a_version_is_trained_again_as_it_was(
    client: Any, again: Any, queue: Any, pets: Any, dataset_id: str
):
    answer = again()
    assert answer.status_code == 202, answer.text
    job = answer.json()
    assert answer.headers["location"] == f"/v1/training-jobs/{job['id']}"
    assert (job["state"], job["model"], job["dataset_id"]) == ("queued", "pets", dataset_id)
    said = job["hyperparameters"]
    assert (said["student"]["method"], said["student"]["C"]) == ("svm", 7.0)
    assert (said["threshold"]["rule"], said["threshold"]["folds"]) == ("f1", 4)
    assert (said["evaluation"]["test_fraction"], said["seed"], said["classes"]) == (0.25, 9, ["cat"])
    assert (said["like"], said["alias"], said["automatic"]) == ("pets@1", None, False)
    origin = {"model": "pets", "version": 1, "job_id": pets.job_id}
    assert job["provenance"]["retrained_from"] == origin
    assert job["provenance"]["like"] == "pets@1"
    assert job["warnings"] == []
    assert queue.enqueued == [(job["id"], f"{job['id']}.0")]
    assert client.get(answer.headers["location"]).json() == job


def test_another_data_set_an_alias_and_some_hyperparameters_are_its_own(client: Any, again: Any):
    other = client.post("/v1/datasets?format=csv", content=b"a,b,c,label\n" + b"1,2,3,cat\n2,1,3,dog\n" * 40)
    wanted = {"student": {"C": 3.0}, "threshold": {"folds": 3}, "seed": 1}
    job = again(
        **{"from": "latest"}, dataset_id=other.json()["id"], alias="candidate", hyperparameters=wanted
    ).json()
    said = job["hyperparameters"]
    assert job["dataset_id"] == other.json()["id"]
    assert (said["student"]["method"], said["student"]["C"]) == ("svm", 3.0)
    assert (said["threshold"]["rule"], said["threshold"]["folds"]) == ("f1", 3)
    assert (said["seed"], said["alias"]) == (1, "candidate")


def test_columns_that_only_the_version_had_are_warned_of(client: Any, again: Any, spec: Any):
    spec(inputs={"columns": {"d": {"kind": "number"}, "a": {"kind": "number"}}}, automatic=False)
    job = again(**{"from": 1}).json()
    assert list(job["hyperparameters"]["inputs"]["columns"]) == ["a"]
    given = again(hyperparameters={"inputs": {"columns": {"d": {"kind": "number"}}}})
    assert "no column 'd'" in given.json()["detail"]


def test_what_a_version_got_without_a_training_is_not_repeated(
    again: Any, store: Store, tmp_path: Path, dataset_id: str
):
    settings = Settings(data_dir=tmp_path)
    files = BlobCache.of(settings)
    publish_thresholds(store, files, settings, "pets", 1, {"cat": 0.5}, "me")
    renamed = {"cat": "Cat"}
    change_classes(store, files, settings, "pets", 2, rename=renamed, remove=["dog"], created_by="me")
    job = again(**{"from": 3}).json()
    assert job["hyperparameters"]["student"]["C"] == 7.0
    assert job["provenance"]["retrained_from"]["version"] == 3
    assert {one["code"] for one in job["warnings"]} == {"not_repeated"}
    thresholds, names, removed = (one["message"] for one in job["warnings"])
    assert "thresholds that were given for class 'cat' are not repeated" in thresholds
    assert "new names of class 'cat' are not repeated" in names
    assert "That class 'dog' had been taken away is not repeated" in removed
    [only] = again(**{"from": 2}).json()["warnings"]
    assert only["message"] == thresholds


def test_an_added_class_is_not_repeated(again: Any, store: Store, pets: Any):
    with store.begin() as uow:
        uow.jobs.change(str(pets.job_id), provenance={"added": ["cow", "pig"]})
    [warning] = again().json()["warnings"]
    assert "from which classes 'cow', 'pig' had been added" in warning["message"]


def test_the_same_idempotency_key_gives_the_same_job(client: Any, again: Any, problem: Check):
    headers = {"idempotency-key": "once"}
    first, second = again(headers), again(headers, **{"from": "latest"})
    assert first.json() == second.json()
    assert second.headers["idempotency-replayed"] == "true"
    problem(again(headers, alias="candidate"), 422, "idempotency_key_reused")


def test_versions_that_cannot_be_trained_again_are_refused(
    client: Any, again: Any, store: Store, pets: Any, problem: Check
):
    problem(client.post("/v1/models/cows/retrain", json={"from": 1}), 404, "version_not_found")
    problem(again(**{"from": 9}), 404, "version_not_found")
    problem(again(**{"from": "production"}), 404, "alias_not_found")
    problem(again(dataset_id="ds_none"), 404, "dataset_not_found")
    with store.begin() as uow:
        uow.jobs.change(str(pets.job_id), provenance={"imported": {"model": "elsewhere"}})
    refused = problem(again(), 409, "base_without_job")
    assert "pets@1 was imported" in refused["detail"]


def test_hyperparameters_are_checked_as_a_whole(again: Any, problem: Check):
    wrong = problem(again(hyperparameters={"student": {"C": -1.0}}), 422, "invalid_body")
    assert [fault["field"] for fault in wrong["errors"]] == ["hyperparameters.student.C"]
    twice = {"evaluation": {"dataset_id": "ds_other"}}
    both = problem(again(hyperparameters=twice), 422, "invalid_body")
    assert "give dataset_id or test_fraction, not both" in both["detail"]
    alias = problem(again(hyperparameters={"alias": "latest"}), 422, "invalid_body")
    assert [fault["field"] for fault in alias["errors"]] == ["hyperparameters.alias"]


def test_quotas_are_those_of_every_job(
    make_client: Any, store: Store, problem: Check, dataset_id: str, pets: Any
):
    client = make_client(max_queued_jobs=1)
    body = {"from": 1, "dataset_id": dataset_id}
    assert client.post("/v1/models/pets/retrain", json=body).status_code == 202
    problem(client.post("/v1/models/pets/retrain", json=body), 429, "overloaded")
