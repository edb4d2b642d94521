"""Tables of raw cells as they are stored: read back exactly, as a whole and row by row."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.ingest.dataset_format import decode, encode
from app.ingest.dataset_rows import TABLE_FORMAT, StoredPart
from app.ingest.relabelling import relabelled
from core.data.column_kinds import infer_schema
from core.data.extras import Extras
from core.data.table import Cells, NumberCells, Table, TextCells, VectorCells
from core.encoding.labelled_table import LabelledTable

numbers = st.none() | st.floats(allow_nan=False, allow_infinity=False) | st.integers(-5, 5).map(float)
texts = st.none() | st.text(st.characters(exclude_categories=["Cs"]), max_size=5)


def column(kind: str, n: int) -> st.SearchStrategy[Cells]:
    def listed(cells: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
        return st.lists(cells, min_size=n, max_size=n)

    if kind == "text":
        return listed(texts).map(TextCells.of)
    if kind == "truth":
        return listed(st.sampled_from([0.0, 1.0, np.nan])).map(lambda one: NumberCells(np.array(one), True))
    if kind == "vector":
        vectors = st.tuples(st.floats(-9, 9), st.floats(-9, 9)) | st.just((np.nan, np.nan))
        return listed(vectors).map(lambda one: VectorCells(np.array(one)))
    floats = listed(numbers.map(lambda one: np.nan if one is None else one))
    return floats.map(lambda one: NumberCells(np.array(one)))


@st.composite
def tables(draw: Any, kinds: list[str] | None = None) -> LabelledTable:
    n = draw(st.integers(2, 6))
    kinds = kinds or draw(st.lists(st.sampled_from(["number", "text", "truth", "vector"]), min_size=1))
    names = tuple(f"{kind} {k} é" for k, kind in enumerate(kinds))
    table = Table(names, tuple(draw(column(kind, n)) for kind in kinds))
    y = np.array(draw(st.lists(st.integers(-1, 1), min_size=n, max_size=n)), dtype=np.int32)
    extras = Extras(np.ones((n, 1)), ("p",), (), np.zeros((n, 2))) if draw(st.booleans()) else Extras()
    views = (("v", names[:1]),) if draw(st.booleans()) else ()
    said = infer_schema(Table(("x",), (NumberCells(np.arange(3.0)),)))[0]
    schema = tuple(type(said)(name, said.kind, "given", "given", 1, 2, "%d", "a hint") for name in names)
    return LabelledTable(table, schema, y, ("a", "ü"), ("label",), views, extras)


def stored(train: LabelledTable, test: LabelledTable | None = None) -> bytearray:
    return bytearray(b"".join(encode(train, test)))


def assert_same(one: LabelledTable, other: Any) -> None:
    assert isinstance(other, LabelledTable)
    assert (one.table.names, one.schema, one.classes) == (other.table.names, other.schema, other.classes)
    assert (one.known, one.views) == (other.known, other.views)
    np.testing.assert_array_equal(one.y, other.y)
    assert one.extras.privileged_names == other.extras.privileged_names
    assert one.extras.arrays.keys() == other.extras.arrays.keys()
    for mine, its in zip(one.table.cells, other.table.cells, strict=True):
        assert type(mine) is type(its)
        if isinstance(mine, TextCells):
            np.testing.assert_array_equal(mine.codes, its.codes)
            assert list(mine.texts) == list(its.texts)
        else:
            np.testing.assert_array_equal(mine.values, its.values)
            assert getattr(mine, "is_truth", None) == getattr(its, "is_truth", None)


@settings(deadline=None)
@given(tables(), st.data())
def test_a_table_is_read_back_exactly(train: LabelledTable, data: st.DataObject) -> None:
    test = data.draw(st.none() | st.just(train.take(np.array([1, 0]))))
    content = stored(train, test)
    first, second = decode(content)
    assert_same(train, first)
    assert (test is None) == (second is None)
    if test is not None:
        assert_same(test, second)
    assert stored(first, second) == content


@settings(deadline=None)
@given(tables())
def test_single_rows_are_records(train: LabelledTable) -> None:
    content = memoryview(stored(train))
    part = StoredPart(lambda first, end: content[first:end], "train")
    rows, has_more = part.rows(code=None, after=-1, limit=100)
    assert not has_more
    assert [row.x for row in rows] == [train.table.record(row) for row in range(train.n)]
    assert all(row.is_record and row.size == train.d for row in rows)
    json.dumps([row.x for row in rows], allow_nan=False)


def test_other_labels_leave_the_cells_as_they_are() -> None:
    cells = (TextCells.of(["x", None, "y"]), NumberCells(np.array([1.0, np.nan, 3.0])))
    table = Table(("t", "n"), cells)
    train = LabelledTable(table, infer_schema(table), np.array([0, -1, 1], np.int32), ("a", "b"))
    codes = np.array([0, 1, 1], dtype=np.int32)
    content = bytearray(b"".join(relabelled(stored(train), codes, ("b", "c"), ("a", "b"))))
    again, _ = decode(content)
    assert (again.classes, again.y.tolist()) == (("b", "c"), [0, 1, 1])
    assert TABLE_FORMAT.encode() in bytes(content[:200])
    assert isinstance(again, LabelledTable)
    assert again.table.record(1) == {"t": None, "n": None}


def test_a_file_of_another_format_is_refused() -> None:
    cells = NumberCells(np.array([1.0, np.nan]))
    table = Table(("n",), (cells,))
    content = stored(LabelledTable(table, infer_schema(table), np.array([0, 1], np.int32), ("a", "b")))
    other = bytearray(bytes(content).replace(TABLE_FORMAT.encode(), b"stms.dataset.9"))
    with pytest.raises(ValueError, match="not a data set of format"):
        decode(other)
    with pytest.raises(ValueError, match="not a data set of format"):
        StoredPart(lambda first, end: memoryview(other)[first:end], "train")
