"""Term counts to term frequencies: the part of tf-idf that needs no training.

    tf_ij = log(1 + c_ij) / ‖log(1 + c_i)‖      documents of any length become rows of length 1
    idf_j = 1 + log((1 + n) / (1 + n_j))        n_j of n documents have term j

The idf is the scale of a column, so ``Scaling.IDF`` folds it into a linear student: a query computes the
frequencies of its own terms, and touches nothing but them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp

from core.data.dataset import validate_rows
from core.errors import Fault, InvalidProblem


def unit_term_frequencies(counts: Any) -> sp.csr_array:
    """Rows tf_i, (n, d) CSR of float64, from counts (n, d) >= 0; a document without terms stays 0.

    Raises InvalidProblem for unusable rows or a negative count.
    """
    rows = validate_rows(counts, None, field="counts")
    table = sp.csr_array(rows, dtype=np.float64, copy=True)
    table.eliminate_zeros()
    if (table.data < 0.0).any():
        entry = int(np.argmax(table.data < 0.0))
        row = int(np.searchsorted(table.indptr, entry, side="right")) - 1
        column = int(table.indices[entry])
        message = f"counts has a negative count in row {row}, column {column}"
        raise InvalidProblem(Fault("counts", "negative", message, row, column))
    values = np.log1p(table.data)
    row_of = np.repeat(np.arange(table.shape[0]), np.diff(table.indptr))
    lengths = np.sqrt(np.bincount(row_of, values**2, table.shape[0]))
    return sp.csr_array((values / lengths[row_of], table.indices, table.indptr), shape=table.shape)
