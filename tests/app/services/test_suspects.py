"""Suspect labels of a job: the rows with their values, and data sets that corrections make."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.domain.entities import Dataset, JobState
from app.domain.errors import InvalidRequest, NotFound
from app.ingest import dataset_rows
from app.services.datasets import delete_dataset, register_dataset, row_codes
from app.services.retention import delete_job
from app.services.suspects import corrected_suspects, job_suspects
from app.settings import Settings
from app.store.blob_cache import BlobCache
from app.store.unit_of_work import Store
from core.labelling.base import Labelling
from core.monitoring.suspects import Suspects
from core.solvers.solution import Summary
from tests.refusals import refused_as

CSV = b"size,colour,label\n" + b"".join(
    b"%d,%s,%s\n" % (i, b"red" if i % 3 else b"blue", b"a" if i < 6 else b"b") for i in range(12)
)
ROWS = [10, 2, 7]
"""The suspect rows, of which the last is one that the job has held out."""


@pytest.fixture
def files(tmp_path: Path) -> BlobCache:
    return BlobCache(tmp_path / "cache", 2**30, b"k" * 32)


@pytest.fixture
def dataset(sqlite_store: Store, files: BlobCache) -> Dataset:
    with files.writing("upload.tmp") as file:
        file.write(CSV)
        found, _ = register_dataset(
            sqlite_store, files, file, created_by="tests", limits=Settings(), filename="a.csv"
        )
    return found


@pytest.fixture
def job(sqlite_store: Store, add_job: Callable[..., Any], dataset: Dataset) -> str:
    rows, labels = np.array(ROWS), np.array([1, 0, 1])
    probabilities = np.array([0.1, 0.2, 0.3])
    found = Suspects(rows, labels, 1 - labels, probabilities, 1.0 - probabilities, rows == ROWS[-1])
    with sqlite_store.begin() as uow:
        digest, _ = uow.blobs.put([found.to_bytes()])
        return str(add_job(uow, dataset_id=dataset.id, suspects_digest=digest).id)


@pytest.fixture
def correct(sqlite_store: Store, files: BlobCache, job: str) -> Callable[..., tuple[Dataset, bool]]:
    def run(corrections: dict[int, str], confirmed: set[int] = frozenset(), job_id: str = job, **more: Any):
        said = {"corrections": corrections, "confirmed": confirmed, "name": None} | more
        return corrected_suspects(sqlite_store, files, job_id, created_by="tests", limits=Settings(), **said)

    return run


def test_rows_come_with_their_values_and_parts(sqlite_store: Store, files: BlobCache, job: str) -> None:
    page = job_suspects(sqlite_store, files, job)
    assert [facts["row"] for facts, _ in page.rows] == ROWS
    assert page.rows[0][1].x == {"size": 10, "colour": "red"}
    first = page.rows[0][0]
    assert (first["label"], first["suggested"], first["part"]) == ("b", "a", "training")
    assert first["probability_of_suggested"] == pytest.approx(0.9)
    assert page.rows[2][0]["part"] == "test"
    assert (page.total, page.has_more) == (3, False)
    of_b = job_suspects(sqlite_store, files, job, label="b", limit=1)
    assert [facts["row"] for facts, _ in of_b.rows] == [10]
    assert (of_b.total, of_b.has_more) == (2, True)
    rest = job_suspects(sqlite_store, files, job, label="b", skip=1)
    assert [facts["row"] for facts, _ in rest.rows] == [7]
    with refused_as(NotFound, "class_not_found", match="'a'"):
        job_suspects(sqlite_store, files, job, label="c")


def test_a_page_of_long_rows_is_shorter(
    sqlite_store: Store, files: BlobCache, job: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dataset_rows, "MAX_VALUES", 5)
    page = job_suspects(sqlite_store, files, job)
    assert [facts["row"] for facts, _ in page.rows] == ROWS[:2]
    assert page.has_more


@pytest.mark.parametrize(
    ("state", "spec", "preparation", "why"),
    [
        (JobState.RUNNING, {}, None, "yet"),
        (JobState.SUCCEEDED, {"suspects": {"limit": 0}}, None, "limit is 0"),
        (JobState.SUCCEEDED, {}, None, "no scores of rows"),
    ],
)
def test_a_job_that_has_not_looked_for_any_says_why(
    sqlite_store: Store,
    files: BlobCache,
    add_job: Callable[..., Any],
    state: JobState,
    spec: dict[str, Any],
    preparation: str | None,
    why: str,
) -> None:
    with sqlite_store.begin() as uow:
        job = add_job(uow, state=state, spec=spec, preparation_digest=preparation)
    with refused_as(NotFound, "suspects_not_found", match=why):
        job_suspects(sqlite_store, files, job.id)


def test_a_deleted_data_set_is_missed(
    sqlite_store: Store, files: BlobCache, job: str, dataset: Dataset
) -> None:
    with sqlite_store.begin() as uow:
        uow.jobs.move(job, JobState.CANCELLED)
    delete_dataset(sqlite_store, dataset.id)
    with refused_as(NotFound, "dataset_not_found"):
        job_suspects(sqlite_store, files, job)
    delete_job(sqlite_store, job)
    with refused_as(NotFound, "job_not_found"):
        job_suspects(sqlite_store, files, job)


def test_suspects_count_in_the_quota_of_bytes_and_go_with_their_job(sqlite_store: Store, job: str) -> None:
    with sqlite_store.begin() as uow:
        before = uow.quotas.used("default").stored_bytes
        digest = uow.jobs.get(job).suspects_digest
        size = len(uow.blobs.read(digest))
        uow.jobs.change(job, suspects_digest=None)
        assert uow.quotas.used("default").stored_bytes <= before - size
        uow.jobs.change(job, suspects_digest=digest)
        uow.jobs.move(job, JobState.CANCELLED)
    delete_job(sqlite_store, job)
    with sqlite_store.read() as uow, pytest.raises(NotFound):
        uow.blobs.read(digest)


def test_corrections_make_a_data_set_and_leave_the_other_as_it_is(
    sqlite_store: Store, files: BlobCache, correct: Any, dataset: Dataset, job: str
) -> None:
    made, is_new = correct({10: "a", 7: "c", 8: "c"})
    assert is_new
    assert made.summary["class_counts"] == {"a": 7, "b": 3, "c": 2}
    assert made.summary["labels_of"] == {"job_id": job, "corrections": 3}
    assert "confirmed_rows" not in made.summary
    assert row_codes(sqlite_store, files, made).tolist() == [0] * 6 + [1, 2, 2, 1, 0, 1]
    assert row_codes(sqlite_store, files, dataset).tolist() == [0] * 6 + [1] * 6
    again, is_new = correct({10: "a", 7: "c", 8: "c"})
    assert (again.id, is_new) == (made.id, False)


def test_confirmed_rows_are_remembered_by_the_data_sets_that_follow(
    sqlite_store: Store, files: BlobCache, correct: Any, add_job: Callable[..., Any], job: str
) -> None:
    kept, _ = correct({10: "a"}, {2, 7})
    assert kept.confirmed_rows == [2, 7]
    same_labels, is_new = correct({10: "a"}, {2})
    assert is_new
    assert same_labels.id != kept.id
    with sqlite_store.begin() as uow:
        digest = uow.jobs.get(job).suspects_digest
        second = add_job(uow, dataset_id=kept.id, suspects_digest=digest).id
    later, _ = correct({7: "a"}, {4}, second)
    assert later.confirmed_rows == [2, 4], "a corrected row has another label than the one confirmed"
    only_kept, is_new = correct({}, {2})
    assert is_new
    assert only_kept.summary["class_counts"] == {"a": 6, "b": 6}


def test_the_labels_of_a_labelling_are_corrected_as_the_job_trained_with_them(
    sqlite_store: Store, files: BlobCache, correct: Any, job: str
) -> None:
    labels = np.array([0, 1] * 6, dtype=np.int32)
    certainty = np.full(12, 0.5, dtype=np.float32)
    found = Labelling(labels, certainty, ("a", "b"), Summary(1.0, None, None, 1, 0.1, "converged"), {})
    with sqlite_store.begin() as uow:
        uow.jobs.change(job, labels_digest=uow.blobs.put([found.to_bytes()])[0])
    made, _ = correct({0: "b"})
    assert row_codes(sqlite_store, files, made).tolist() == [1, *[1, 0] * 5, 1]


@pytest.mark.parametrize(
    ("corrections", "confirmed", "code"),
    [
        ({12: "a"}, set(), "unknown_row"),
        ({}, {99}, "unknown_row"),
        ({3: "b"}, {3}, "given_twice"),
        ({3: "alone"}, set(), "class_too_small"),
    ],
)
def test_wrong_corrections_are_refused(
    correct: Any, corrections: dict[int, str], confirmed: set[int], code: str
) -> None:
    with refused_as(InvalidRequest, code):
        correct(corrections, confirmed)
