"""Rows of NumPy, data frames and other libraries, as the client sends them."""

from __future__ import annotations

import io
from datetime import date
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from stms_client import Client, InvalidInput, Retry, StmsError
from stms_client.arrays import archive, numbers, row_body, row_values, rows_body

QUERY = "/v1/models/pets/classes/cat:query"


class Frame:
    """What a data frame has: names of columns, and ``to_numpy``."""

    def __init__(self, values: Any, columns: list[str] | None = None) -> None:
        self._values = values
        if columns is not None:
            self.columns = columns

    def __len__(self) -> int:
        return len(self._values)

    def to_numpy(self) -> Any:
        return np.asarray(self._values)


class Tensor:
    """What a tensor has: a conversion to NumPy."""

    def __init__(self, values: Any) -> None:
        self._values = values

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        return np.asarray(self._values, dtype)


def test_one_row_of_any_kind_is_sent_as_numbers():
    for row in ([1.0, 2.0], (1.0, 2.0), np.array([1, 2]), Frame([1, 2]), Tensor([1.0, 2.0])):
        assert row_values(row) == [1.0, 2.0]
    sparse = {"indices": np.array([3, 7]), "values": Frame(np.array([1.5, 2.0]))}
    with_lists = row_values({"indices": [3, 7], "values": [1.5, 2.0]})
    assert row_values(sparse) == with_lists == {"indices": [3, 7], "values": [1.5, 2.0]}
    assert [type(index) for index in row_values(sparse)["indices"]] == [int, int]


class Series(Frame):
    """What a column or row of pandas has: an index beside the values."""

    def __init__(self, values: Any, index: list[Any]) -> None:
        super().__init__(values)
        self.index = index


def test_one_row_may_have_the_names_of_its_columns():
    named = {"width": 2.0, "length": 1.5}
    assert row_values({"width": np.float64(2.0), "length": 1.5}) == named
    assert row_values(Series([2.0, 1.5], ["width", "length"])) == named
    assert row_values(Series([2.0, 1.5], [0, 1])) == [2.0, 1.5]
    sparse = {"indices": [1], "values": [2.0], "index_base": 1}
    assert row_values(sparse) == sparse
    with pytest.raises(InvalidInput, match="'width'"):
        row_values(Series([2.0, 1.5], ["width", "width"]))
    with pytest.raises(InvalidInput, match="must be text"):
        row_values({1: 2.0})


def test_numbers_of_numpy_in_a_list_are_numbers(written):
    written.on("POST", QUERY, {"match": True, "score": 1, "threshold": 0, "model": "pets", "version": 1})
    with Client(written.address, "key") as client:
        assert client.is_class("pets", "cat", [np.float32(1.5), np.int64(2)])
        assert written.requests[-1].json == {"x": [1.5, 2]}


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ([1.0, object()], r"x\[1\] is <object .* is not a number"),
        ([1.0, float("nan")], r"x\[1\] is nan, which is not a finite number"),
        ({"indices": [1], "values": [float("inf")]}, r"x\.values\[0\] is inf"),
        ([1.0, "\udce9"], r"x\[1\] is '\\udce9', which is not valid text"),
        ([b"1"], r"x\[0\] is b'1', which is not a number"),
        (5, "A row of numbers is needed, got 5"),
        (np.array([np.nan]), r"x\[0\] is nan"),
        (np.array(["a"]), "of numbers is needed"),
        (np.zeros((2, 2)), "is needed, but this one has 2 axes"),
    ],
)
def test_what_cannot_be_sent_is_told_in_a_sentence(row, reason):
    with Client("http://127.0.0.1:9", "key") as client, pytest.raises(InvalidInput, match=reason) as caught:
        client.is_class("pets", "cat", row)
    assert isinstance(caught.value, StmsError)


@pytest.mark.parametrize(
    ("labels", "sent"),
    [
        (["a", float("nan"), None], ["a", "", ""]),
        ([b"a", "b"], ["a", "b"]),
        ([True, None], ["True", ""]),
        ([1, 2.0, None], ["1", "2.0", ""]),
        (np.ma.masked_array([1, 2], [False, True]), ["1", ""]),
        ([1, np.ma.masked], ["1", ""]),
    ],
)
def test_labels_that_are_missing_are_empty_and_the_others_texts(labels, sent):
    with np.load(io.BytesIO(archive(np.zeros((len(labels), 1)), labels, None))) as arrays:
        assert arrays["y"].tolist() == sent


