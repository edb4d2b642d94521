"""The examples of a column are its first different cells, as they stand in the file."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

from core.data.examples import LONGEST_EXAMPLE, cell_examples, number_examples
from core.data.table import NumberCells, TextCells, VectorCells


@pytest.mark.parametrize(
    ("cells", "examples"),
    [
        (TextCells.of([None, "$1.50", "$1.50", "-", " x", "y", "z"]), ["$1.50", " x", "y"]),
        (TextCells.of([None, None]), []),
        (NumberCells(np.array([np.nan, 2.0, 2.0, 0.1, -3e20])), ["2", "0.1", "-3e+20"]),
        (NumberCells(np.array([1.0, np.nan, 0.0, 1.0]), is_truth=True), ["true", "false"]),
        (VectorCells(np.array([[np.nan] * 2, [1.0, 2.5]])), ["[1, 2.5]"]),
        (VectorCells(np.array([[1.0] * 7])), ["[1, 1, 1, 1, 1, …]"]),
    ],
)
def test_the_first_different_cells(cells, examples):
    assert cell_examples(cells, nulls=("-",)) == examples


def test_a_long_cell_is_shortened():
    (shown,) = cell_examples(TextCells.of(["x" * 1000]))
    assert len(shown) == LONGEST_EXAMPLE
    assert shown.endswith("…")


@pytest.mark.parametrize("convert", [np.asarray, np.float32, sp.csr_array])
def test_of_a_matrix(convert):
    X = np.array([[0.1, 1.0], [0.1, 0.0], [7.0, 1.0], [8.0, 0.0], [9.0, 0.0]])
    assert [*number_examples(convert(X))] == [["0.1", "7", "8"], ["1", "0"]]
