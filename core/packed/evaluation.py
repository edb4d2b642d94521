"""Evaluates linear functions c·b(x) + c₀ and other functions on one map, for many rows.

Rows are evaluated in blocks that fit into the processor's cache. Each block is checked for unusable numbers,
converted to float64, mapped once, and multiplied with the coefficients of every output. So float32 rows give
the same values as float64 rows, to the last bit, and the whole table is never copied.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from core.data.validation import (
    MAX_MAGNITUDE,
    QUIET,
    as_dense,
    block_rows,
    out_of_range,
    value_faults,
    wrong_columns,
)
from core.errors import Fault, InvalidProblem
from core.packed.forms import Linear
from core.packed.maps import Floats, PackedMap

Output: TypeAlias = Linear | Callable[[Floats], Floats]
"""What to compute for each row: a linear function of the basis values, or any from (n, p) to (n,)."""

_CACHED_ENTRIES: Final = 1 << 16
_FEW: Final = 2
"""Up to this many linear outputs get one product each, as if alone; matrix products sum in another order."""


def rows_for(packed: PackedMap, X: ArrayLike) -> NDArray[np.floating]:
    """``X`` (n, d) as a C-ordered table of float32 or float64 with the map's columns; values unchecked.

    Raises InvalidProblem.
    """
    table = as_dense(X, "X")
    if table.shape[1] != packed.n_columns:
        raise wrong_columns("X", table.shape[1], packed.n_columns)
    return table


def evaluate(packed: PackedMap, table: NDArray[np.floating], outputs: Sequence[Output]) -> list[Floats]:
    """Values (n,) of each output on rows (n, d) that ``rows_for`` returned.

    Raises InvalidProblem naming row and column of unusable numbers, and the row of a value beyond float64.
    """
    evaluation = Evaluation(packed, table, outputs)
    evaluation.advance(len(table))
    return evaluation.values()


class Evaluation:
    """Evaluates outputs on rows (n, d) that ``rows_for`` returned; some rows may arrive later.

    The blocks, and so the bits of the values, do not depend on how the rows arrive.
    """

    def __init__(self, packed: PackedMap, table: NDArray[np.floating], outputs: Sequence[Output]) -> None:
        self._packed, self._table, self._outputs = packed, table, outputs
        linear = [output for output in outputs if isinstance(output, tuple)]
        self._linear, self._functions = (
            linear,
            [output for output in outputs if not isinstance(output, tuple)],
        )
        self._stacked = np.stack([coef for coef, _ in linear]) if len(linear) > _FEW else None
        self._values = np.empty((len(linear), len(table)))
        self._others = np.empty((len(self._functions), len(table)))
        self._step = block_rows(max(packed.n_columns, packed.n_basis), _CACHED_ENTRIES)
        self._scratch = np.empty((0 if table.dtype == np.float64 else self._step, packed.n_columns))
        self._done = 0

    @QUIET
    def advance(self, arrived: int) -> None:
        """Evaluate the blocks that are complete once the first ``arrived`` rows are there.

        Raises InvalidProblem naming row and column of unusable numbers.
        """
        while self._done < arrived and (arrived - self._done >= self._step or arrived == len(self._table)):
            rows = slice(self._done, min(self._done + self._step, len(self._table)))
            basis = self._packed.block(self._checked(rows))
            if self._stacked is not None:
                np.matmul(self._stacked, basis.T, out=self._values[:, rows])
            else:
                for value, (coef, _) in zip(self._values, self._linear, strict=True):
                    value[rows] = basis @ coef
            for value, function in zip(self._others, self._functions, strict=True):
                value[rows] = function(basis)
            self._done = rows.stop

    @QUIET
    def values(self) -> list[Floats]:
        """Values (n,) of each output; may be called once, when all rows have arrived.

        Raises as `evaluate`.
        """
        values = self._values
        values += np.array([[intercept] for _, intercept in self._linear]).reshape(-1, 1)
        if not (np.isfinite(values).all() and np.isfinite(self._others).all()):
            self._refuse_values()
            _refuse_overflow(values)
            _refuse_overflow(self._others)
        of_linear, of_function = iter(values), iter(self._others)
        return [next(of_linear if isinstance(output, tuple) else of_function) for output in self._outputs]

    def _checked(self, rows: slice) -> Floats:
        """Rows as float64. Raises InvalidProblem for unusable numbers."""
        part = self._table[rows]
        # float32 can only hold NaN and infinity as unusable numbers; a linear function of the row
        # shows these.
        if self._table.dtype != np.float32 or self._packed.kind != "linear" or self._functions:
            # NaN, infinite and huge values show in the sum of squares, which is one cheap product.
            flat = part.reshape(-1)
            if not flat.dot(flat) < MAX_MAGNITUDE**2:
                self._refuse_values()
        if self._table.dtype == np.float64:
            return part.astype(np.float64, copy=False)
        block = self._scratch[: len(part)]
        block[:] = part
        return block

    def _refuse_values(self) -> None:
        """Raise InvalidProblem if the table has unusable numbers."""
        faults = value_faults(self._table, "X")
        if faults:
            raise InvalidProblem(*faults)


def _refuse_overflow(values: Floats) -> None:
    """Raise InvalidProblem naming the first row with a value beyond float64. values: (m, n)."""
    finite = np.isfinite(values)
    if not finite.all():
        row = int(np.argwhere(~finite)[:, 1].min())
        fault = out_of_range("X").faults[0]
        raise InvalidProblem(Fault(fault.field, fault.code, f"Row {row}: {fault.message}", row))
