from __future__ import annotations

import io
import time
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from app.domain.errors import InvalidRequest, TooLarge
from app.ingest.raw import DatasetLimits
from tests.refusals import refused_as

LABELS = ["cat", "犬", "cat", "犬"]


def file_of(columns: dict[str, Any], **options: Any) -> bytes:
    out = io.BytesIO()
    parquet.write_table(pa.table(columns), out, **options)
    return out.getvalue()


def faults_of(ingest: Any, content: bytes) -> list[tuple[str, str, int | None, int | None]]:
    with pytest.raises(InvalidRequest) as caught:
        ingest(content)
    return [(fault.field, fault.code, fault.row, fault.column) for fault in caught.value.faults]


def test_columns_of_numbers_and_a_label_column_are_read(ingest: Any) -> None:
    columns = {"a": [1, 2, 3, 4], "b": [0.5, 1.5, 2.5, 3.5], "c": [True, False, True, True], "kind": LABELS}
    train, _, summary = ingest(file_of(columns))
    np.testing.assert_array_equal(train.X, [[1, 0.5, 1], [2, 1.5, 0], [3, 2.5, 1], [4, 3.5, 1]])
    assert train.feature_names == ("a", "b", "c")
    assert train.classes == ("cat", "犬")
    assert summary["label_column"] == "kind"


def test_float32_stays_float32_and_labels_may_be_numbers_elsewhere(ingest: Any) -> None:
    columns = {"y": pa.array([3, 1, 3, 1]), "a": pa.array([1, 2, 3, 4], pa.float32())}
    train, _, _ = ingest(file_of(columns), label_column="y")
    assert train.X.dtype == np.float32
    assert train.classes == ("1", "3")


def test_many_batches_and_categories_are_put_together(ingest: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.ingest.parquet._BATCH_ROWS", 7)
    labels = pa.array(["a", "b", "c"] * 20).dictionary_encode()
    train, _, _ = ingest(file_of({"x": np.arange(60.0), "y": labels}, row_group_size=25))
    assert train.X[:, 0].tolist() == list(range(60))
    assert train.y.tolist() == [0, 1, 2] * 20


def test_missing_and_infinite_values_are_named(ingest: Any) -> None:
    content = file_of({"a": [1.0, None, 3.0, 4.0], "b": [1, 2, 3, None], "y": ["x", "x", None, "z"]})
    assert faults_of(ingest, content) == [("y", "missing_label", 2, None)]
    for gap in (None, float("nan")):
        train, _, _ = ingest(file_of({"a": [1.0, gap, 3.0, 4.0], "b": [1, 2, 3, 4], "y": LABELS}))
        assert train.table.record(1) == {"a": None, "b": 2}
    content = file_of({"a": [1.0, np.inf, 3.0, 4.0], "y": LABELS})
    assert faults_of(ingest, content) == [("X", "not_finite", 1, 0)]


def test_columns_that_are_no_numbers_are_named(ingest: Any) -> None:
    columns = {"a": [{"p": 1}] * 4, "b": [[[1]], [[2]], [[3]], [[4]]], "y": LABELS}
    assert faults_of(ingest, file_of(columns)) == [("X", "bad_type", None, 0), ("X", "bad_type", None, 1)]
    durations = pa.array([1, 2, 3, 4], pa.duration("s"))
    assert faults_of(ingest, file_of({"a": [1, 2, 3, 4], "y": durations})) == [
        ("y", "bad_label_type", None, None)
    ]


@pytest.mark.parametrize("kept", [0.2, 0.7, 0.99])
def test_a_truncated_file_is_told(ingest: Any, kept: float) -> None:
    content = file_of({"a": np.arange(500.0), "y": ["a", "b"] * 250})
    with refused_as(InvalidRequest, "truncated_upload"):
        ingest(content[: int(kept * len(content))])


def test_damaged_pages_are_told(ingest: Any) -> None:
    content = bytearray(file_of({"a": np.random.default_rng(0).normal(size=500), "y": ["a", "b"] * 250}))
    content[4:200] = b"\xff" * 196
    with refused_as(InvalidRequest, "unreadable_file"):
        ingest(bytes(content))


def test_empty_large_and_bloated_files_are_refused(ingest: Any) -> None:
    with refused_as(InvalidRequest, "no_rows"):
        ingest(file_of({"a": pa.array([], pa.float64()), "y": pa.array([], pa.string())}))
    content = file_of({"a": np.zeros(1000), "y": ["a", "b"] * 500})
    for limits in (
        DatasetLimits(999, 10, 10**6),
        DatasetLimits(1000, 1, 10**6),
        DatasetLimits(1000, 2, 10_000),
    ):
        with pytest.raises(TooLarge):
            ingest(content, limits=limits)
    with pytest.raises(TooLarge):
        ingest(file_of({"a": [1, 2], "y": ["a" * 50_000, "b"]}), limits=DatasetLimits(10, 10, 40_000))


def test_one_huge_label_repeated_is_never_unpacked(ingest: Any) -> None:
    huge = pa.DictionaryArray.from_arrays(np.zeros(9000, np.int32), ["x" * 10**6])
    content = file_of({"a": np.arange(9000.0), "y": huge})
    assert len(content) < 2 * 10**6
    with refused_as(InvalidRequest, "label_too_long"):
        ingest(content)


@pytest.mark.long
def test_many_columns_are_read_in_time_that_is_linear_in_their_number(ingest: Any) -> None:
    columns = {f"c{position}": [0.0, 1.0, 2.0, 3.0] for position in range(20_000)}
    content = file_of(columns | {"label": ["a", "a", "b", "b"]})
    start = time.process_time()
    train, _, _ = ingest(content, limits=DatasetLimits(10, 20_001, 10**8))
    assert train.d == 20_000
    assert time.process_time() - start < 15


@pytest.mark.parametrize(
    ("name", "code"), [("x" * 401, "name_too_long"), ("la\0bel", "bad_name"), ("x" * 400, None)]
)
@pytest.mark.parametrize("which", ["label_column", "index_column"])
def test_names_of_columns_that_are_no_features_are_kept_only_if_they_can_be_stored(
    ingest: Any, which: str, name: str, code: str | None
) -> None:
    names = {"label_column": "kind", "index_column": "number"} | {which: name}
    content = file_of(
        {names["label_column"]: LABELS, names["index_column"]: [3, 5, 8, 2], "size": [1, 2, 3, 4]}
    )
    if code is None:
        _, _, summary = ingest(content, label_column="0", index_column="1")
        assert name in {decision["value"] for decision in summary["reading"]}
        return
    with pytest.raises(InvalidRequest) as caught:
        ingest(content, label_column="0", index_column="1")
    assert [(fault.field, fault.code) for fault in caught.value.faults] == [(which, code)]
    assert len(str(caught.value)) < 300
