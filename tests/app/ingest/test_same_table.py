"""The same table is the same data set, through every format and the client."""

from __future__ import annotations

import csv
import io
import json
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyarrow import parquet
from safetensors.numpy import save

from stms_client.arrays import archive

NAMES = ["width", "height", "is_new"]
SETTINGS = settings(
    max_examples=20,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
texts = st.text(st.characters(categories=["L", "N", "P", "S"]), min_size=1, max_size=6)
kinds = st.one_of(
    st.lists(texts, min_size=2, max_size=4, unique=True),
    st.lists(st.sampled_from(["0", "1", "01", "1.0", "1e0", "nan", "True", "no"]), min_size=2, unique=True),
    st.lists(st.integers(-(10**9), 10**9), min_size=2, max_size=4, unique=True),
    st.lists(st.integers(-(10**6), 10**6).map(float), min_size=2, max_size=4, unique=True),
    st.just([True, False]),
)
cells = st.floats(-1e99, 1e99) | st.integers(-1000, 1000).map(float)
rows = st.lists(st.tuples(cells, cells, st.booleans()), min_size=6, max_size=16)


class Frame:
    """What the client needs of a data frame."""

    columns = NAMES

    def __init__(self, table: list[tuple[float, float, bool]]) -> None:
        self._table = table

    def to_numpy(self) -> Any:
        return np.array(self._table, dtype=object)


def csv_of(table: Any, labels: list[Any], separator: str, decimal: str) -> bytes:
    def written(cell: Any) -> str:
        return repr(cell).replace(".", decimal) if isinstance(cell, float) else str(cell)

    out = io.StringIO()
    writer = csv.writer(out, delimiter=separator, lineterminator="\n")
    writer.writerow([*NAMES, "label"])
    writer.writerows([*map(written, row), written(label)] for row, label in zip(table, labels, strict=True))
    return out.getvalue().encode()


def parquet_of(table: Any, labels: list[Any]) -> bytes:
    columns: dict[str, Any] = dict(zip(NAMES, map(list, zip(*table, strict=True)), strict=True))
    out = io.BytesIO()
    parquet.write_table(pa.table(columns | {"label": labels}), out)
    return out.getvalue()


def npz_of(table: Any, labels: list[Any]) -> bytes:
    out = io.BytesIO()
    np.savez(out, X=np.array(table, float), y=np.array(labels), feature_names=np.array(NAMES))
    return out.getvalue()


@SETTINGS
@given(rows, kinds, st.randoms(use_true_random=False))
def test_every_format_gives_the_same_classes_rows_and_names(
    ingest: Any, table: Any, names: list[Any], random: Any
) -> None:
    # Every class twice, and both values in the column of booleans.
    labels = [*names, *names, *random.choices(names, k=len(table))]
    table = [(float(k), k + 0.5, k % 2 == 0) for k in range(2 * len(names))] + table
    files = {
        "comma": csv_of(table, labels, ",", "."),
        "semicolon": csv_of(table, labels, ";", ","),
        "tab": csv_of(table, labels, "\t", "."),
        "parquet": parquet_of(table, labels),
        "npz": npz_of(table, labels),
        "client": archive(Frame(table), labels, None),
    }
    found = {}
    for kind, content in files.items():
        train, _, _ = ingest(content, declared="csv" if kind in ("comma", "semicolon", "tab") else None)
        found[kind] = train
        np.testing.assert_array_equal(train.X, np.array(table, float), err_msg=kind)
        assert train.feature_names == tuple(NAMES), kind
        assert train.classes == found["comma"].classes, kind
        np.testing.assert_array_equal(train.y, found["comma"].y, err_msg=kind)


@SETTINGS
@given(st.lists(st.integers(-9, 9), min_size=2, max_size=5, unique=True))
def test_svmlight_and_safetensors_name_whole_numbers_alike(ingest: Any, numbers: list[int]) -> None:
    labels = numbers * 2
    X = np.arange(2.0 * len(labels)).reshape(-1, 2) + 1
    plain, _, _ = ingest(npz_of([(*row, True) for row in X.tolist()], labels))
    for sign in ("{}", "{:+d}", "{}.0"):
        lines = [f"{sign.format(label)} 1:{a} 2:{b}" for label, (a, b) in zip(labels, X, strict=True)]
        train, _, _ = ingest("\n".join(lines).encode(), declared="svmlight")
        assert train.classes == plain.classes
    arrays = {"X": X, "y": np.array(labels)}
    assert ingest(save(arrays, {"feature_names": json.dumps(["a", "b"])}))[0].classes == plain.classes


@SETTINGS
@given(st.lists(st.sampled_from(["a", "b", None]), min_size=6, max_size=12))
def test_a_missing_label_is_missing_in_every_format(ingest: Any, some: list[Any]) -> None:
    labels = [*some, "a", "b", "a", "b", None]
    table = [(k * 1.0, k + 0.25, k % 2 == 0) for k in range(len(labels))]
    blank = ["" if label is None else label for label in labels]
    missing = [label is None for label in labels]
    for content in (
        csv_of(table, blank, ",", "."),
        csv_of(table, [" " if label is None else label for label in labels], ";", ","),
        parquet_of(table, labels),
        npz_of(table, blank),
        archive(Frame(table), labels, None),
        archive(Frame(table), [float("nan") if label is None else label for label in labels], None),
    ):
        train, _, _ = ingest(content, unlabelled=True)
        assert train.classes == ("a", "b")
        assert (train.y < 0).tolist() == missing


def test_missing_numbers_are_missing_in_every_format(ingest: Any) -> None:
    labels = [1.0, 2.0, None, 1.0, 2.0, None]
    table = [(k * 1.0, k + 0.25, k % 2 == 0) for k in range(6)]
    numbers = [float("nan") if label is None else label for label in labels]
    for content in (
        csv_of(table, numbers, ",", "."),
        parquet_of(table, labels),
        parquet_of(table, numbers),
        npz_of(table, numbers),
        npz_of(table, list(map(str, numbers))),
        archive(Frame(table), labels, None),
        archive(Frame(table), np.array(numbers), None),
    ):
        train, _, _ = ingest(content, unlabelled=True)
        assert (train.classes, train.y.tolist()) == (("1", "2"), [0, 1, -1, 0, 1, -1])
