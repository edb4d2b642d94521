"""Estimators of data frames: texts, categories, truth values, dates and gaps are encoded by column name."""

from __future__ import annotations

import datetime
import enum
from collections.abc import Mapping
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa
import pytest

from core.data.cell_values import microseconds_of
from core.data.frames import has_records, is_array, is_frame, table_of_frame, without_tokens
from core.data.table import TextCells
from core.errors import InvalidProblem
from core.estimators.classifiers import STMSClassifier
from core.estimators.structural_svm import StructuralSVMClassifier
from core.packed import PackedStudent
from core.students.gated import GSVM
from tests.refusals import at_fault

N = 120


class Column:
    """A column as pandas has it."""

    def __init__(self, values: list[Any], dtype: Any) -> None:
        self._values, self.dtype = values, np.dtype(dtype)

    def tolist(self) -> list[Any]:
        return self._values

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        return np.array(self._values, dtype=dtype)


class Frame:
    """A data frame as pandas has it."""

    def __init__(self, columns: Mapping[str, Column]) -> None:
        self.columns, self._columns = list(columns), columns

    def __getitem__(self, name: str) -> Column:
        return self._columns[name]

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        return np.stack([np.asarray(column, dtype) for column in self._columns.values()], axis=1)


class Interval:
    """An interval of pandas."""


class Period:
    """A period of pandas."""

    start_time = datetime.datetime(2001, 4, 1)


def columns(seed: int = 0) -> dict[str, list[Any]]:
    rng = np.random.default_rng(seed)
    size: list[Any] = rng.normal(size=N).round(2).tolist()
    size[3] = None
    return {
        "size": size,
        "colour": rng.choice(["red", "green", "blue"], N).tolist(),
        "lost": [bool(one) for one in rng.random(N) < 0.5],
        "seen": [datetime.date(2024, 1, 1 + k % 28) for k in range(N)],
        "note": [f"the {one} card number {k} is here" for k, one in enumerate(rng.choice(["old", "new"], N))],
    }


def labels(frame: dict[str, list[Any]]) -> list[str]:
    return [
        "yes" if c == "red" and "old" in t else "no"
        for c, t in zip(frame["colour"], frame["note"], strict=True)
    ]


def test_frames_of_any_library_give_the_same_table():
    given = columns()
    with_nan = [np.nan if one is None else one for one in given["size"]]
    frame = Frame(
        {
            name: Column(with_nan if name == "size" else values, float if name == "size" else object)
            for name, values in given.items()
        }
    )
    tables = [table_of_frame(one) for one in (given, pa.table(given), frame)]
    for table in tables:
        assert table.record(3) == tables[0].record(3)
        assert table.record(3)["size"] is None
        assert table.record(4)["seen"] == "2024-01-05"
    assert is_frame(frame)
    assert not is_frame(np.zeros((2, 2)))
    assert not is_array(frame)
    assert has_records(tables[0])
    assert is_array(Frame({"a": Column([1, 2], int), "b": Column([0.5, 1.0], float)}))
    assert not is_array(Frame({"a": Column([0.5, np.nan], float)}))
    assert has_records(table_of_frame({"a": [0.5, np.nan]}))
    assert not has_records(table_of_frame({"a": [0.5, 1], "b": np.array([1, 2])}))


@pytest.mark.parametrize("estimator", [STMSClassifier(), StructuralSVMClassifier()])
def test_a_frame_is_learnt_and_asked_by_name(estimator: Any):
    given = columns()
    y = labels(given)
    fitted = estimator.fit(given, y)
    turned = dict(reversed(list(columns(1).items())))
    predicted = fitted.predict(turned)
    assert np.mean(predicted == labels(turned)) > 0.95
    assert fitted.feature_names_in_.tolist() == list(given)
    with at_fault(InvalidProblem, "not_a_frame", match="must be a data frame"):
        fitted.predict(np.zeros((2, 5)))
    del turned["note"]
    with pytest.raises(InvalidProblem, match="no column 'note'"):
        fitted.predict(turned)
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        estimator.fit(given, y[:-1])


