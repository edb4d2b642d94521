"""Blocks of an RBF kernel matrix and products with it, on as many threads as a run has.

One BLAS thread computes each block, and blocks do not depend on the number of threads that share them;
neither do the results.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import cached_property
from typing import Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from core.run import Run
from core.types import FloatArray

R = TypeVar("R")

_BLOCK_ROWS = 1 << 11
"""Kernel entries are computed in squares with this many rows: 16 or 32 MiB."""


@dataclass(frozen=True, eq=False)
class KernelRows:
    """n rows z (n, d) with the kernel k(z, z') = exp(−‖z − z'‖²), computed in the rows' own precision.

    rows: float32 or float64, C-ordered. The rows include the factor of the kernel's width.
    """

    rows: FloatArray

    @property
    def n(self) -> int:
        """Number of rows."""
        return len(self.rows)

    @cached_property
    def norms(self) -> FloatArray:
        """‖z‖², (n,), in the rows' precision."""
        return np.asarray(np.einsum("ij,ij->i", self.rows, self.rows))

    def astype(self, dtype: type[np.floating]) -> Self:
        """The same rows in another precision."""
        return self if self.rows.dtype == dtype else type(self)(self.rows.astype(dtype))

    def block(self, own: slice, others: slice, out: FloatArray | None = None) -> FloatArray:
        """k of the rows ``own`` with the rows ``others``, (a, b), written to ``out`` if it is given."""
        return kernel_block(self.rows[own], self.norms[own], self.rows[others], self.norms[others], out)

    def times(self, vectors: FloatArray, pool: Executor, run: Run) -> NDArray[np.float64]:
        """K V, (n, q), for V (n, q), with float64 sums over blocks of columns. Raises Cancelled.

        K is symmetric: each block below the diagonal is computed once and is also used as its transpose.
        """
        result = np.zeros((self.n, vectors.shape[1]))
        weights = vectors.astype(self.rows.dtype)

        def multiply(rows: slice) -> tuple[slice, NDArray[np.float64]]:
            part = np.zeros((rows.stop, vectors.shape[1]))
            for columns in slices(rows.stop, _BLOCK_ROWS):
                run.check_cancel()
                values = self.block(rows, columns)
                part[rows] += values @ weights[columns]
                if columns != rows:
                    part[columns] += values.T @ weights[rows]
            return rows, part

        # The long block rows come first, so that no thread still has one at the end.
        for rows, part in in_order(pool, multiply, reversed(slices(self.n, _BLOCK_ROWS))):
            result[: rows.stop] += part
        return result

    def of(self, others: KernelRows, vectors: FloatArray, pool: Executor, run: Run) -> NDArray[np.float64]:
        """k(others, rows) V, (b, q), for V (n, q): the values of Σ_i v_i k(·, z_i) at other rows."""
        result = np.empty((others.n, vectors.shape[1]))
        weights = vectors.astype(self.rows.dtype)
        columns = slices(self.n, _BLOCK_ROWS)

        def fill(block: slice) -> None:
            total = np.zeros((block.stop - block.start, vectors.shape[1]))
            for column in columns:
                run.check_cancel()
                values = kernel_block(
                    others.rows[block], others.norms[block], self.rows[column], self.norms[column]
                )
                total += values @ weights[column]
            result[block] = total

        in_parallel(pool, fill, slices(others.n, _BLOCK_ROWS))
        return result


def kernel_block(
    rows: FloatArray,
    norms: FloatArray,
    others: FloatArray,
    other_norms: FloatArray,
    out: FloatArray | None = None,
) -> FloatArray:
    """exp(−‖z − z'‖²) of rows (a, d) and others (b, d), (a, b), given their squared norms."""
    values = np.matmul(rows, others.T, out=out)
    values *= 2
    values -= norms[:, None]
    values -= other_norms
    np.minimum(values, 0, out=values)
    np.exp(values, out=values)
    return values


def slices(n: int, size: int) -> list[slice]:
    """Consecutive slices of 0..n, each of ``size`` rows but the last."""
    return [slice(start, min(start + size, n)) for start in range(0, n, size)]


def in_parallel(pool: Executor, function: Callable[[slice], R], blocks: Iterable[slice]) -> list[R]:
    """Results of ``function`` for each block, on the threads of ``pool``; raises the first error."""
    return list(in_order(pool, function, blocks))


def in_order(pool: Executor, function: Callable[[slice], R], blocks: Iterable[slice]) -> Iterator[R]:
    """Like ``in_parallel``, but yields the results one by one: not all of them are in memory at once."""
    futures = deque(pool.submit(function, block) for block in blocks)
    try:
        while futures:
            yield futures.popleft().result()
    finally:
        for future in futures:
            future.cancel()
