"""The page of suspect labels: its rows, and what its form stores."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from app.ingest.dataset_format import encode
from app.services.datasets import get_dataset
from app.store.unit_of_work import Store
from core.data.dataset import LabelledData
from core.data.description import describe
from core.monitoring.suspects import Suspects
from tests.app.web.conftest import HOSTILE, Page, Person, Things

Enter = Callable[..., Person]


def suspicious(store: Store, add_job: Any, dataset_id: str) -> str:
    """The page of a job with two suspect rows."""
    rows, labels = np.array([1, 29]), np.array([1, 0])
    found = Suspects(rows, labels, 1 - labels, np.array([0.1, 0.2]), np.array([0.9, 0.8]), rows > 1)
    with store.begin() as uow:
        digest, _ = uow.blobs.put([found.to_bytes()])
        provenance = {"suspects": {"rows": 2, "of": 30}}
        job = add_job(uow, dataset_id=dataset_id, suspects_digest=digest, provenance=provenance)
    return f"/ui/jobs/{job.id}/suspects"


@pytest.fixture
def path(store: Store, add_job: Any, things: Things) -> str:
    """The page of a job whose data set has hostile names."""
    return suspicious(store, add_job, things.dataset_id)


@pytest.fixture
def plain(store: Store, add_job: Any, add_dataset: Any) -> str:
    """The page of a job whose data set has plain names."""
    data = LabelledData.from_arrays(np.arange(60.0).reshape(30, 2), ["a", *["b"] * 28, "a"])
    with store.begin() as uow:
        blob, _ = uow.blobs.put(encode(data, None))
        facts = describe(data) | {"warnings": []}
        dataset = add_dataset(uow, blob_digest=blob, rows=30, classes=("a", "b"), summary=facts)
    return suspicious(store, add_job, dataset.id)


def test_the_job_leads_to_its_suspects_and_shows_their_values(sign_in: Enter, path: str) -> None:
    person = sign_in("train")
    job_page = person.get(path.removesuffix("/suspects"))
    assert path in Page(job_page.text).values("a", "href")
    assert "Suspect labels: 2" in job_page.text
    answer = person.get(path)
    assert answer.status_code == 200
    assert "<script>alert" not in answer.text
    page = Page(answer.text)
    assert "2 rows" in page.text
    assert page.values("input", "name").count("row") == 2
    checked = [known for tag, known in page.elements if tag == "input" and "checked" in known]
    assert [known["value"] for known in checked] == ["skip", "skip"]
    labels = [known["value"] for _, known in page.elements if (known.get("name") or "").startswith("label-")]
    assert labels == [HOSTILE, "b"], "what is suggested"
    assert "90" in page.text
    only = Page(person.get(f"{path}?class=b").text)
    assert only.values("input", "name").count("row") == 1
    assert "No suspect rows" in person.get(f"{path}?after=2").text
    assert sign_in("query").get(path).status_code == 403
    assert sign_in("train", tenant="rival").get(path).status_code == 404


def test_decisions_become_a_data_set(sign_in: Enter, store: Store, plain: str) -> None:
    person = sign_in("train")
    fields = {"row": ["1", "29"], "decision-1": "correct", "label-1": "a", "decision-29": "keep"}
    answer = person.post(plain, **fields, **{"label-29": "b"})
    assert answer.status_code == 303, answer.text
    where, _, done = answer.headers["location"].partition("?")
    assert done == "done=corrected"
    made = get_dataset(store, where.removeprefix("/ui/datasets/"))
    assert made.summary["labels_of"]["corrections"] == 1
    assert made.confirmed_rows == [29]
    assert "corrected labels are stored" in person.get(answer.headers["location"]).text


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"row": ["1"], "decision-1": "skip"}, "Keep or correct"),
        ({}, "Keep or correct"),
        ({"row": ["x"], "decision-x": "keep"}, "whole number"),
        ({"row": ["99"], "decision-99": "keep"}, "no row 99"),
    ],
)
def test_a_form_without_decisions_is_refused(
    sign_in: Enter, plain: str, fields: dict[str, Any], said: str
) -> None:
    answer = sign_in("train").post(plain, **fields)
    assert answer.status_code == 400
    assert said in answer.text
