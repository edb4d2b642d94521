"""Chooses the columns that trees may test: all of dense rows; with texts the others and the commonest terms.

A tree tries few columns at each node; thousands of rare terms would leave no tries for the other columns.
Terms of many rows, such as titles in names, separate rows like indicator columns. The commonest terms are
counted on the training rows, without their labels.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from core.data.column_layout import ColumnLayout
from core.errors import Fault, InvalidProblem
from core.solvers.jit import is_sparse
from core.types import FloatArray, IntArray, Matrix

if TYPE_CHECKING:
    from core.features.examples import Examples

TERMS: Final = 200
"""Largest number of terms that trees may test."""
_FEWEST_ROWS: Final = 5
"""Terms in fewer rows are not tested."""


def has_tree_columns(X: Matrix, layout: ColumnLayout | None) -> bool:
    """Whether rows are dense, or have columns besides the terms of texts."""
    return not is_sparse(X) or (layout is not None and layout.dense > 0)


def tree_rows(examples: Examples) -> tuple[IntArray, FloatArray]:
    """Rising numbers of the columns that trees of these rows may test, (c,), and their values, (n, c).

    Raises InvalidProblem for sparse rows without a layout, or with terms only.
    """
    X, spec = examples.X, examples.feature_spec
    layout = None if spec is None else spec.layout
    if not is_sparse(X):
        dense: FloatArray = X
        return np.arange(dense.shape[1]), dense
    if layout is None or not has_tree_columns(X, layout):
        message = "trees need dense rows, or columns beside those of texts"
        raise InvalidProblem(Fault("X", "sparse", message))
    rows_of = np.bincount(X.indices, minlength=layout.columns)[layout.dense :]
    common = np.argsort(-rows_of, kind="stable")[:TERMS]
    terms = np.sort(common[rows_of[common] >= _FEWEST_ROWS])
    columns = np.concatenate([np.arange(layout.dense), layout.dense + terms])
    return columns, values_at(X, columns)


def values_at(X: Matrix, columns: IntArray) -> FloatArray:
    """The values of some columns (c,) of the rows, dense, (n, c)."""
    part = X[:, columns]
    values: FloatArray = part.toarray() if is_sparse(part) else part
    return values
