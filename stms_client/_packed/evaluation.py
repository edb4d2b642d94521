# Copied from `core/packed/evaluation.py` by ``make client``: do not edit.
"""Scores of many rows: linear functions c·b(x) + c₀ and other functions on one map.

Rows are evaluated in blocks that stay in the processor's cache: each is checked for unusable numbers,
converted to float64, mapped once, and multiplied with the coefficients of every output. So float32 rows give
what the same rows in float64 give, to the last bit, and no copy of the whole table is made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from stms_client._packed.errors import Fault, InvalidProblem
from stms_client._packed.forms import Linear
from stms_client._packed.maps import Floats, PackedMap
from stms_client._packed.validation import (
    MAX_MAGNITUDE,
    QUIET,
    as_dense,
    out_of_range,
    row_blocks,
    value_faults,
    wrong_columns,
)

Output: TypeAlias = Linear | Callable[[Floats], Floats]
"""What to compute of each row: a linear function of the basis values, or any, from (n, p) to (n,)."""

_CACHED_ENTRIES: Final = 1 << 16
_FEW: Final = 2
"""Up to so many linear outputs get one product each, as if alone; a matrix product sums in another order."""


def rows_for(packed: PackedMap, X: ArrayLike) -> NDArray[np.floating]:
    """``X`` (n, d) as a C-ordered table of float32 or float64 with the map's columns; values unchecked.

    Raises InvalidProblem.
    """
    table = as_dense(X, "X")
    if table.shape[1] != packed.n_columns:
        raise wrong_columns("X", table.shape[1], packed.n_columns)
    return table


@QUIET
def evaluate(packed: PackedMap, table: NDArray[np.floating], outputs: Sequence[Output]) -> list[Floats]:
    """Values (n,) of each output on rows (n, d) of ``rows_for``.

    Raises InvalidProblem naming row and column of unusable numbers, and the row of a value beyond float64.
    """
    linear = [output for output in outputs if isinstance(output, tuple)]
    values = np.empty((len(linear), len(table)))
    stacked = np.stack([coef for coef, _ in linear]) if len(linear) > _FEW else None
    functions = [output for output in outputs if not isinstance(output, tuple)]
    others = np.empty((len(functions), len(table)))
    for rows, basis in _basis_blocks(packed, table):
        if stacked is not None:
            np.matmul(stacked, basis.T, out=values[:, rows])
        else:
            for value, (coef, _) in zip(values, linear, strict=True):
                value[rows] = basis @ coef
        for value, function in zip(others, functions, strict=True):
            value[rows] = function(basis)
    values += np.array([[intercept] for _, intercept in linear]).reshape(-1, 1)
    _refuse_overflow(values)
    _refuse_overflow(others)
    of_linear, of_function = iter(values), iter(others)
    return [next(of_linear if isinstance(output, tuple) else of_function) for output in outputs]


def _refuse_overflow(values: Floats) -> None:
    """Raises InvalidProblem naming the first row with a value beyond float64; values: (m, n)."""
    finite = np.isfinite(values)
    if not finite.all():
        row = int(np.argwhere(~finite)[:, 1].min())
        fault = out_of_range("X").faults[0]
        raise InvalidProblem(Fault(fault.field, fault.code, f"Row {row}: {fault.message}", row))


def _basis_blocks(packed: PackedMap, table: NDArray[np.floating]) -> Iterator[tuple[slice, Floats]]:
    """Basis values (rows, p) of all rows, a block at a time."""
    scratch: Floats | None = None
    for rows in row_blocks(len(table), max(packed.n_columns, packed.n_basis), _CACHED_ENTRIES):
        part = table[rows]
        # NaN, infinite and huge values show in the sum of squares, one cheap product.
        flat = part.reshape(-1)
        if not flat.dot(flat) < MAX_MAGNITUDE**2:
            faults = value_faults(table, "X")
            if faults:
                raise InvalidProblem(*faults)
        if table.dtype == np.float64:
            block: Floats = part.astype(np.float64, copy=False)
        else:
            if scratch is None:
                scratch = np.empty(part.shape)
            block = scratch[: len(part)]
            block[:] = part
        yield rows, packed.block(block)