@pytest.mark.parametrize("kind", [np.asarray, Frame, Tensor])
def test_many_rows_of_any_kind_are_sent_as_raw_numbers(written, kind):
    written.on(
        "POST",
        QUERY,
        np.array([1.0, -1.0]).tobytes(),
        X_Tensor_Shape="2",
        X_Tensor_Columns="score",
        X_Threshold="0",
        X_Model="pets",
        X_Model_Version="1",
    )
    with Client(written.address, "key") as client:
        assert client.query_rows("pets", "cat", kind([[1, 2], [3, 4]])).matches.tolist() == [True, False]
    [request] = written.requests
    assert (request.headers["X-Tensor-Dtype"], request.headers["X-Tensor-Shape"]) == ("float64", "2,2")
    assert np.frombuffer(request.body).tolist() == [1.0, 2.0, 3.0, 4.0]


def test_float32_is_kept_and_other_numbers_become_float64():
    assert numbers(np.ones((1, 2), np.float32), 2).dtype == np.float32
    for values in (np.ones((1, 2), np.int8), np.array([[1, 2.5]], object), [[True, False]]):
        assert numbers(values, 2).dtype == np.float64


@pytest.mark.parametrize(
    ("values", "axes", "reason"),
    [
        (np.ones((1, 2)), 1, "1 axes|has 2 axes"),
        (np.ones(2), 2, "rows, columns"),
        (np.array([["1", "2"]]), 2, "but the type is <U1"),
        ([["1", 2]], 2, "but the type is <U"),
        (np.array([[1, {}]], object), 2, "of numbers is needed"),
    ],
)
def test_arrays_of_another_shape_or_of_texts_are_refused(values, axes, reason):
    with pytest.raises(ValueError, match=reason):
        numbers(values, axes)


NO_NUMBERS = {
    "masked": np.ma.masked_array([-999.0, 2.0], [True, False]),
    "seconds": np.array([5, 6], "timedelta64[s]"),
    "nanoseconds": np.array([5, 6], "timedelta64[ns]"),
    "dates": np.array([5, 6], "datetime64[D]"),
    "moments": np.array([5, 6], "datetime64[ns]"),
    "complex": np.array([5.0 + 0j, 6.0]),
    "texts": np.array(["5", "6"]),
    "bytes": np.array([b"5", b"6"]),
    "text objects": np.array(["5", 6.0], object),
    "gaps": np.array([None, 6.0], object),
    "masked objects": np.array([np.ma.masked, 6.0], object),
    "duration objects": np.array([np.timedelta64(5, "ns"), 6.0], object),
    "list of durations": [np.timedelta64(5, "ns"), 6.0],
    "list of moments": [np.datetime64(5, "ns"), 6.0],
    "list of masked": [np.ma.masked, 6.0],
    "list of complex": [np.complex128(5.0), 6.0],
    "sparse durations": {"indices": [0], "values": np.array([5], "timedelta64[ns]")},
    "sparse masked": {"indices": [0], "values": [np.ma.masked]},
}


@pytest.mark.parametrize("name", NO_NUMBERS)
def test_what_is_no_number_is_refused_and_not_sent(name: str):
    row = NO_NUMBERS[name]
    with Client("http://127.0.0.1:9", "key", retry=Retry(attempts=1)) as client:
        ways = [
            lambda: client.query("pets", "cat", row),
            lambda: client.predict("pets", row),
            lambda: client.query_classes("pets", ["cat"], row),
            lambda: client.query_rows("pets", "cat", [row, row]),
        ]
        if isinstance(row, np.ndarray):
            table = np.ma.stack([row, row])
            columns = {"a": row, "b": np.ones(2)}
            ways += [
                lambda: client.query_rows("pets", "cat", table),
                lambda: client.upload_rows(table, ["a", "b"], name="rows"),
                lambda: client.upload_rows([row, row], ["a", "b"], name="rows"),
                lambda: client.upload_rows(columns, ["a", "b"], name="rows"),
            ]
        for way in ways:
            with pytest.raises(InvalidInput):
                way()