@pytest.mark.parametrize(
    ("frame", "words", "code"),
    [
        ({("a", 1): [1, 2], ("a", 2): [1, 2]}, r"several levels.*_..join", "bad_name"),
        ({1: [1, 2], "1": [1, 2]}, "two columns named '1'", "duplicate"),
        ({}, "no columns", "no_columns"),
        ({"a": []}, "no rows", "empty"),
        ({"a": 3, "b": "x"}, r"'a' is 3.*\[record\]", "wrong_shape"),
        ({"a": "text"}, r"'a' is 'text'.*\[record\]", "wrong_shape"),
        ({"a": ["x", object()]}, "type object", "bad_type"),
        ({"a": [[1.0], [1.0, 2.0]]}, "Row 1 .*the list has 2 numbers; 1 are expected", "ragged_vector"),
        ({"a": [[1.0, None], [1.0, 2.0]]}, "Row 0 .*missing or not finite", "not_finite"),
        ({"a": [[1.0, "x"], [1.0, 2.0]]}, "lists of other values.*column of each value", "bad_type"),
        ({"a": [["x"], ["y"]]}, "lists of texts.*column of each value", "bad_type"),
        ({"a": [[1.0], "x"]}, "lists and other values", "bad_type"),
        ({"a": [1.0, np.inf]}, "Row 1 .*column 'a': inf is not a finite number", "not_finite"),
        ({"a": [1e101, None]}, "Row 0 .*column 'a': 1e.101 is beyond", "too_large"),
        ({"a": [10**400, 1]}, "Row 0 .*column 'a': inf is not a finite number", "not_finite"),
        ({"a": np.ones(2, "m8[s]")}, "durations.*send seconds as a number", "bad_type"),
        ({"a": [datetime.timedelta(1), None]}, "durations.*send seconds as a number", "bad_type"),
        ({"a": pa.array([1, 2], pa.duration("ns"))}, "durations.*send seconds as a number", "bad_type"),
        ({"a": [datetime.time(1), None]}, "times of day.*seconds since midnight", "bad_type"),
        ({"a": [Interval(), None]}, "intervals.*each of their ends", "bad_type"),
        ({"a": [1j, 2]}, "complex numbers.*imaginary part", "bad_type"),
        ({"a": np.ones(2, complex)}, "complex numbers.*imaginary part", "bad_type"),
        ({"a": np.ones(2, [("p", "f8")])}, "records.*each of their fields", "bad_type"),
        ({"a": [{"p": 1}, None]}, "records.*each of their fields", "bad_type"),
        ({"a": [b"\xff", b"a"]}, "not UTF-8", "bad_encoding"),
        ({"a": np.array(["-5000", "2001"], "M8[Y]")}, "Row 0 .*'a': a year beyond 1 to 9999", "bad_date"),
    ],
)
def test_what_no_column_can_have_is_refused(frame: Any, words: str, code: str):
    with at_fault(InvalidProblem, code, match=words):
        table_of_frame(frame)


def test_mixed_values_become_texts():
    table = table_of_frame({"a": [3, "3", True, 2.5, None]})
    assert [table.record(k)["a"] for k in range(5)] == ["3", "3", "true", "2.5", None]
    vectors = table_of_frame({"v": [[1, 2], None]})
    assert vectors.record(0) == {"v": [1.0, 2.0]}


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([Decimal("0.5"), None, Decimal("NaN")], [0.5, None, None]),
        ([Fraction(1, 2), 1, Decimal(2)], [0.5, 1, 2]),
        ([np.float32(0.5), np.array(1), np.longdouble(2)], [0.5, 1, 2]),
        ([np.bool_(True), None, False], [True, None, False]),
        (np.ma.masked_array([7, 8, -999], [False, False, True]), [7, 8, None]),
        (np.ma.masked_array([[7], [8], [9]], [[False], [False], [False]]), [[7.0], [8.0], [9.0]]),
        (np.ma.masked_array(np.arange(3).astype("M8[D]"), [0, 1, 0]), ["1970-01-01", None, "1970-01-03"]),
        (["NA", " ", "a"], [None, None, "a"]),
        ([b"a", bytearray(b"b"), None], ["a", "b", None]),
        ([Colour.RED, Colour.BLUE, None], ["red", "blue", None]),
        ([Period(), datetime.datetime(2001, 4, 1), None], ["2001-04-01 00:00:00"] * 2 + [None]),
        ([UUID(int=1), Path("/a"), None], [str(UUID(int=1)), "/a", None]),
        (pa.array([1, None, 3], pa.decimal128(5, 2)), [1, None, 3]),
        (
            pa.RunEndEncodedArray.from_arrays(pa.array([2, 3], pa.int32()), pa.array(["a", "b"])),
            ["a", "a", "b"],
        ),
        (
            pa.array([1, None, 10**9], pa.timestamp("ns")),
            ["1970-01-01 00:00:00", None, "1970-01-01 00:00:01"],
        ),
        (
            pa.array([0, None, 1], pa.timestamp("s", "Europe/Berlin")),
            ["1970-01-01 00:00:00Z", None, "1970-01-01 00:00:01Z"],
        ),
    ],
)
def test_a_value_is_that_of_a_file(values: Any, expected: list[Any]):
    table = without_tokens(table_of_frame({"a": values}))
    assert [table.record(row)["a"] for row in range(3)] == expected


