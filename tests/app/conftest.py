"""Rows to start tests of the service from."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from app.domain.entities import Dataset, Job, JobState, new_id
from app.domain.training_spec import TrainingSpec
from app.store.unit_of_work import UnitOfWork

AddJob = Callable[..., Job]
AddDataset = Callable[..., Dataset]


@pytest.fixture
def add_job() -> AddJob:
    """``add_job(uow, **columns)``: stores a queued job."""

    def add(uow: UnitOfWork, **columns: Any) -> Job:
        values: dict[str, Any] = {
            "id": new_id("job"),
            "dataset_id": "ds_none",
            "model": "digits",
            "spec": TrainingSpec(automatic=False).model_dump(mode="json"),
            "state": JobState.QUEUED,
            "attempt": 0,
            "stage": "queued",
            "progress_done": 0,
            "progress_total": 11,
            "created_at": 1.0,
            "created_by": "tests",
        }
        job = Job(**values | columns)
        uow.jobs.add(job)
        return job

    return add


@pytest.fixture
def add_dataset() -> AddDataset:
    """``add_dataset(uow, **columns)``: stores a data set on a blob of its own."""
    numbers = itertools.count()

    def add(uow: UnitOfWork, **columns: Any) -> Dataset:
        number = next(numbers)
        blob, _ = uow.blobs.put([b"data set %d" % number])
        values: dict[str, Any] = {
            "id": new_id("ds"),
            "digest": f"{number:064x}",
            "name": "digits",
            "source_format": "csv",
            "size_bytes": 100,
            "blob_digest": blob,
            "rows": 10,
            "test_rows": 0,
            "columns": 2,
            "summary": {"rows": 10},
            "created_at": 1.0,
            "created_by": "tests",
        }
        classes = columns.pop("classes", ("Käse", "犬"))
        dataset = Dataset(**values | columns, class_count=len(classes))
        assert uow.datasets.add(dataset, classes)
        return dataset

    return add
