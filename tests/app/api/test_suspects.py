"""Suspect labels over HTTP: pages of rows, corrections, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from app.domain.entities import JobState
from app.store.unit_of_work import Store
from core.monitoring.suspects import Suspects
from tests.app.api.conftest import CSV


@pytest.fixture
def job(client: Any, store: Store, add_job: Any) -> str:
    """A job that has found the labels of three rows suspect."""
    dataset = client.post("/v1/datasets?format=csv", content=CSV).json()["id"]
    rows, labels = np.array([8, 3, 5]), np.array([0, 1, 1])
    found = Suspects(rows, labels, 1 - labels, np.array([0.1, 0.2, 0.3]), np.array([0.9, 0.8, 0.7]), rows > 7)
    with store.begin() as uow:
        digest, _ = uow.blobs.put([found.to_bytes()])
        return str(add_job(uow, dataset_id=dataset, suspects_digest=digest).id)


def test_rows_come_page_by_page(client: Any, job: str) -> None:
    path = f"/v1/training-jobs/{job}/suspects"
    first = client.get(path, params={"limit": 2})
    assert first.json()["has_more"]
    assert first.json()["data"][0] == {
        "row": 8,
        "label": "no",
        "suggested": "yes",
        "probability_of_label": pytest.approx(0.1),
        "probability_of_suggested": pytest.approx(0.9),
        "part": "test",
        "x": [8.0, 64 % 7],
    }
    rest = client.get(first.links["next"]["url"]).json()
    assert [one["row"] for one in rest["data"]] == [5]
    assert not rest["has_more"]
    of_class = client.get(path, params={"class": "yes"}).json()["data"]
    assert [one["row"] for one in of_class] == [3, 5]
    unknown = client.get(path, params={"class": "maybe"})
    assert (unknown.status_code, unknown.json()["code"]) == (404, "class_not_found")


def test_corrections_are_a_data_set_to_train_on(client: Any, job: str) -> None:
    path = f"/v1/training-jobs/{job}/suspects"
    body = {"corrections": [{"row": 8, "label": "yes"}, {"row": 3, "keep": True}], "name": "checked"}
    made = client.post(path, json=body)
    assert made.status_code == 201, made.text
    document = made.json()
    assert made.headers["location"] == f"/v1/datasets/{document['id']}"
    assert document["name"] == "checked"
    assert document["summary"]["class_counts"] == {"no": 19, "yes": 21}
    assert document["summary"]["confirmed_rows"] == [3]
    again = client.post(path, json=body)
    assert (again.status_code, again.json()["id"]) == (200, document["id"])


def test_a_job_without_suspects_says_so(client: Any, store: Store, add_job: Any, job: str) -> None:
    with store.begin() as uow:
        other = add_job(uow, state=JobState.SUCCEEDED).id
    for answer in (
        client.get(f"/v1/training-jobs/{other}/suspects"),
        client.post(f"/v1/training-jobs/{other}/suspects", json={"corrections": [{"row": 1, "keep": True}]}),
    ):
        assert (answer.status_code, answer.json()["code"]) == (404, "suspects_not_found")


@pytest.mark.parametrize(
    ("corrections", "status", "code"),
    [
        ([], 422, "too_short"),
        ([{"row": 1}], 422, "value_error"),
        ([{"row": 1, "label": "yes", "keep": True}], 422, "value_error"),
        ([{"row": 1, "keep": False}], 422, "literal_error"),
        ([{"row": 1, "label": ""}], 422, "string_too_short"),
        ([{"row": -1, "keep": True}], 422, "greater_than_equal"),
        ([{"row": 1.5, "keep": True}], 422, "int_type"),
        ([{"row": 1, "label": "yes", "note": "?"}], 422, "unexpected_keyword_argument"),
        ([{"row": 40, "label": "yes"}], 400, "unknown_row"),
        ([{"row": 1, "label": "no"}, {"row": 1, "keep": True}], 400, "given_twice"),
    ],
)
def test_wrong_bodies_are_refused(
    client: Any, job: str, corrections: list[Any], status: int, code: str
) -> None:
    answer = client.post(f"/v1/training-jobs/{job}/suspects", json={"corrections": corrections})
    assert answer.status_code == status, answer.text
    assert [fault["code"] for fault in answer.json()["errors"]] == [code], answer.text
