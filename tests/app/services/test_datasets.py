from __future__ import annotations

import hashlib
import io
import secrets
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.domain.errors import (
    Conflict,
    InvalidRequest,
    NotFound,
    TooLarge,
    Unavailable,
    UnsupportedFormat,
)
from app.services.datasets import (
    dataset_classes,
    delete_dataset,
    get_dataset,
    list_datasets,
    load_dataset,
    register_dataset,
)
from app.settings import Settings
from app.store.blob_cache import BlobCache
from app.store.tables import blobs
from app.store.unit_of_work import Store
from core.errors import InvalidPackage
from tests.refusals import refused_as

CSV = "größe,b,kind\n1,2,Käse\n3,4,犬\n5,6,Käse\n7,8,犬\n".encode()
LIMITS = Settings(max_upload_bytes=100_000)

Register = Callable[..., Any]


@pytest.fixture
def files(tmp_path: Path) -> BlobCache:
    return BlobCache(tmp_path / "cache", 2**30)


@pytest.fixture
def register(store: Store, files: BlobCache) -> Register:
    def send(content: bytes = CSV, **options: Any) -> Any:
        with files.writing(f"upload-{secrets.token_hex(4)}.tmp") as file:
            file.write(content)
            return register_dataset(
                store, files, file, **({"created_by": "tests", "limits": LIMITS} | options)
            )

    return send


def test_a_data_set_is_stored_as_uploaded(store: Store, register: Register, files: BlobCache) -> None:
    dataset, created = register(filename="dir/cheese.csv")
    assert created
    assert dataset.digest == hashlib.sha256(CSV).hexdigest()
    assert (dataset.name, dataset.source_format, dataset.size_bytes) == ("cheese", "csv", len(CSV))
    assert (dataset.rows, dataset.test_rows, dataset.columns, dataset.class_count) == (4, 0, 2, 2)
    assert dataset_classes(store, dataset.id, limit=9) == ("Käse", "犬")
    assert dataset.summary["class_counts"] == {"Käse": 2, "犬": 2}
    assert get_dataset(store, dataset.id) == dataset
    train, test = load_dataset(store, files, dataset.id)
    np.testing.assert_array_equal(train.X, [[1, 2], [3, 4], [5, 6], [7, 8]])
    assert (train.feature_names, train.y.tolist(), test) == (("größe", "b"), [0, 1, 0, 1], None)


def test_the_test_part_is_stored(store: Store, register: Register, files: BlobCache) -> None:
    out = io.BytesIO()
    np.savez(out, X_train=np.eye(4), y_train=[0, 1, 0, 1], X_test=np.eye(4)[:2], y_test=[1, 0])
    dataset, _ = register(out.getvalue(), name="halves")
    assert (dataset.name, dataset.test_rows, dataset.source_format) == ("halves", 2, "npz")
    _, test = load_dataset(store, files, dataset.id)
    assert test is not None
    assert test.y.tolist() == [1, 0]


def test_the_same_bytes_are_the_same_data_set(register: Register) -> None:
    first, _ = register(name="one")
    again, created = register(name="two")
    assert (again, created) == (first, False)
    assert register(created_by="x", label_column="kind") == (first, False)


def test_the_same_bytes_with_another_label_column_are_another_data_set(
    store: Store, register: Register
) -> None:
    content = b"a,b,c\n0,5,x\n1,6,y\n0,7,x\n1,8,y\n".replace(b"x", b"3").replace(b"y", b"4")
    first, _ = register(content)
    other, created = register(content, label_column="a")
    assert created
    assert other.digest != first.digest
    assert dataset_classes(store, other.id, limit=9) == ("0", "1")
    assert register(content, label_column="a") == (other, False)


