"""An imported head as a teacher: validation against the data set, and reading its rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from app.domain.entities import Dataset, ModelVersion
from app.domain.errors import InvalidRequest, NotFound, Unavailable
from app.domain.ports import JobQueue
from app.domain.training_spec import TrainingSpec
from app.services.head_import import import_head
from app.services.imported_teacher import pin_teacher_version, teacher_rows
from app.services.training import submit_job
from app.settings import Settings
from app.store.blob_cache import BlobCache
from app.store.unit_of_work import Store
from core.errors import InvalidPackage
from core.packed import PackedHead
from tests.refusals import refused_as

WEIGHTS = np.random.default_rng(0).standard_normal((500, 300))
NAMES = ["Käse", "犬", *(f"c{number}" for number in range(498))]


@pytest.fixture
def files(tmp_path: Path) -> BlobCache:
    return BlobCache(tmp_path / "cache", 2**30)


@pytest.fixture
def head(store: Store, files: BlobCache, tmp_path: Path) -> ModelVersion:
    path = tmp_path / "head.npz"
    np.savez(path, weights=WEIGHTS, bias=np.arange(500.0), labels=np.array(NAMES))
    return import_head(store, files, path, model="faces", limits=Settings())[0]


@pytest.fixture
def dataset(store: Store, add_dataset: Any) -> Dataset:
    with store.begin() as uow:
        found: Dataset = add_dataset(uow, columns=300)
    return found


def test_a_teacher_is_pinned_to_the_number_of_its_version(
    store: Store, files: BlobCache, head: ModelVersion, dataset: Dataset
) -> None:
    for reference in ("faces", "faces@latest", "faces@1"):
        assert pin_teacher_version(store, files, reference, dataset) == "faces@1"


def test_a_head_that_does_not_suit_the_data_is_rejected(
    store: Store, files: BlobCache, head: ModelVersion, add_dataset: Any, tmp_path: Path, dataset: Dataset
) -> None:
    path = tmp_path / "head.npz"
    import_head(store, files, path, model="ready", kind="linear", limits=Settings())
    with store.begin() as uow:
        narrow = add_dataset(uow, columns=2)
        foreign = add_dataset(uow, columns=300, classes=("Käse", *(f"x{number}" for number in range(20))))
    for reference, data, code, faults in (
        ("nobody", dataset, "unknown_model", 1),
        ("ready", dataset, "no_head", 1),
        ("faces", narrow, "wrong_columns", 1),
        ("faces", foreign, "unknown_class", 10),
    ):
        with refused_as(InvalidRequest, code) as caught:
            pin_teacher_version(store, files, reference, data)
        assert len(caught.value.faults) == faults
        assert caught.value.faults[0].field == "hyperparameters.teacher.model"


def test_the_rows_of_some_classes_are_read(store: Store, files: BlobCache, head: ModelVersion) -> None:
    weights, bias = teacher_rows(store, files, "faces@1", ["c3", "Käse"])
    np.testing.assert_array_equal(weights, WEIGHTS[[5, 0]])
    np.testing.assert_array_equal(bias, [5.0, 0.0])
    with pytest.raises(NotFound, match="no class 'bird'"):
        teacher_rows(store, files, "faces@1", ["c3", "bird"])


def test_a_damaged_file_is_fetched_again(
    store: Store, files: BlobCache, head: ModelVersion, monkeypatch: pytest.MonkeyPatch
) -> None:
    with files.path(head.teacher_digest).open("r+b") as file:
        file.seek(5000)
        file.write(b"\1" * 1_100_000)
    weights, _ = teacher_rows(store, files, "faces@1", NAMES[:450])
    np.testing.assert_array_equal(weights, WEIGHTS[:450])

    def damaged(_head: PackedHead, _rows: Any) -> Any:
        raise InvalidPackage("damaged")

    monkeypatch.setattr(PackedHead, "linear", damaged)
    with pytest.raises(Unavailable, match="damaged in the database"):
        teacher_rows(store, files, "faces@1", ["c3"])


class Queue(JobQueue):
    def enqueue(self, job_id: str, workflow_id: str) -> None:
        return None


def test_a_job_keeps_the_version_that_its_teacher_was(
    store: Store, files: BlobCache, head: ModelVersion, dataset: Dataset, tmp_path: Path
) -> None:
    def submit(model: str) -> Any:
        spec = TrainingSpec.model_validate({"features": {"kind": "linear"}, "teacher": {"model": model}})
        return submit_job(
            store,
            Queue(),
            dataset_id=dataset.id,
            model="people",
            spec=spec,
            created_by="me",
            idempotency_key=None,
            body_digest="0" * 64,
            settings=Settings(data_dir=tmp_path),
        )[0]

    assert submit("faces@latest").spec["teacher"]["model"] == "faces@1"
    with pytest.raises(InvalidRequest, match="no model 'nobody'"):
        submit("nobody")


@pytest.mark.parametrize(
    "given", [{"teacher": {"model": "a b"}}, {"teacher": {"model": "a"}, "features": {"kind": "fourier"}}]
)
def test_an_imported_teacher_requires_linear_features(given: Any) -> None:
    with pytest.raises(ValidationError):
        TrainingSpec.model_validate(given)