@pytest.mark.parametrize("unit", ["Y", "M", "W", "D", "h", "m", "s", "ms", "us", "ns"])
@pytest.mark.parametrize("objects", [False, True])
def test_dates_of_numpy_are_dates_in_every_unit(unit: str, objects: bool):
    days = np.array(["2020-01-01", "NaT", "2024-02-01"], "M8[D]").astype(f"M8[{unit}]")
    cells = table_of_frame({"a": list(days) if objects else days}).cells[0]
    assert isinstance(cells, TextCells)
    moments = [microseconds_of(text) for text in cells.texts]
    assert moments == [int(day.astype("M8[us]").astype(int)) for day in days[[0, 2]]]
    assert cells.is_gap.tolist() == [False, True, False]


class Nullable(Column):
    """A nullable column of pandas: its type is none of NumPy's, and NumPy refuses its gaps."""

    def __init__(self, values: list[Any], kind: str) -> None:
        self._values, self.dtype = values, SimpleNamespace(kind=kind)

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        if None in self._values:
            raise TypeError
        return np.array(self._values, dtype=dtype)


@pytest.mark.parametrize("kind", ["i", "f", "b"])
def test_a_gap_in_a_frame_of_numbers_is_a_gap(kind: str):
    values = [None, *range(1, N)] if kind != "b" else [None, *(k % 2 == 0 for k in range(1, N))]
    frame = Frame({"a": Nullable(values, kind), "b": Column([k % 7 for k in range(N)], int)})
    y = ["high" if k > N // 2 or k % 2 else "low" for k in range(N)]
    model = STMSClassifier(automatic=False).fit(frame, y)
    assert model.encoder_.columns[0].required is False
    assert model.predict(frame).shape == (N,)
    for given in (pa.array(values), np.ma.masked_array([one or 0 for one in values], [True] + [False] * 119)):
        assert table_of_frame({"a": given}).cells[0].is_gap.sum() == 1


@pytest.mark.parametrize("names", [[0, 1], [1.5, 2.5], ["a", 1]])
def test_names_that_are_no_texts_are_their_text_or_positions(names: list[Any]):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(N, 2))
    y = np.where(X[:, 0] > 0, "p", "q")
    numbers = Frame({name: Column(X[:, k].tolist(), float) for k, name in enumerate(names)})
    model = STMSClassifier(automatic=False).fit(numbers, y)
    np.testing.assert_array_equal(
        model.predict(numbers), STMSClassifier(automatic=False).fit(X, y).predict(X)
    )
    assert model.predict(dict(zip(names, X.T, strict=True))).shape == (N,)
    assert hasattr(model, "feature_names_in_") is ("a" in names)
    texts = {names[0]: ["u", "v"] * 60, names[1]: X[:, 0]}
    model = STMSClassifier(automatic=False).fit(texts, y)
    assert model.feature_names_in_.tolist() == [str(name) for name in names]
    assert model.score({str(name): values for name, values in texts.items()}, y) > 0.9


ASKED = ("predict", "predict_proba", "decision_function", "student_scores")


