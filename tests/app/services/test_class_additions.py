"""Classes that are added from a few examples: what is stored, and what is refused before a worker begins."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.domain.entities import JobState, ModelVersion
from app.domain.errors import Conflict, InvalidRequest, NotFound, TooLarge
from app.services import class_additions
from app.services.class_additions import (
    base_of_addition,
    pack_examples,
    submit_addition,
    unpack_examples,
)
from app.services.datasets import delete_dataset
from app.services.retention import delete_job
from app.services.training import cancel_job, retry_job
from app.settings import Settings
from app.store.blob_cache import BlobCache
from app.store.tables import jobs
from app.store.unit_of_work import Store
from tests.app.api.conftest import RememberingQueue, publish_pets
from tests.refusals import refused_as

EXAMPLES = np.random.default_rng(0).normal(size=(7, 3))


@pytest.fixture
def version(store: Store, add_dataset: Any) -> ModelVersion:
    """Version 1 of "pets", whose data set is there."""
    version = publish_pets(store)
    with store.begin() as uow:
        dataset = add_dataset(uow)
        values = {"dataset_id": dataset.id, "preparation_digest": uow.blobs.put([b"preparation"])[0]}
        uow.connection.execute(jobs.update().where(jobs.c.id == version.job_id).values(**values))
    return version


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(data_dir=tmp_path)


@pytest.fixture
def submit(store: Store, settings: Settings, version: ModelVersion) -> Any:
    def run(name: str = "cow", examples: Any = EXAMPLES, base: int | str = 1, **said: Any) -> Any:
        wanted = {"budget": 0.01, "confidence": None, "alias": None, "created_by": "me"} | said
        given = base_of_addition(store, BlobCache.of(settings), "pets", base, name)
        return submit_addition(store, RememberingQueue(), settings, given, name, examples, **wanted)

    return run


def test_the_job_is_a_record_with_its_examples(store: Store, submit: Any, version: ModelVersion) -> None:
    job = submit(alias="latest", confidence=0.95)
    assert job.state is JobState.QUEUED
    assert job.base_job_id == version.job_id
    assert job.provenance["base"] == {"model": "pets", "version": 1, "job_id": version.job_id}
    said = {"class": "cow", "examples": 7, "max_false_positive_rate": 0.01, "confidence": 0.95}
    assert job.addition == said
    assert job.provenance["added"] == ["cow"]
    assert job.spec["alias"] == "latest"
    assert (job.progress_done, job.progress_total) == (0, 1)
    with store.begin() as uow:
        stored = uow.blobs.read(job.examples_digest)
        used = uow.quotas.used("default").stored_bytes
        uow.jobs.change(job.id, examples_digest=None)
        assert uow.quotas.used("default").stored_bytes <= used - len(stored)
    assert (unpack_examples(stored) == EXAMPLES).all()


def test_examples_are_stored_without_their_zeros() -> None:
    table = np.zeros((6, 50_000))
    table[range(6), [1, 1, 7, 9, 49_999, 0]] = [1.0, -2.0, 0.5, 3.0, 1e-300, 5.0]
    stored = pack_examples(table)
    assert len(stored) < 1000
    assert (unpack_examples(stored) == table).all()


def test_a_cancelled_addition_is_retried_and_deleted_with_its_examples(
    store: Store, submit: Any, settings: Settings
) -> None:
    job = submit()
    queue = RememberingQueue()
    cancel_job(store, queue, job.id)
    again = retry_job(store, queue, job.id, settings)
    assert (again.progress_done, again.progress_total) == (0, 1)
    cancel_job(store, queue, job.id)
    delete_job(store, job.id)
    with store.read() as uow, pytest.raises(NotFound):
        uow.blobs.read(job.examples_digest)


def test_examples_may_be_a_data_set(store: Store, submit: Any, add_dataset: Any) -> None:
    with store.begin() as uow:
        dataset = add_dataset(uow, rows=9)
    job = submit(examples=dataset.id)
    assert job.examples_digest is None
    assert (job.addition["dataset_id"], job.addition["examples"]) == (dataset.id, 9)
    with refused_as(NotFound, "dataset_not_found"):
        submit(examples="ds_none")


@pytest.mark.parametrize(
    ("name", "count", "code"),
    [("cat", 7, "class_exists"), ("cow", 4, "too_few_examples"), ("cow", 10_001, "too_many_examples")],
)
def test_impossible_examples_are_refused(submit: Any, name: str, count: int, code: str) -> None:
    with refused_as(InvalidRequest, code):
        submit(name, np.ones((count, 3)))


def test_too_many_values_are_refused(submit: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(class_additions, "_MOST_VALUES", 20)
    with refused_as(TooLarge, "too_many_values"):
        submit()


def test_without_its_training_rows_a_version_takes_no_class(
    store: Store, submit: Any, version: ModelVersion
) -> None:
    with store.read() as uow:
        dataset = uow.jobs.get(str(version.job_id)).dataset_id
    delete_dataset(store, dataset)
    with refused_as(Conflict, "training_rows_gone"):
        submit()


def test_after_many_classes_a_training_is_asked_for(
    store: Store, submit: Any, version: ModelVersion, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(class_additions, "MOST_ADDED", 2)
    with store.begin() as uow:
        provenance = uow.jobs.get(str(version.job_id)).provenance | {"added": ["a", "b"]}
        uow.jobs.change(str(version.job_id), provenance=provenance)
    with refused_as(Conflict, "retrain_first"):
        submit()
