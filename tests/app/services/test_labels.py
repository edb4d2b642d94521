"""Corrected labels of a job: what is said of the new data set, and data sets that cannot take them."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.domain.entities import Dataset
from app.domain.errors import Unprocessable
from app.services.datasets import register_dataset
from app.services.labels import corrected_dataset
from app.settings import Settings
from app.store.blob_cache import BlobCache
from app.store.unit_of_work import Store
from core.labelling.base import Labelling
from core.solvers.solution import Summary
from tests.refusals import refused_as

X = np.arange(8.0).reshape(4, 2)
Y = np.array(["a", "b", "a", "b"])

Correct = Callable[..., Dataset]


@pytest.fixture
def correct(sqlite_store: Store, add_job: Callable[..., Any], tmp_path: Path) -> Correct:
    """Uploads a file, labels its rows by a job, and corrects these labels."""
    files = BlobCache(tmp_path / "cache", 2**30, b"k" * 32)

    def run(
        content: bytes, filename: str, codes: list[int], certainty: list[float], **options: Any
    ) -> Dataset:
        with files.writing("upload.tmp") as file:
            file.write(content)
            dataset, _ = register_dataset(
                sqlite_store,
                files,
                file,
                created_by="tests",
                limits=Settings(),
                filename=filename,
                unlabelled="accept" if filename.endswith(".csv") else None,
            )
        labels = np.array(codes, np.int32)
        summary = Summary(1.0, None, None, 1, 0.1, "converged")
        found = Labelling(labels, np.array(certainty, np.float32), ("a", "b"), summary, {})
        with sqlite_store.begin() as uow:
            digest, _ = uow.blobs.put([found.to_bytes()])
            job = add_job(uow, dataset_id=dataset.id, labels_digest=digest)
        values = {"corrections": {}, "rename": {}, "keep": "all", "name": None} | options
        return corrected_dataset(
            sqlite_store, files, job.id, created_by="tests", limits=Settings(), **values
        )[0]

    return run


@pytest.mark.parametrize(
    ("more", "code"),
    [
        ({"teacher_scores": np.eye(2)[[0, 1, 0, 1]]}, "has_scores"),
        ({"X_test": X, "y_test": Y}, "test_part_without_class"),
    ],
)
def test_a_data_set_that_cannot_take_other_classes_is_refused(
    correct: Correct, more: dict[str, Any], code: str
) -> None:
    content = io.BytesIO()
    np.savez(content, X=X, y=Y, **more)
    with refused_as(Unprocessable, code):
        correct(content.getvalue(), "a.npz", [0, 1, 0, 1], [1.0] * 4, rename={"b": "c"})


PARTLY_LABELLED = b"x,label\n0,a\n1,b\n2,a\n3,\n4,b\n5,\n6,b\n"
CODES = [0, 1, 0, 1, 1, 0, 1]
CERTAINTY = [np.nan, np.nan, np.nan, 0.9, np.nan, 0.4, np.nan]


def test_all_labels_of_a_job_leave_no_row_without_a_label(correct: Correct) -> None:
    summary = correct(PARTLY_LABELLED, "a.csv", CODES, CERTAINTY, corrections={0: "b"}).summary
    assert summary["class_counts"] == {"a": 2, "b": 5}
    assert (summary["smallest_class"], summary["largest_class"]) == (2, 5)
    assert summary["unlabelled_rows"] == 0
    assert "unlabelled_rows" not in {warning["code"] for warning in summary["warnings"]}
    assert summary["labels_of"]["corrections"] == 1


def test_given_labels_and_corrections_leave_the_other_rows_without_a_label(correct: Correct) -> None:
    summary = correct(
        PARTLY_LABELLED, "a.csv", CODES, CERTAINTY, keep="given", corrections={3: "a", 1: None}
    ).summary
    assert summary["class_counts"] == {"a": 3, "b": 2}
    assert summary["unlabelled_rows"] == 2
    said = [warning for warning in summary["warnings"] if warning["code"] == "unlabelled_rows"]
    assert len(said) == 1, "that of the rows before is replaced"
    assert said[0]["message"].startswith("2 ")