def test_the_place_of_what_is_no_number_is_named():
    table = np.ma.masked_array(np.ones((2, 2)), [[0, 0], [0, 1]])
    with pytest.raises(InvalidInput, match=r"the value at \[1, 1\] is masked"):
        numbers(table, 2)
    with pytest.raises(InvalidInput, match=r"of column 'b' the type is timedelta64"):
        numbers({"a": [1.0], "b": np.array([5], "timedelta64[s]")}, 2)
    with pytest.raises(InvalidInput, match=r"of column 'b' the type is datetime64"):
        numbers(pa.table({"a": [1.0], "b": [date(2019, 5, 6)]}), 2)


def test_numbers_of_every_type_stay_numbers():
    for column in (
        np.array([True, False]),
        np.array([5, 6], np.float16),
        np.array([5, 6], object),
        np.array([np.float32(5), Decimal(6), Fraction(1, 2), np.bool_(True)], object),
        np.ma.masked_array([5.0, 6.0], [False, False]),
        pa.array([5, 6]),
    ):
        assert numbers(column, 1).tolist() == [float(value) for value in column.tolist()]
    mixed = pa.table({"a": [True, False], "b": [1.5, 2.5]})
    assert numbers(mixed, 2).tolist() == [[1.0, 1.5], [0.0, 2.5]]
    assert row_values([Decimal("1.5"), np.int8(2), 3]) == [1.5, 2, 3]


def read(content: bytes) -> dict[str, Any]:
    with np.load(io.BytesIO(content), allow_pickle=False) as file:
        return {name: file[name].tolist() for name in file.files}


def test_rows_and_labels_become_an_archive_of_arrays():
    assert read(archive([[1, 2], [3, 4]], ["a", "b"], None)) == {"X": [[1, 2], [3, 4]], "y": ["a", "b"]}
    frame = Frame([[1.0, 2.0]], ["width", "height"])
    assert read(archive(frame, np.array(["a", None], object)[:1], (frame, [None]))) == {
        "X_train": [[1.0, 2.0]],
        "y_train": ["a"],
        "X_test": [[1.0, 2.0]],
        "y_test": [""],
        "feature_names": ["width", "height"],
    }
    assert read(archive([[1.0], [2.0]], np.array([3, np.nan], object), None))["y"] == ["3", ""]
    with pytest.raises(ValueError, match="1 rows, but 2 labels"):
        archive([[1.0]], [1, 2], None)


def test_columns_of_a_data_frame_are_put_into_the_order_of_the_model(written):
    scores = {"X_Tensor_Shape": "2", "X_Tensor_Columns": "score", "X_Threshold": "0", "X_Model": "pets"}
    body = np.array([1.0, -1.0]).tobytes()
    written.on("POST", QUERY.replace("pets", "pets@7"), body, X_Model_Version="7", **scores)
    version = {"version": 7, "inputs": {"columns": ["a", "b"]}}
    written.on("GET", "/v1/models/pets/versions/latest", version)
    with Client(written.address, "key") as client:
        client.query_rows("pets", "cat", Frame([[1.0, 2.0], [3.0, 4.0]], ["b", "a"]))
        sent = np.frombuffer(written.requests[-1].body).reshape(2, 2)
        np.testing.assert_array_equal(sent, [[2, 1], [4, 3]])
        for columns in (["b", "c"], ["a", "a"]):
            with pytest.raises(InvalidInput, match="columns of the model"):
                client.query_rows("pets", "cat", Frame([[1.0, 2.0]], columns))


def test_rows_with_names_are_sent_as_records():
    assert row_body({"colour": "red", "size": None}) == {"record": {"colour": "red", "size": None}}
    assert row_body([1.0, 2.0]) == {"x": [1.0, 2.0]}
    sparse = {"indices": [1], "values": [2.0]}
    assert row_body(sparse) == {"x": sparse}
    assert rows_body([{"a": 1}, {"a": 2}]) == {"records": [{"a": 1}, {"a": 2}]}
    assert rows_body([{"a": 1}, sparse]) == {"rows": [{"a": 1}, sparse]}
    assert rows_body([]) == {"rows": []}
