"""Estimators of data frames: texts, categories, truth values, dates and gaps are encoded by column name."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from core.data.frames import has_records, is_frame, table_of_frame
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
    assert has_records(frame)
    assert not has_records(Frame({"a": Column([1, 2], int), "b": Column([0.5, 1.0], float)}))
    assert has_records(Frame({"a": Column([0.5, np.nan], float)}))


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
        ({1: [1, 2]}, "must have texts as names", "bad_name"),
        ({"a": ["x", object()]}, "type object", "bad_type"),
        ({"a": [[1.0], [1.0, 2.0]]}, "must all have as many numbers", "bad_vector"),
        ({"a": [[1.0, "x"], [1.0, 2.0]]}, "must all have as many numbers", "bad_vector"),
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
