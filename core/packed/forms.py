"""Linear forms c·b(x) + c₀ on one map: the arithmetic of students, the teacher's score among it.

Rows pass in blocks that stay in the processor's cache: each is looked at for unusable numbers, made float64,
mapped once, and multiplied with the coefficients of every form. So float32 rows give what the same rows in
float64 give, to the last bit, and no copy of the whole table is made.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from core.data.checks import (
    MAX_MAGNITUDE,
    QUIET,
    as_dense,
    out_of_range,
    row_blocks,
    value_faults,
    wrong_columns,
)
from core.errors import Fault, InvalidProblem
from core.packed.maps import Floats, PackedMap

Form: TypeAlias = tuple[Floats, float]
"""(coef (p,), intercept) of one linear form."""

_CACHED_ENTRIES: Final = 1 << 16
_FEW: Final = 2
"""Up to so many forms one product each, as if asked alone; a matrix product of more sums in another order."""


def rows_for(packed: PackedMap, X: ArrayLike) -> NDArray[np.floating]:
    """``X`` (n, d) as a C-ordered table of float32 or float64 with the map's columns; values unchecked.

    Raises InvalidProblem.
    """
    table = as_dense(X, "X")
    if table.shape[1] != packed.n_columns:
        raise wrong_columns("X", table.shape[1], packed.n_columns)
    return table


@QUIET
def linear_forms(packed: PackedMap, table: NDArray[np.floating], forms: Sequence[Form]) -> Floats:
    """Values (m, n) of m forms on rows (n, d) of ``rows_for``.

    Raises InvalidProblem naming row and column of unusable numbers, and the row of a value beyond float64.
    """
    values = np.empty((len(forms), len(table)))
    coefs = [coef for coef, _ in forms]
    stacked = np.stack(coefs) if len(forms) > _FEW else None
    for rows, basis in _basis_blocks(packed, table):
        if stacked is not None:
            np.matmul(stacked, basis.T, out=values[:, rows])
        else:
            for value, coef in zip(values, coefs, strict=True):
                value[rows] = basis @ coef
    values += np.array([[intercept] for _, intercept in forms])
    finite = np.isfinite(values)
    if not finite.all():
        row = int(np.argwhere(~finite)[:, 1].min())
        fault = out_of_range("X").faults[0]
        raise InvalidProblem(Fault(fault.field, fault.code, f"Row {row}: {fault.message}", row))
    return values


def _basis_blocks(packed: PackedMap, table: NDArray[np.floating]) -> Iterator[tuple[slice, Floats]]:
    """Basis values (rows, p) of all rows, a block at a time."""
    scratch: Floats | None = None
    for rows in row_blocks(len(table), max(packed.n_columns, packed.n_basis), _CACHED_ENTRIES):
        given = table[rows]
        # NaN, infinite and huge values show in the sum of squares, one cheap product.
        flat = given.reshape(-1)
        if not flat.dot(flat) < MAX_MAGNITUDE**2:
            faults = value_faults(table, "X")
            if faults:
                raise InvalidProblem(*faults)
        if table.dtype == np.float64:
            block: Floats = given.astype(np.float64, copy=False)
        else:
            if scratch is None:
                scratch = np.empty(given.shape)
            block = scratch[: len(given)]
            block[:] = given
        yield rows, packed.block(block)
