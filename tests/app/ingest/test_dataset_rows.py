"""Single rows of stored data sets: those of the whole, and no more of the file than they need."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from app.ingest.dataset_format import encode
from app.ingest.dataset_rows import StoredPart
from core.data.dataset import LabelledData


def stored(X: Any, labels: Any, test: LabelledData | None = None) -> bytes:
    data = LabelledData.from_arrays(X, labels, unlabelled=True)
    return b"".join(encode(data, test))


def reader(data: bytes, taken: list[int] | None = None) -> Any:
    def read(start: int, stop: int) -> memoryview:
        assert 0 <= start < stop <= len(data)
        if taken is not None:
            taken.append(stop - start)
        return memoryview(data)[start:stop]

    return read


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("is_sparse", [False, True])
def test_rows_are_those_of_the_whole(dtype: Any, is_sparse: bool) -> None:
    rng = np.random.default_rng(0)
    X = (rng.normal(size=(50, 6)) * (rng.random((50, 6)) < 0.5)).astype(dtype)
    labels = [None if k % 7 == 6 else "abc"[k % 3] for k in range(50)]
    part = StoredPart(reader(stored(sp.csr_array(X) if is_sparse else X, labels)), "train")

    def dense(x: Any) -> list[float]:
        if isinstance(x, list):
            return x
        row = [0.0] * 6
        for column, value in zip(x["indices"], x["values"], strict=True):
            row[column] = value
        return row

    rows, has_more = part.rows(code=None, after=9, limit=20)
    assert has_more
    assert [row.number for row in rows] == list(range(10, 30))
    assert [dense(row.x) for row in rows] == X[10:30].tolist()
    assert [row.code for row in rows] == [-1 if k % 7 == 6 else k % 3 for k in range(10, 30)]
    of_class, more = part.rows(code=1, after=-1, limit=100)
    assert not more
    assert [row.number for row in of_class] == [k for k in range(50) if k % 3 == 1 and k % 7 != 6]
    assert part.rows(code=None, after=49, limit=5) == part.rows(code=2, after=2**31, limit=5) == ([], False)


def test_no_more_is_read_than_is_shown() -> None:
    data = stored(np.arange(200_000.0).reshape(2000, 100), np.arange(2000) % 2)
    taken: list[int] = []
    part = StoredPart(reader(data, taken), "train")
    rows, _ = part.rows(code=None, after=1500, limit=3)
    assert rows[0].x == np.arange(150_100.0, 150_200.0).tolist()
    assert sum(taken) < 10_000


def test_long_rows_come_one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.ingest.dataset_rows.MAX_VALUES", 25)
    part = StoredPart(reader(stored(np.zeros((6, 10)), [0, 1] * 3)), "train")
    rows, has_more = part.rows(code=None, after=-1, limit=6)
    assert ([row.number for row in rows], has_more) == ([0, 1], True)
    rows, has_more = part.rows(code=None, after=3, limit=6)
    assert ([row.number for row in rows], has_more) == ([4, 5], False)


def test_another_file_is_refused() -> None:
    with pytest.raises(ValueError, match="not a data set"):
        StoredPart(reader(b"\x02" + bytes(7) + b"{}"), "train")
