"""Sparse rows of a query."""

from __future__ import annotations

from functools import partial

import numpy as np

from core.data.validation import row_blocks
from core.packed import sparse
from core.packed.sparse import densified_blocks, sparse_rows


def test_blocks_of_dense_rows_are_the_table(monkeypatch):
    rng = np.random.default_rng(3)
    table = rng.normal(size=(11, 5)) * (rng.random((11, 5)) < 0.4)
    row, column = np.nonzero(table)
    indptr = np.searchsorted(row, np.arange(12))
    rows = sparse_rows(column, table[row, column], indptr, 5)
    monkeypatch.setattr(sparse, "row_blocks", partial(row_blocks, entries=20))
    blocks = list(densified_blocks(rows))
    assert [len(block) for block in blocks] == [4, 4, 3]
    assert np.array_equal(np.vstack(blocks), table)
