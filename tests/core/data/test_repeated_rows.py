"""Rows that occur several times are counted, with their first pair, however the rows are kept."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

from core.data.repeated_rows import matrix_digests, repeated_rows, shared_rows, table_digests
from core.data.table import NumberCells, TextCells, VectorCells

ROWS = np.array([[1.0, 0.0], [2.0, 5.0], [1.0, -0.0], [2.0, 5.0], [1.0, 0.0], [0.0, 1.0], [5.0, 2.0]])
Y = np.array([0, 1, 0, -1, 1, 1, 1], dtype=np.int32)


@pytest.mark.parametrize("convert", [np.asarray, np.float32, sp.csr_array])
def test_rows_of_a_matrix(convert):
    found = repeated_rows(matrix_digests(convert(ROWS)), Y)
    assert (found.repeated, found.first_repeated) == (1, (0, 2))
    assert (found.contradictory, found.first_contradiction) == (3, (0, 4))
    assert found.described()["first_repetition"] == [0, 2]
    assert repeated_rows(matrix_digests(convert(ROWS[[0, 1, 5, 6]])), Y[[0, 1, 5, 6]]).described() == {}


def test_rows_of_a_table_are_equal_in_every_cell_and_gap():
    texts = ["a", "b", None, "a", None, "a", "b"]
    numbers = np.array([1.0, 2.0, np.nan, 1.0, np.nan, np.nan, 3.0])
    lists = np.array([[1.0, 2.0]] * 7)
    y = np.zeros(7, dtype=np.int32)
    columns = [TextCells.of(texts), NumberCells(numbers), VectorCells(lists)]
    found = repeated_rows(table_digests(columns), y)
    assert (found.repeated, found.first_repeated, found.contradictory) == (2, (0, 3), 0)
    lists[3] = [2.0, 1.0]
    assert repeated_rows(table_digests(columns), y).first_repeated == (2, 4)


def test_of_many_repetitions_all_but_the_first_rows_are_counted():
    rng = np.random.default_rng(0)
    which = rng.integers(300, size=5000)
    found = repeated_rows(matrix_digests(rng.normal(size=(300, 4))[which]), np.zeros(5000, dtype=np.int32))
    assert found.repeated == 5000 - len(np.unique(which))
    first, second = found.first_repeated
    assert which[first] == which[second]
    assert len(set(which[:second])) == second, "no earlier row is a repetition"


@pytest.mark.parametrize("convert", [np.asarray, sp.csr_array])
def test_rows_of_both_parts(convert):
    rng = np.random.default_rng(1)
    train, test = rng.normal(size=(200, 3)), rng.normal(size=(100, 3))
    assert shared_rows(convert(train), convert(test)).rows == 0
    test[7], test[50] = train[30], train[4]
    shared = shared_rows(convert(train), convert(test))
    assert (shared.rows, shared.of, shared.first, shared.are_many) == (2, 100, (7, 30), True)
    test[50] += 1.0
    assert not shared_rows(convert(train), convert(test)).are_many, "a single row may be chance"