def test_concurrent_uploads_of_the_same_bytes_give_one_data_set(store: Store, register: Register) -> None:
    found: list[Any] = []
    threads = [threading.Thread(target=lambda: found.append(register())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4
    assert len({dataset.id for dataset, _ in found}) == 1
    assert sum(created for _, created in found) == 1


@pytest.mark.parametrize(
    ("content", "options", "error", "code"),
    [
        (b"", {}, InvalidRequest, "empty_file"),
        (b"1,2,x\n3,4\n5,6,x\n7,8,y\n", {}, InvalidRequest, "invalid_dataset"),
        (CSV, {"file_format": "xlsx"}, UnsupportedFormat, "unsupported_format"),
        (CSV, {"file_format": "npz"}, UnsupportedFormat, "wrong_format"),
        (CSV, {"label_column": "colour"}, InvalidRequest, "no_label_column"),
        (CSV, {"limits": Settings(max_upload_bytes=1024, max_rows=3)}, TooLarge, "too_many_rows"),
        (CSV * 1000, {}, InvalidRequest, "invalid_dataset"),
        (CSV * 5000, {}, TooLarge, "file_too_large"),
        (CSV, {"name": "a\0b"}, InvalidRequest, "invalid_request"),
        (CSV, {"name": " "}, InvalidRequest, "invalid_request"),
        (CSV, {"name": "n" * 201}, InvalidRequest, "invalid_request"),
    ],
)
def test_an_invalid_file_leaves_no_rows(
    store: Store,
    content: bytes,
    options: dict[str, Any],
    error: type[Exception],
    code: str,
    register: Register,
) -> None:
    with refused_as(error, code):
        register(content, **options)
    # type: ignore[attr-defined]
    assert list_datasets(store, limit=10) == ([], False)
    with store.read() as uow:
        assert uow.connection.execute(blobs.select()).first() is None


def test_a_file_name_without_a_stem_gives_a_default_name(store: Store, register: Register) -> None:
    assert register(filename="\x07.csv")[0].name == "data set"
    assert register(CSV + b"9,9,\xe7\x8a\xac\n")[0].name == "data set"


def test_a_data_set_is_deleted_with_its_rows(store: Store, register: Register) -> None:
    dataset, _ = register()
    delete_dataset(store, dataset.id)
    for use in (get_dataset, partial(load_dataset, files=files), delete_dataset):
        with pytest.raises(NotFound):
            use(store, dataset_id=dataset.id)
    with store.read() as uow:
        assert not uow.blobs.exists(dataset.blob_digest)
    assert register()[1]


def test_rows_shared_by_two_data_sets_stay_until_both_are_gone(
    store: Store, register: Register, files: BlobCache
) -> None:
    first, _ = register()
    second, created = register(CSV.replace(b"\n", b"\r\n"))
    assert created
    assert first.blob_digest == second.blob_digest
    delete_dataset(store, first.id)
    assert load_dataset(store, files, second.id)[0].n == 4
    delete_dataset(store, second.id)
    with store.read() as uow:
        assert not uow.blobs.exists(first.blob_digest)


def test_a_data_set_deleted_while_registered_is_a_conflict(
    store: Store, monkeypatch: pytest.MonkeyPatch, register: Register
) -> None:
    register()
    monkeypatch.setattr("app.services.datasets.find_dataset", lambda *_: None)
    with refused_as(Conflict, "dataset_deleted"):
        register()


def test_permanently_damaged_rows_are_unavailable(
    store: Store, register: Register, files: BlobCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset, _ = register()
    tried: list[int] = []

    def damaged(view: memoryview) -> None:
        tried.append(len(view))
        raise InvalidPackage("The cached file is damaged.")

    monkeypatch.setattr("app.ingest.dataset_format.decode", damaged)
    with refused_as(Unavailable, "blob_damaged"):
        load_dataset(store, files, dataset.id)
    assert len(tried) == 2, "fetched once more"


def test_loaded_rows_are_read_only_views_of_the_file(
    store: Store, register: Register, files: BlobCache
) -> None:
    dataset, _ = register()
    train, _ = load_dataset(store, files, dataset.id)
    with pytest.raises(ValueError, match="read-only"):
        train.X[0, 0] = 1.0
