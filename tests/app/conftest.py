"""Rows to start tests of the service from."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from app.domain.entities import Dataset, Job, JobState, new_id
from app.domain.training_spec import TrainingSpec
from app.store.unit_of_work import UnitOfWork
from tests.system import stored_dataset

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

    def add(uow: UnitOfWork, **columns: Any) -> Dataset:
        defaults: dict[str, Any] = {"name": "digits", "rows": 10, "columns": 2, "summary": {"rows": 10}}
        values = defaults | {"created_at": 1.0} | columns
        return stored_dataset.add_dataset(uow, values.pop("classes", ("Käse", "犬")), **values)

    return add
