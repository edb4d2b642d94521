"""Rows of a data set without some, and followed by those of another one: numbers, sparse rows and tables."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from core.data.column_kinds import infer_schema
from core.data.dataset import LabelledData
from core.data.extras import Extras, RawExtras
from core.data.schema import Kind
from core.data.table import NumberCells, Table, TextCells, VectorCells
from core.encoding.labelled_table import LabelledTable
from core.encoding.revised_rows import RevisedRows, Rows, revised_rows
from core.errors import InvalidProblem

NAN = float("nan")


def revised(train: Rows, other: Rows | None = None, *deleted: int, test: Rows | None = None) -> RevisedRows:
    return revised_rows(train, test, deleted=np.array(deleted, dtype=np.intp), other=other)


def dense(rows: Any, labels: str, names: str | None = None, **more: Any) -> LabelledData:
    return LabelledData.from_arrays(np.array(rows), list(labels), names, min_per_class=1, **more)


def table(labels: str, **columns: Any) -> LabelledTable:
    cells = Table(tuple(columns), tuple(columns.values()))
    codes, classes = LabelledData.from_arrays(np.zeros((len(labels), 1)), list(labels), min_per_class=1), None
    return LabelledTable(cells, infer_schema(cells, {}, ()), codes.y, classes or codes.classes)


def numbers(*values: float) -> NumberCells:
    return NumberCells(np.array(values))


def names_of(rows: Rows) -> list[str]:
    return [rows.classes[code] for code in rows.y]


def refused(code: str, *arguments: Any, **more: Any) -> str:
    with pytest.raises(InvalidProblem) as error:
        revised(*arguments, **more)
    [fault] = error.value.faults
    assert fault.code == code
    return fault.message


BASE = dense([[1.0], [2.0], [3.0], [4.0], [5.0]], "aabba")


def test_rows_are_deleted_first_and_equal_ones_are_left_out() -> None:
    other = dense([[2.0], [1.0], [3.0], [9.0], [9.0]], "aaabb")
    made = revised(BASE, other, 0)
    # Row 0 was deleted, so the same row is appended; 3.0 has another label here.
    assert np.asarray(made.train.X).ravel().tolist() == [2, 3, 4, 5, 1, 3, 9, 9]  # type: ignore[union-attr]
    assert names_of(made.train) == list("abbaaabb")
    assert (made.added, made.equal, made.changed) == (4, 1, ("a", "b"))


def test_new_classes_are_put_in_order_and_the_test_part_keeps_its_labels() -> None:
    train, other = dense([[1.0], [2.0], [3.0], [4.0]], "aacc"), dense([[7.0], [8.0], [9.0]], "bbc")
    test = LabelledData.with_codes(np.array([[0.5], [0.6]]), ["c", "a"], train.classes)
    made = revised(train, other, test=test)
    assert made.train.classes == ("a", "b", "c")
    assert names_of(made.train) == list("aaccbbc")
    assert made.test is not None
    assert names_of(made.test) == ["c", "a"]
    assert made.changed == ("b", "c")


def test_a_class_without_rows_is_gone_unless_the_test_part_has_it() -> None:
    train = dense([[1.0], [2.0], [3.0], [4.0], [5.0], [6.0]], "aabbcc")
    tests = [LabelledData.with_codes(np.array([[0.5]]), [label], train.classes) for label in "bc"]
    made = revised(train, None, 0, 1, test=tests[1])
    assert (made.train.classes, made.changed) == (("b", "c"), ("a",))
    assert made.test is not None
    assert names_of(made.test) == ["c"]
    assert "'b'" in refused("test_part_without_class", train, None, 2, 3, test=tests[0])


@pytest.mark.parametrize(
    ("deleted", "code"),
    [(range(5), "empty"), ((2, 3), "single_class"), ((2,), "class_too_small")],
)
def test_what_is_left_must_be_a_data_set(deleted: Any, code: str) -> None:
    refused(code, BASE, None, *deleted)


def test_columns_are_matched_by_their_names() -> None:
    train = dense([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0], [7.0, 8.0]], "aabb", ("x", "y"))
    other = dense([[4.0, 3.0], [0.0, 9.0]], "ab", ("y", "x"))
    made = revised(train, other)
    assert isinstance(made.train, LabelledData)
    assert np.asarray(made.train.X)[4:].tolist() == [[9, 0]]
    assert made.equal == 1
    assert "lack the column 'y'" in refused("wrong_columns", train, dense([[1.0], [2.0]], "ab", ("x",)))
    more = dense([[1.0, 2.0, 3.0], [1.0, 2.0, 4.0]], "ab", ("x", "y", "z"))
    assert "'z'" in refused("wrong_columns", train, more)
    refused("wrong_columns", train, dense([[1.0, 2.0], [3.0, 4.0]], "ab"))
    refused("wrong_columns", BASE, dense([[1.0, 2.0], [3.0, 4.0]], "ab"))


def test_rows_that_single_precision_cannot_tell_apart_are_different() -> None:
    made = revised(BASE, dense([[1.0 + 1e-12], [2.0]], "ab"))
    assert (made.added, made.equal) == (2, 0)
    narrow = LabelledData.from_arrays(np.array([[1], [2]], np.float32), ["a", "b"], min_per_class=1)
    assert revised(BASE, narrow).equal == 1


def test_sparse_rows_may_end_at_an_earlier_column() -> None:
    def sparse(rows: Any) -> LabelledData:
        X = sp.csr_array(np.array(rows))
        return LabelledData.from_arrays(X, list("aabb"[: X.shape[0]]), min_per_class=1)

    train = sparse([[1.0, 0, 2], [0, 0, 3], [4, 0, 0], [5, 6, 7]])
    made = revised(train, sparse([[1.0, 0], [0, 0], [4, 0], [0, 8]]), 1)
    assert isinstance(made.train, LabelledData)
    expected = [[1, 0, 2], [4, 0, 0], [5, 6, 7], [1, 0, 0], [0, 0, 0], [0, 8, 0]]
    assert made.train.X.todense().tolist() == expected  # type: ignore[union-attr]
    assert made.equal == 1
    refused("wrong_columns", sparse([[1.0], [2], [3], [4]]), train)
    refused("wrong_columns", train, dense([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], "ab"))


def test_tables_join_texts_gaps_and_lists() -> None:
    train = table(
        "aabb",
        text=TextCells.of(["red", "blue", None, "red"]),
        number=numbers(1, NAN, 3, 4),
        vector=VectorCells(np.arange(8.0).reshape(4, 2)),
    )
    other = table(
        "bba",
        vector=VectorCells(np.array([[6.0, 7], [NAN, NAN], [2, 3]])),
        number=numbers(4, 5, NAN),
        text=TextCells.of(["red", "green", "blue"]),
    )
    made = revised(train, other)
    assert isinstance(made.train, LabelledTable)
    assert (made.added, made.equal, made.changed) == (1, 2, ("b",))
    assert made.train.table.record(4) == {"text": "green", "number": 5, "vector": None}
    assert made.train.table.record(2) == {"text": None, "number": 3, "vector": [4, 5]}
    assert [column.kind for column in made.train.schema] == [column.kind for column in train.schema]
    assert [column.gaps for column in made.train.schema] == [1, 1, 1]
    wide = dict(zip(other.table.names, other.table.cells, strict=True))
    wide["vector"] = VectorCells(np.ones((3, 3)))
    assert "3" in refused("wrong_columns", train, table("bba", **wide))


def test_numbers_become_a_table_when_the_other_rows_have_gaps() -> None:
    train = dense([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0], [7.0, 8.0]], "aabb", ("x", "y"))
    test = LabelledData.with_codes(np.array([[1.0, 5.0]]), ["b"], train.classes, ("x", "y"))
    other = table("ab", y=numbers(NAN, 8), x=numbers(1, 7))
    made = revised(train, other, test=test)
    assert isinstance(made.train, LabelledTable)
    assert isinstance(made.test, LabelledTable)
    assert made.train.table.record(4) == {"x": 1, "y": None}
    assert made.test.schema == made.train.schema
    assert (made.added, made.equal) == (1, 1)
    refused("wrong_columns", BASE, other)


def test_texts_in_a_column_of_numbers_are_refused_and_texts_of_numbers_are_numbers() -> None:
    train = table("aabb", x=numbers(1, 2, NAN, 4))
    made = revised(train, table("ab", x=TextCells.of(["8", "4"])))
    assert isinstance(made.train, LabelledTable)
    assert made.train.schema[0].kind is Kind.NUMBER
    assert (made.added, made.equal) == (1, 1)
    assert "'x' is of kind number" in refused(
        "wrong_columns", train, table("ab", x=TextCells.of(["8", "lots"]))
    )


def test_a_column_that_was_of_no_use_may_be_of_one_now() -> None:
    train = table("aabb", x=numbers(1, 2, NAN, 4), same=numbers(1, 1, 1, 1))
    assert train.schema[1].kind is Kind.IGNORE
    made = revised(train, table("ab", x=numbers(8, 9), same=numbers(0.5, 1.5)))
    assert isinstance(made.train, LabelledTable)
    assert made.train.schema[1].kind is Kind.NUMBER


def test_privileged_columns_tell_rows_apart_and_must_be_there() -> None:
    def with_privileged(values: Any) -> LabelledData:
        rows = [[float(k)] for k in range(4)]
        return dense(rows, "aabb", extras=RawExtras(privileged=np.array(values)[:, None]))

    train = with_privileged([1.0, 2.0, 3.0, 4.0])
    made = revised(train, with_privileged([1.0, 2.0, 3.0, 9.0]))
    assert (made.added, made.equal) == (1, 3)
    assert made.train.extras.privileged is not None
    assert made.train.extras.privileged.ravel().tolist() == [1, 2, 3, 4, 9]
    assert train.extras != Extras()
    refused("wrong_columns", train, dense([[1.0], [2.0]], "ab"))


def test_rows_without_a_label_stay_without_one() -> None:
    labels = ["a", "a", "a", "b", "b", None]
    train = LabelledData.from_arrays(np.arange(6.0)[:, None], labels, unlabelled=True)
    others = LabelledData.from_arrays(np.array([[5.0], [9.0]]), [None, None], unlabelled=True)
    made = revised(train, others, 0)
    assert made.train.y.tolist() == [0, 0, 1, 1, -1, -1]
    assert (made.added, made.equal, made.changed) == (1, 1, ("a",))
    assert revised(train, None, *range(5)).train.classes == ()
