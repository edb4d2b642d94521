"""Columns that tell the label alone are found, and strong or lucky ones are not called so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn import datasets

from core.data.column_kinds import infer_schema
from core.data.dataset import LabelledData
from core.data.leaks import Leak, matrix_leaks, table_leaks
from core.data.schema import Kind, KindSpec
from core.data.table import NumberCells, Table, TextCells

RNG = np.random.default_rng(5)
Y = RNG.permutation(np.arange(90) % 3).astype(np.int32)
NAMES = ("cat", "dog", "pig")
NOISE = RNG.normal(size=90)


def leaks_of(cells: Any, y: Any = Y, classes: Any = NAMES, **said: KindSpec) -> list[Leak]:
    """What a column tells beside one of noise. cells: texts or numbers."""
    values = list(cells)
    column = (
        TextCells.of(values)
        if any(isinstance(value, str) for value in values)
        else NumberCells(np.array(values, dtype=float))
    )
    table = Table(("c", "noise"), (column, NumberCells(RNG.normal(size=len(values)))))
    schema = infer_schema(table, said)
    return table_leaks(schema, table.cells, np.asarray(y, dtype=np.int32), classes)


def with_wrong(cells: list[Any], count: int) -> list[Any]:
    """The cells, of which the first ones are those of other rows."""
    others = [next(cell for cell in cells if cell != one) for one in cells[:count]]
    return [*others, *cells[count:]]


TELLING: dict[str, tuple[Callable[[int, int], Any], str]] = {
    "the label": (lambda _i, k: NAMES[k], "copy"),
    "the label in capitals": (lambda _i, k: NAMES[k].upper(), "copy"),
    "codes": (lambda _i, k: "KLM"[k], "values"),
    "several codes of a class": (lambda i, k: "KLM"[k] + "12"[i % 2], "values"),
    "numbers as codes": (lambda _i, k: [7, 3, 5][k], "values"),
    "what was cut into classes": (lambda i, k: k + NOISE[i] % 1, "order"),
    "the name within texts": (lambda i, k: f"photo {i} shows the {NAMES[k]}, alone", "words"),
    "the name within paths": (lambda i, k: f"data/{NAMES[k]}_{i}.jpg", "words"),
    "one class": (lambda _i, k: "no" if k else "yes", "one_class"),
    "a value of one class alone": (lambda i, k: "left in may" if k == 1 and i % 5 else None, "gaps"),
    "no value in one class alone": (lambda i, k: None if k == 1 else NOISE[i], "gaps"),
    "the label with gaps": (lambda i, k: NAMES[k] if i % 7 else None, "copy"),
}
"""The cell of row i, which is of class k, and how the column tells it."""


def telling(name: str) -> list[Any]:
    return [TELLING[name][0](i, int(k)) for i, k in enumerate(Y)]


@pytest.mark.parametrize("name", TELLING)
def test_a_column_that_tells_the_label_is_found(name: str) -> None:
    how = TELLING[name][1]
    said = {"c": KindSpec(Kind.TEXT)} if how == "words" else {}
    (leak,) = leaks_of(telling(name), **said)
    assert (leak.column, leak.how, leak.wrong) == (0, how, 0)
    if how in ("one_class", "gaps"):
        assert leak.label == (0 if how == "one_class" else 1)
        assert leak.has_value == (name != "no value in one class alone")


@pytest.mark.parametrize("name", TELLING)
def test_the_same_column_in_another_order_tells_nothing(name: str) -> None:
    how = TELLING[name][1]
    said = {"c": KindSpec(Kind.TEXT)} if how == "words" else {}
    shuffled = np.random.default_rng(1).permutation(np.array(telling(name), dtype=object))
    assert leaks_of(shuffled, **said) == []


def test_few_wrong_cells_do_not_hide_a_copy_and_many_make_it_an_honest_column() -> None:
    y = np.arange(600) % 2
    copy = [("yes", "no")[k] for k in y]
    (leak,) = leaks_of(with_wrong(copy, 2), y, ("yes", "no"))
    assert (leak.how, leak.wrong, leak.rows) == ("copy", 2, 600)
    assert leaks_of(with_wrong(copy, 12), y, ("yes", "no")) == []


def test_a_rare_class_is_not_told_by_a_column_that_seldom_differs() -> None:
    y = np.zeros(5000, dtype=np.int32)
    y[::500] = 1
    assert leaks_of(["usual"] * 4999 + ["odd"], y, ("a", "b")) == []
    (leak,) = leaks_of([("usual", "odd")[k] for k in y], y, ("a", "b"))
    assert leak.how == "values"


def test_values_that_each_row_has_alone_tell_nothing() -> None:
    assert leaks_of([f"name of row {i}" for i in range(90)]) == []
    # Few rows share a value, and these are of one class; the others are told by no row.
    assert leaks_of([f"{'KLM'[k]}-{i // 6}x" for i, k in enumerate(Y)]) == []


@pytest.mark.parametrize("times", [1, 2, 5])
def test_copies_of_rows_do_not_tell_each_other(times: int) -> None:
    y = np.tile(Y, times)
    noise = np.tile(NOISE, times)
    assert matrix_leaks(np.column_stack([noise, noise**2]), y, NAMES) == []
    texts = TextCells.of([f"the words of text {i}" for i in range(90)] * times)
    table = Table(("text", "noise"), (texts, NumberCells(noise)))
    assert table_leaks(infer_schema(table), table.cells, y, NAMES) == []
    (leak,) = matrix_leaks(np.column_stack([noise, y]), y, NAMES)
    assert (leak.column, leak.how) == (1, "values")


def test_a_copy_that_is_the_only_column_is_found() -> None:
    (leak,) = matrix_leaks(Y[:, None].astype(float), Y, NAMES)
    assert (leak.column, leak.how) == (0, "values")


@pytest.mark.parametrize("n", [10, 16, 30, 60])
def test_chance_among_many_columns_is_no_leak(n: int) -> None:
    rng = np.random.default_rng(n)
    for K in (2, 3):
        for _ in range(10):
            y = np.append(rng.permutation(np.arange(n - 1) % K), 0).astype(np.int32)
            columns = [
                rng.normal(size=(n, 200)),
                rng.integers(2, size=(n, 200)),
                rng.integers(6, size=(n, 200)),
            ]
            assert matrix_leaks(np.hstack(columns), y, NAMES[:K]) == []


def test_with_few_rows_a_perfect_column_may_be_chance() -> None:
    """Of 10 rows, 5 of each class, one labelling in 126 is told by a column of two values."""
    y = np.arange(10) % 2
    assert leaks_of([("x", "y")[k] for k in y], y, ("a", "b")) == []
    y = np.arange(24) % 2
    assert [leak.how for leak in leaks_of([("x", "y")[k] for k in y], y, ("a", "b"))] == ["values"]


@pytest.mark.parametrize("name", ["iris", "wine", "breast_cancer", "digits"])
def test_honest_data_have_no_leak_and_get_one_with_a_copy(name: str) -> None:
    X, y = getattr(datasets, f"load_{name}")(return_X_y=True)
    data = LabelledData.from_arrays(X, y.astype(str))
    assert matrix_leaks(data.X, data.y, data.classes) == []
    with_copy = np.column_stack([data.X, data.y])
    for matrix in (with_copy, sp.csr_array(with_copy)):
        (leak,) = matrix_leaks(matrix, data.y, data.classes)
        assert (leak.column, leak.how) == (X.shape[1], "copy")


def test_of_many_rows_a_part_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("core.data.leaks.MOST_ROWS", 50)
    (leak,) = leaks_of([NAMES[k] for k in Y])
    assert (leak.how, leak.rows) == ("copy", 50)


def test_rows_without_a_label_and_columns_that_are_not_used_are_left_out() -> None:
    y = np.where(np.arange(90) < 20, -1, Y)
    (leak,) = leaks_of([NAMES[k] for k in Y], y)
    assert leak.rows == 70
    assert leaks_of([NAMES[k] for k in Y], y, c=KindSpec(Kind.IGNORE)) == []
    assert leaks_of([NAMES[k] for k in Y], np.full(90, -1)) == []


def test_dates_and_numbers_with_signs_are_compared_by_their_values() -> None:
    y = np.repeat([0, 1, 2], 28)
    assert [
        leak.how for leak in leaks_of([f"0{1 + k}/{1 + i % 28:02d}/2024" for i, k in enumerate(y)], y)
    ] == ["order"]
    prices = [f"${900 + 100 * i:,}.50" for i in range(84)]
    assert [leak.how for leak in leaks_of(prices, y)] == ["order"]
    assert leaks_of(prices, y % 2, ("a", "b")) == []


def test_a_table_without_a_column_that_is_used_has_no_leak() -> None:
    table = Table(("c",), (TextCells.of(["a"] * 90),))
    assert table_leaks(infer_schema(table), table.cells, Y, NAMES) == []
