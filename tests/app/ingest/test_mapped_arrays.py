"""Large arrays of uploads: on disk, the same as in memory, and never without room."""

from __future__ import annotations

import errno
import io
import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.domain.errors import Unavailable
from app.domain.file_formats import FileFormat
from app.ingest import mapped_arrays
from app.ingest.formats import read
from app.ingest.mapped_arrays import as_floats, empty, mapped
from app.ingest.raw import DatasetLimits


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything is large."""
    monkeypatch.setattr(mapped_arrays, "LARGE_BYTES", 1)


def is_mapped(array: Any) -> bool:
    base = array
    while isinstance(base, np.ndarray):
        base = base.base
    return isinstance(base, memoryview) or type(base).__name__ == "mmap"


def test_a_large_array_is_a_file_that_nobody_sees(tmp_path: Path, tiny: None):
    array = empty((100, 3), np.float32, tmp_path)
    array[:] = 7
    assert is_mapped(array)
    assert (array.shape, array.dtype, float(array.sum())) == ((100, 3), np.float32, 2100.0)
    assert list(tmp_path.iterdir()) == []


def test_a_small_array_is_in_memory(tmp_path: Path):
    assert not is_mapped(empty((100, 3), np.float32, tmp_path))


@pytest.mark.parametrize(
    ("number", "error"), [(errno.ENOSPC, Unavailable), (errno.EDQUOT, Unavailable), (errno.EIO, OSError)]
)
def test_room_that_is_missing_is_told_before_it_is_used(
    tmp_path: Path, tiny: None, monkeypatch: pytest.MonkeyPatch, number: int, error: type[Exception]
):
    def refuse(*_: int) -> None:
        raise OSError(number, "no")

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    with pytest.raises(error) as caught:
        empty((100, 3), np.float32, tmp_path)
    if isinstance(caught.value, Unavailable):
        assert caught.value.reason == "storage_full"


def test_a_table_that_is_right_stays_as_it_is(tmp_path: Path, tiny: None):
    for kind in (np.float32, np.float64):
        table = np.ones((4, 3), kind)
        assert as_floats(table, tmp_path) is table


@pytest.mark.parametrize("kind", ["<f4", "<f8", ">f8", "<f2", "<i8", "|u1", "|b1"])
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("without", [None, 0, 1, 2])
def test_other_tables_become_floats_without_a_column(
    tmp_path: Path, tiny: None, kind: str, order: Any, without: int | None
):
    table = np.asarray(np.random.default_rng(0).integers(0, 2, (50, 3)), dtype=kind, order=order)
    found = as_floats(table, tmp_path, without=without)
    wanted = table if without is None else np.delete(table, without, axis=1)
    np.testing.assert_array_equal(found, wanted.astype(np.float64))
    assert found.flags.c_contiguous
    assert found.dtype == (np.dtype("<f4") if kind == "<f4" else np.dtype("<f8"))


@pytest.mark.parametrize("order", ["C", "F"])
def test_an_array_is_read_where_it_lies(tmp_path: Path, order: Any):
    table = np.arange(12.0).reshape(4, 3)
    path = tmp_path / "table"
    path.write_bytes(b"head" + table.tobytes(order=order))
    with path.open("rb") as file:
        file.seek(4)
        np.testing.assert_array_equal(mapped(file, table.dtype, (4, 3), order), table)
        assert mapped(file, table.dtype, (0, 3), order).shape == (0, 3)


@pytest.mark.parametrize("kind", [FileFormat.NPY, FileFormat.NPZ])
@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.int16])
@pytest.mark.parametrize("order", ["C", "F"])
def test_files_are_read_the_same_on_disk_and_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: FileFormat, dtype: Any, order: Any
):
    X = np.asarray(np.random.default_rng(1).integers(-5, 5, (40, 4)), dtype=dtype, order=order)
    y = np.arange(40) % 3
    path = tmp_path / "file"
    out = io.BytesIO()
    if kind is FileFormat.NPY:
        np.save(out, np.asarray(np.column_stack([X, y]).astype(dtype), order=order))
    else:
        np.savez_compressed(out, X=X, y=y)
    path.write_bytes(out.getvalue())
    found = []
    for large in (mapped_arrays.LARGE_BYTES, 1):
        monkeypatch.setattr(mapped_arrays, "LARGE_BYTES", large)
        raw = read(path, kind, DatasetLimits(100, 10, 10**6, tmp_path), None)
        found.append(raw.train)
        np.testing.assert_array_equal(raw.train.X, X)
        np.testing.assert_array_equal(raw.train.labels, y)
    assert found[0].X.dtype == found[1].X.dtype
    assert is_mapped(found[1].X)
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


def test_an_array_that_is_cut_off_within_its_archive_is_told(tmp_path: Path, tiny: None):
    whole = io.BytesIO()
    np.save(whole, np.arange(100.0))
    path = tmp_path / "cut.npz"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("X.npy", whole.getvalue()[:-80])
        archive.writestr("y.npy", whole.getvalue())
    with pytest.raises(Exception, match="does not have the size of its shape"):
        read(path, FileFormat.NPZ, DatasetLimits(1000, 10, 10**6, tmp_path), None)
