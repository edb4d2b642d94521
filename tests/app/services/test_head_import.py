"""Importing heads: published versions, equal content, and invalid or interrupted imports."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sqlalchemy as sa
from safetensors.numpy import save

from app.domain.errors import Conflict, InvalidRequest, TooLarge, Unavailable
from app.ingest import packed_head
from app.services import head_import, models
from app.services.comparison import compare_classes
from app.services.curves import publish_thresholds
from app.services.head_import import import_head
from app.settings import Settings
from app.store import large_blobs
from app.store.blob_cache import BlobCache
from app.store.tables import blobs
from app.store.unit_of_work import Store
from core.packed import PackedHead, PackedLabels
from core.teachers.rivals import typical_largest_score
from tests.refusals import at_fault, refused_as

NAMES = ["cat", "größe/1:x", "日本"]
WEIGHTS = np.arange(12, dtype=np.float32).reshape(3, 4)
LIMITS = Settings()

Import = Callable[..., Any]


@pytest.fixture
def files(tmp_path: Path) -> BlobCache:
    return BlobCache(tmp_path / "cache", 2**30)


@pytest.fixture
def import_(store: Store, files: BlobCache, tmp_path: Path) -> Import:
    def run(
        weights: Any = WEIGHTS, names: list[str] = NAMES, extra: dict[str, Any] | None = None, **options: Any
    ) -> Any:
        path = tmp_path / "head.safetensors"
        arrays = {"weights": np.asarray(weights)} | (extra or {})
        path.write_bytes(save(arrays, {"labels": json.dumps(names)}))
        return import_head(store, files, path, **{"model": "faces", "limits": LIMITS} | options)

    return run


def stored_head(store: Store, files: BlobCache, version: Any) -> PackedHead:
    with store.read() as uow:
        data, table = uow.blobs.read(version.teacher_digest), uow.blobs.read(version.class_table)
    assert bytes(files.open(version.teacher_digest, list).whole()) == data
    return PackedHead.from_bytes(data, PackedLabels.from_bytes(table))


def test_a_head_becomes_the_next_version_of_its_model(store: Store, files: BlobCache, import_: Import):
    version, created, *_ = import_(extra={"bias": np.array([1.0, 2, 3])})
    assert created
    assert models.get_version(store, "faces", "latest") == version
    assert (version.version, version.method, version.columns, version.class_count) == (1, "head", 4, 3)
    assert version.imported
    assert version.classes == tuple(NAMES)
    head = stored_head(store, files, version)
    np.testing.assert_array_equal(head.weights, WEIGHTS)
    np.testing.assert_array_equal(head.bias, [1, 2, 3])
    assert head.threshold is None
    assert list(head.labels) == NAMES
    again, *_ = import_(WEIGHTS + 1, alias=None)
    assert again.version == 2
    assert models.get_version(store, "faces", "latest") == version


def test_imported_students_keep_their_thresholds(store: Store, files: BlobCache, import_: Import):
    version, *_ = import_(extra={"thresholds": np.array([0.5, 1, 2])}, kind="linear", alias="live")
    head = stored_head(store, files, version)
    assert version.method == "linear"
    assert head.threshold is not None
    assert head.threshold.tolist() == [0.5, 1, 2]
    assert models.get_alias(store, "faces", "live").version == 1


def test_rivals_and_a_threshold_are_taken_from_the_weights(store: Store, files: BlobCache, import_: Import):
    weights = np.array([[1.0, 0.0], [0.8, 0.6], [0.0, 1.0]], np.float32)
    plain, version = import_(weights).version, import_(weights, rivals=1, row_norm=2.0).version
    assert (version.version, plain.metrics) == (plain.version + 1, {})
    assert version.metrics == {"rivals": 1, "row_norm": 2.0}
    assert import_(weights, rivals=1, row_norm=2.0)[:2] == (version, False)
    head = stored_head(store, files, version)
    np.testing.assert_array_equal(head.weights, weights)
    assert (head.rivals is not None, stored_head(store, files, plain).rivals) == (True, None)
    assert head.rivals.tolist() == [[1], [0], [1]]
    assert head.threshold is not None
    assert head.threshold.tolist() == [typical_largest_score(weights, np.zeros(3), 2.0)] * 3
    assert stored_head(store, files, import_(weights, rivals=64).version).rivals.shape == (3, 2)


@pytest.mark.parametrize(
    ("options", "field", "code"),
    [
        ({"kind": "linear", "rivals": 1}, "rivals", "not_a_head"),
        ({"kind": "linear", "row_norm": 1.0}, "row_norm", "not_a_head"),
        ({"row_norm": 1.0, "extra": {"threshold": np.ones(3)}}, "row_norm", "has_thresholds"),
        ({"weights": WEIGHTS[:1], "names": NAMES[:1], "rivals": 1}, "rivals", "no_rivals"),
        ({"row_norm": 1e50}, "row_norm", "out_of_range"),
    ],
)
def test_options_that_do_not_fit_the_head_are_refused(
    import_: Import, options: dict[str, Any], field: str, code: str
):
    with pytest.raises(InvalidRequest) as caught:
        import_(**options)
    assert (caught.value.faults[0].field, caught.value.faults[0].code) == (field, code)


def test_rivals_of_too_large_a_head_are_refused(import_: Import, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(packed_head, "MAX_RIVAL_WORK", 3 * 3 * 4 - 1)
    with pytest.raises(TooLarge):
        import_(rivals=1)
    assert import_()[1]


def test_importing_the_same_content_returns_the_existing_version(
    store: Store, import_: Import, tmp_path: Path
):
    first = import_().version
    import_(WEIGHTS * 2)
    path = tmp_path / "head.npz"
    np.savez(path, weight=WEIGHTS, labels=np.array(NAMES), bias=np.zeros(3))
    known = import_head(store, BlobCache(tmp_path / "other", 2**30), path, model="faces", limits=LIMITS)
    assert known == (first, False, None, ())
    assert models.get_version(store, "faces", "latest").version == 2, "no alias is moved"
    assert import_(kind="linear")[1]
    assert import_(model="other")[0].version == 1
    assert import_(names=["a", "b", "c"], allow_schema_change=True)[1]


def test_the_same_head_published_concurrently_is_returned(import_: Import, monkeypatch: pytest.MonkeyPatch):
    first = import_().version
    monkeypatch.setattr(head_import, "_known", lambda store, wanted: None)
    assert import_() == (first, False, None, ())


def test_a_head_has_no_metrics_of_classes_and_no_other_thresholds(
    store: Store, files: BlobCache, import_: Import, tmp_path: Path
):
    first, second = import_().version, import_(WEIGHTS + 1).version
    for ask in (
        lambda: compare_classes(store, first, second, "f1", listed=1, sampled=1),
        lambda: publish_thresholds(store, files, LIMITS, "faces", 1, {NAMES[0]: 1.0}, "tests"),
    ):
        with refused_as(Conflict, "imported_version"):
            ask()
    with at_fault(InvalidRequest, "unknown_metric"):
        compare_classes(store, first, second, "luck", listed=1, sampled=1)


def test_many_classes_are_not_listed_with_the_version(store: Store, files: BlobCache, import_: Import):
    names = [f"person {number}" for number in range(models.LISTED_CLASSES + 1)]
    version, *_ = import_(np.ones((len(names), 2)), names)
    assert (version.classes, version.class_count) == ((), len(names))
    listed, more = models.list_classes(store, files, version, limit=3, after=997)
    assert (listed, more) == ([(998, "person 998"), (999, "person 999"), (1000, "person 1000")], False)


def test_labels_that_look_alike_are_warned_of(import_: Import):
    imported = import_(names=["a", "a ", "b"])
    assert [code for code, _ in imported.warnings] == ["labels_alike"]
    assert "'a', 'a '" in imported.warnings[0][1]
    assert import_(names=["a", "a ", "b"]).warnings == imported.warnings


def test_duplicate_labels_are_named(import_: Import):
    with pytest.raises(InvalidRequest) as caught:
        import_(names=["a", "b", "a"])
    assert [(fault.field, fault.code, fault.row) for fault in caught.value.faults] == [
        ("labels", "duplicate", 2)
    ]


@pytest.mark.parametrize(("option", "field"), [({"model": "a b"}, "model"), ({"alias": "3"}, "alias")])
def test_names_are_checked_first(import_: Import, option: dict[str, str], field: str):
    with at_fault(InvalidRequest, field=field):
        import_(**option)


def test_an_invalid_head_leaves_no_rows(store: Store, files: BlobCache, import_: Import):
    bad = WEIGHTS.copy()
    bad[1, 2] = np.nan
    with pytest.raises(InvalidRequest) as caught:
        import_(bad)
    assert (caught.value.faults[0].row, caught.value.faults[0].column) == (1, 2)
    assert [path for path in files.folder.iterdir() if path.is_file()] == []
    with store.read() as uow:
        assert uow.connection.execute(sa.select(blobs)).all() == []
        assert uow.models.numbers(limit=10) == []


def test_a_refused_head_leaves_no_blobs(store: Store, import_: Import):
    import_()
    with store.read() as uow:
        before = uow.connection.execute(sa.select(blobs.c.digest)).scalars().all()
    with refused_as(Conflict, "schema_change"):
        import_(names=["a", "b", "c"])
    with store.read() as uow:
        assert uow.connection.execute(sa.select(blobs.c.digest)).scalars().all() == before


def test_an_interrupted_import_is_invisible_and_can_be_repeated(
    store: Store, import_: Import, monkeypatch: pytest.MonkeyPatch
):
    def broken(*_: Any, **_options: Any) -> None:
        raise Unavailable("The database went away.")

    monkeypatch.setattr(head_import, "_publish", broken)
    with pytest.raises(Unavailable):
        import_()
    with store.read() as uow:
        assert uow.models.numbers(limit=10) == []
        unfinished = uow.connection.execute(sa.select(blobs.c.complete)).scalars().all()
    assert unfinished == [False, False]
    monkeypatch.undo()
    assert import_()[1]


def test_a_head_of_several_transactions_is_read_back_complete(
    store: Store, files: BlobCache, import_: Import, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(head_import, "LARGE_CHUNK_BYTES", 1000)
    monkeypatch.setattr(large_blobs, "_CHUNKS_PER_TRANSACTION", 2)
    weights = np.random.default_rng(0).standard_normal((500, 33))
    version, *_ = import_(weights, [f"c{number}" for number in range(500)])
    np.testing.assert_array_equal(stored_head(store, files, version).weights, weights)
