"""Corrected labels of a job: data sets that cannot take them."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

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


@pytest.mark.parametrize(
    ("more", "code"),
    [
        ({"teacher_scores": np.eye(2)[[0, 1, 0, 1]]}, "has_scores"),
        ({"X_test": X, "y_test": Y}, "test_part_without_class"),
    ],
)
def test_a_data_set_that_cannot_take_other_classes_is_refused(
    sqlite_store: Store, add_job: Callable[..., Any], tmp_path: Path, more: dict[str, Any], code: str
) -> None:
    files, content = BlobCache(tmp_path / "cache", 2**30, b"k" * 32), io.BytesIO()
    np.savez(content, X=X, y=Y, **more)
    with files.writing("upload.tmp") as file:
        file.write(content.getvalue())
        dataset, _ = register_dataset(
            sqlite_store, files, file, created_by="tests", limits=Settings(), filename="a.npz"
        )
    summary = Summary(1.0, None, None, 1, 0.1, "converged")
    found = Labelling(np.array([0, 1, 0, 1], np.int32), np.ones(4, np.float32), ("a", "b"), summary, {})
    with sqlite_store.begin() as uow:
        digest, _ = uow.blobs.put([found.to_bytes()])
        job = add_job(uow, dataset_id=dataset.id, labels_digest=digest)
    with refused_as(Unprocessable, code):
        corrected_dataset(
            sqlite_store,
            files,
            job.id,
            corrections={},
            rename={"b": "c"},
            keep="all",
            name=None,
            created_by="tests",
            limits=Settings(),
        )
