"""Publications move an alias forward, but never past a later move by an operator."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.domain.entities import Job, Json
from app.domain.errors import NotFound
from app.services import models
from app.services.head_import import import_head
from app.settings import Settings
from app.store.blob_cache import BlobCache
from app.store.unit_of_work import Store

Submit = Callable[[], Job]


@pytest.fixture
def submit(store: Store, add_job: Any) -> Submit:
    """A job that was submitted now."""

    def submit() -> Job:
        seen = models.alias_revision(store, "pets", "latest")
        with store.begin() as uow:
            job: Job = add_job(uow, model="pets", alias_revision=seen)
        return job

    return submit


def finish(store: Store, job: Job) -> int:
    """Publish the version of a job; returns its number."""
    with store.begin() as uow:
        teacher, _ = uow.blobs.put([b"teacher"])
        result: Json = {"dataset_digest": "0" * 64, "method": "svm", "classes": ["a"], "columns": 1}
        return models.publish(uow, job, **result, teacher_digest=teacher, metrics={}).version


def latest(store: Store) -> int:
    return models.get_alias(store, "pets", "latest").version


def move(store: Store, version: int) -> None:
    revision = models.alias_revision(store, "pets", "latest") or None
    models.point_alias(store, Settings(), "pets", "latest", version, revision)


def unmoved(store: Store, job: Job) -> Any:
    with store.read() as uow:
        return uow.jobs.get(job.id).provenance.get("alias_not_moved")


def test_jobs_one_after_the_other_and_side_by_side_move_the_alias(store: Store, submit: Submit):
    assert finish(store, submit()) == latest(store) == 1
    first, second, third = submit(), submit(), submit()
    for number, job in enumerate((second, first, third), 2):
        assert finish(store, job) == latest(store) == number
        assert unmoved(store, job) is None


def test_a_rollback_stays_when_an_older_job_ends(store: Store, submit: Submit):
    for _ in range(2):
        finish(store, submit())
    older = submit()
    move(store, 1)
    assert finish(store, older) == 3
    assert latest(store) == 1
    assert unmoved(store, older) == {"alias": "latest", "version": 1}
    newer = submit()
    assert finish(store, newer) == latest(store) == 4, "it was submitted after the rollback"
    assert unmoved(store, newer) is None


def test_a_rollback_stays_for_a_job_that_ends_after_a_newer_one(store: Store, submit: Submit):
    finish(store, submit())
    older = submit()
    move(store, 1)
    assert finish(store, submit()) == latest(store) == 2
    assert finish(store, older) == 3
    assert latest(store) == 2


def test_an_alias_that_was_deleted_or_made_by_hand_stays(store: Store, submit: Submit):
    early = submit()
    finish(store, submit())
    older = submit()
    models.delete_alias(store, "pets", "latest", models.alias_revision(store, "pets", "latest"))
    finish(store, older)
    assert unmoved(store, older) == {"alias": "latest", "version": None}
    with pytest.raises(NotFound):
        latest(store)
    move(store, 1)
    finish(store, early)
    assert (latest(store), unmoved(store, early)) == (1, {"alias": "latest", "version": 1})


def test_an_import_moves_its_alias_unless_an_operator_did_during_it(store: Store, tmp_path: Path):
    files = BlobCache(tmp_path / "cache", 2**30)

    def import_(scale: float, seen: int | None = None) -> tuple[int, str | None]:
        path = tmp_path / "head.npz"
        np.savez(path, weights=scale * np.eye(2), labels=np.array(["a", "b"]))
        imported = import_head(store, files, path, model="pets", alias_revision=seen, limits=Settings())
        return imported.version.version, imported.alias

    assert import_(1.0) == (1, "latest")
    assert import_(2.0) == (2, "latest")
    seen = models.alias_revision(store, "pets", "latest")
    move(store, 1)
    assert import_(3.0, seen) == (3, None)
    assert latest(store) == 1
    assert import_(4.0) == (4, "latest")