@pytest.mark.parametrize("ask", ASKED)
@pytest.mark.parametrize("gap", [None, np.nan, np.datetime64("NaT"), "NA", Decimal("NaN")])
def test_a_gap_that_training_did_not_have_is_answered_as_in_queries(ask: str, gap: Any):
    size = [k % 11 * 1.5 for k in range(N)]
    y = ["high" if one > 7 else "low" for one in size]
    colours = ["red" if one > 7 else "blue" for one in size]
    model = STMSClassifier(automatic=False).fit({"size": size, "colour": colours}, y)
    assert model.encoder_ is not None
    assert [column.fills for column in model.encoder_.columns] == [True, True]
    asked = {"size": [gap, gap, 15.0], "colour": ["red", "blue", gap]}
    assert len(getattr(model, ask)(asked)) == 3
    # The other column says what the missing one would.
    assert model.predict(asked).tolist() == ["high", "low", "high"]


@pytest.mark.parametrize("ask", ASKED)
@pytest.mark.parametrize("gap", [None, np.nan, np.datetime64("NaT"), "NA", Decimal("NaN")])
def test_a_gap_of_the_only_column_is_refused_as_in_queries(ask: str, gap: Any):
    size = [k % 11 * 1.5 for k in range(N)]
    y = ["high" if one > 7 else "low" for one in size]
    words = r"row 1 \(counted from 0\): 'size' has no value, and had one in every training row"
    numbers = STMSClassifier(automatic=False).fit({"size": size}, y)
    with at_fault(InvalidProblem, "missing_value", match=words):
        getattr(numbers, ask)({"size": [1.0, None if gap == "NA" else gap]})


def test_a_text_without_words_is_answered_as_in_queries():
    notes = [f"the {one} card number {k} is here" for k, one in enumerate(["old", "new"] * 60)]
    model = STMSClassifier(automatic=False).fit({"note": notes}, ["a", "b"] * 60)
    assert model.predict({"note": [""]}).shape == (1,)
    with at_fault(InvalidProblem, "missing_value"):
        model.predict({"note": [None]})


def test_columns_beyond_those_of_training_are_refused_as_in_queries():
    given = columns()
    model = STMSClassifier(automatic=False).fit(given, labels(given))
    with at_fault(InvalidProblem, "unknown_column", match="no column 'more'"):
        model.predict(given | {"more": [1] * N})
    numbers = {"a": np.arange(N) % 7, "b": np.arange(N) % 5}
    model = STMSClassifier(automatic=False).fit(numbers, ["a", "b"] * 60)
    np.testing.assert_array_equal(model.predict(dict(reversed(numbers.items()))), model.predict(numbers))
    with at_fault(InvalidProblem, "unknown_column", match="no column 'more'"):
        model.predict(numbers | {"more": [1] * N})
    with at_fault(InvalidProblem, "missing_column", match="no column 'b'"):
        model.predict({"a": [1]})


def test_a_list_of_records_is_a_frame():
    given = columns()
    records = [dict(zip(given, row, strict=True)) for row in zip(*given.values(), strict=True)]
    for record in records:
        if record["size"] is None:
            del record["size"]
    fitted = STMSClassifier(automatic=False).fit(records, labels(given))
    other = STMSClassifier(automatic=False).fit(given, labels(given))
    np.testing.assert_array_equal(fitted.decision_function(records), other.decision_function(given))


@pytest.mark.parametrize("names", [["note"], ["size", "note"]])
def test_students_of_texts_are_packed_in_float32(names: list[str]):
    given = columns()
    y = labels(given)
    fitted = STMSClassifier(GSVM(C=10.0)).fit({name: given[name] for name in names}, y)
    for student in fitted.students_.values():
        assert student.form.number_type == np.float32
        assert PackedStudent.from_bytes(student.to_bytes()).to_bytes() == student.to_bytes()
        np.testing.assert_array_equal(student.form.coef, student.form.coef.astype(np.float32))
    numbers = STMSClassifier(GSVM(C=10.0)).fit(np.arange(N, dtype=float)[:, None], y)
    assert {one.form.number_type for one in numbers.students_.values()} == {np.dtype(np.float64)}
