from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

from core.data.row_identity import (
    identities_from,
    identity_bytes,
    matrix_identities,
    table_identities,
)
from core.data.table import NumberCells, Table, TextCells, VectorCells
from core.errors import InvalidPackage

RNG = np.random.default_rng(3)
X = RNG.normal(size=(200, 7)) * (RNG.random((200, 7)) < 0.6)


def test_dense_and_sparse_rows_of_any_precision_are_the_same_rows():
    expected = matrix_identities(X)
    assert len(np.unique(expected)) == 200
    np.testing.assert_array_equal(matrix_identities(sp.csr_array(X)), expected)
    np.testing.assert_array_equal(matrix_identities(X.astype(np.float32)), expected)
    np.testing.assert_array_equal(matrix_identities(sp.csr_array(X.astype(np.float32))), expected)
    np.testing.assert_array_equal(matrix_identities(X[::-1]), expected[::-1])
    assert not np.isin(matrix_identities(X[:, ::-1]), expected).any()


def test_stored_zeros_and_negative_zeros_are_zeros():
    plain = np.array([[0.0, 2.0]])
    stored = sp.csr_array((np.array([0.0, 2.0]), np.array([0, 1]), np.array([0, 2])), shape=(1, 2))
    for same in (stored, np.array([[-0.0, 2.0]])):
        assert matrix_identities(same) == matrix_identities(plain)


def test_cells_are_known_by_what_they_hold_and_columns_by_their_names():
    first = Table(
        ("n", "t", "v"),
        (
            NumberCells(np.array([1.0, 0.5, np.nan])),
            TextCells.of(["red", "12", None]),
            VectorCells(np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])),
        ),
    )
    other = Table(
        ("more", "v", "t", "n"),
        (
            TextCells.of(["x", "y", "z"]),
            VectorCells(np.array([[5.0, 6.0], [1.0, 2.0], [3.0, 4.0]])),
            TextCells.of([None, "red ", "12.0"]),
            TextCells.of([None, "1", "0.50"]),
        ),
    )
    names = ("n", "t", "v")
    of_first, of_other = table_identities(first, names), table_identities(other, names)
    np.testing.assert_array_equal(of_first[[2, 0, 1]], of_other)
    assert len(np.unique(of_first)) == 3
    assert not np.isin(table_identities(first, ("t", "n")), of_first).any()
    with pytest.raises(KeyError):
        table_identities(first, ("none",))


def test_values_that_change_places_between_columns_are_another_row():
    table = Table(("p", "q"), (TextCells.of(["a", "b"]), TextCells.of(["b", "a"])))
    assert len(np.unique(table_identities(table, ("p", "q")))) == 2


def test_truth_values_are_the_same_in_every_form():
    numbers = Table(("p",), (NumberCells(np.array([1.0, 0.0]), is_truth=True),))
    texts = Table(("p",), (TextCells.of(["True", "false"]),))
    np.testing.assert_array_equal(table_identities(numbers, ("p",)), table_identities(texts, ("p",)))


def test_they_are_stored_ascending_without_repetitions_in_eight_bytes_each():
    identities = matrix_identities(np.vstack([X, X[:50]]))
    data = identity_bytes(identities)
    assert len(data) == 8 * 200
    read = identities_from(memoryview(data))
    np.testing.assert_array_equal(read, np.unique(identities))
    with pytest.raises(InvalidPackage):
        identities_from(data[:-1])
