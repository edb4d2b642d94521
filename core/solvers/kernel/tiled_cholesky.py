"""Cholesky factor of K + jI for an RBF kernel matrix, in float32, in place, in half storage, by tiles.

Block row i of the lower half is one array (b, (i + 1) b), so the matrix takes 2 n² bytes and a little more.
The factorisation is left-looking: column j of tiles is

    A_ij ← A_ij − Σ_{k<j} L_ik L_jkᵀ  (i ≥ j),   A_jj = L_jj L_jjᵀ,   L_ij = A_ij L_jj⁻ᵀ  (i > j),

and the diagonal tile then holds L_jj⁻¹, which the last product and both triangular solves need. Every call
of BLAS or LAPACK sees at most b × 4b entries, so that no index can overflow: LAPACK with 32-bit indices
crashes from n = 46 341 rows on, where n² passes 2³¹. Tiles of one column are shared by the threads of the
run, each with one BLAS thread, and a result does not depend on their number.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import lapack

from core.run import Run
from core.solvers.kernel.rows import KernelRows, in_parallel, slices
from core.solvers.kernel.tile_file import Singles, TileFile
from core.types import FloatArray

TILE = 1024
_WIDE = 4 * TILE
"""Number of columns of a product between two cancel checks."""
_ROUNDS = 5
"""Steps of the inverse power method for the condition estimate."""


class NotPositiveDefinite(ArithmeticError):
    """A tile could not be factored, because the jitter is below the rounding errors of the matrix."""


class TiledCholesky:
    """L with L Lᵀ = K + jI. Raises NotPositiveDefinite, Cancelled.

    kernel: the rows, in float32. jitter: j. tile: b. report: called with the numbers of finished and of all
    tiles.
    kept: file of finished columns of the same factor, to continue from and to append to; it stays open.
    largest: the largest row sum of K + jI, an upper bound of its largest eigenvalue.
    """

    def __init__(
        self,
        kernel: KernelRows,
        jitter: float,
        pool: Executor,
        run: Run,
        *,
        tile: int = TILE,
        report: Callable[[int, int], None] | None = None,
        kept: TileFile | None = None,
    ) -> None:
        self.n, self._pool, self._run, self.kept = kernel.n, pool, run, kept
        self._blocks = slices(kernel.n, tile)
        self._panels: list[Singles] = in_parallel(pool, lambda rows: self._kernel(kernel, rows), self._blocks)
        self.largest = self._largest_row_sum() + jitter
        for panel, rows in zip(self._panels, self._blocks, strict=True):
            panel[:, rows][np.diag_indices(len(panel))] += np.float32(jitter)
        total = len(self._blocks) * (len(self._blocks) + 1) // 2
        done, goes_on = 0, kept is not None
        for column in range(len(self._blocks)):
            goes_on = goes_on and kept is not None and kept.read(column, self._tiles(column))
            if not goes_on:
                self._factor_column(column)
                if kept is not None:
                    kept.append(column, self._tiles(column))
            done += len(self._blocks) - column
            if report is not None:
                report(done, total)

    def solve(self, right: FloatArray) -> NDArray[np.float64]:
        """(L Lᵀ)⁻¹ R, (n, q), for R (n, q), by two passes over the tiles. Raises Cancelled."""
        values = right.astype(np.float32)
        self._forward(values, 0)
        for panel, rows in zip(reversed(self._panels), reversed(self._blocks), strict=True):
            self._run.check_cancel()
            values[rows] = panel[:, rows].T @ values[rows]
            for columns in slices(rows.start, _WIDE):
                values[columns] -= panel[:, columns].T @ values[rows]
        return values.astype(np.float64)

    def inverse_diagonal(self) -> NDArray[np.float64]:
        """The diagonal of (K + jI)⁻¹, (n,): Σ_i (L⁻¹)_ij², at the cost of another factorisation."""
        diagonal = np.empty(self.n)

        def fill(block: slice) -> None:
            size = block.stop - block.start
            identity = np.zeros((self.n, size), dtype=np.float32)
            identity[block][np.diag_indices(size)] = 1.0
            self._forward(identity, self._blocks.index(block))
            diagonal[block] = np.einsum("ij,ij->j", identity, identity, dtype=np.float64)

        in_parallel(self._pool, fill, self._blocks)
        return diagonal

    def condition(self) -> float:
        """An estimate of the condition number: the largest row sum over an estimate of the least eigenvalue.

        The inverse power method approaches the eigenvalue from above, so the ratio may be too small by the
        error after five steps, and too large by the difference of the row sum and the largest eigenvalue.
        """
        vector = np.random.default_rng(0).standard_normal((self.n, 1))
        growth = 1.0
        for _ in range(_ROUNDS):
            vector = self.solve(vector / np.linalg.norm(vector))
            growth = float(np.linalg.norm(vector))
        return self.largest * growth

    def _kernel(self, kernel: KernelRows, rows: slice) -> Singles:
        """The block row of K, up to and with the diagonal tile."""
        panel = np.empty((rows.stop - rows.start, rows.stop), dtype=np.float32)
        for columns in slices(rows.stop, _WIDE):
            self._run.check_cancel()
            panel[:, columns] = kernel.block(rows, columns)
        return panel

    def _largest_row_sum(self) -> float:
        """Each panel adds to its rows and, without the diagonal tile, to its columns."""
        sums = np.zeros(self.n)
        for panel, rows in zip(self._panels, self._blocks, strict=True):
            self._run.check_cancel()
            sums[rows] += panel.sum(axis=1, dtype=np.float64)
            sums[: rows.start] += panel[:, : rows.start].sum(axis=0, dtype=np.float64)
        return float(sums.max())

    def _tiles(self, column: int) -> list[Singles]:
        """Column ``column`` of tiles, from the diagonal down."""
        return [panel[:, self._blocks[column]] for panel in self._panels[column:]]

    def _factor_column(self, column: int) -> None:
        """Factor column ``column`` of tiles, from the diagonal down."""
        rows, own = self._blocks[column], self._panels[column]
        self._update(own, own, rows)
        factor, failed = lapack.spotrf(own[:, rows], lower=1, clean=1)
        if failed == 0:
            inverse, failed = lapack.strtri(factor, lower=1)
        if failed or not np.isfinite(inverse).all():
            raise NotPositiveDefinite(f"the leading minor of order {rows.start + failed} is not positive")
        own[:, rows] = inverse

        def finish(block: slice) -> None:
            panel = self._panels[self._blocks.index(block)]
            self._update(panel, own, rows)
            panel[:, rows] = panel[:, rows] @ inverse.T

        in_parallel(self._pool, finish, self._blocks[column + 1 :])

    def _update(self, panel: Singles, own: Singles, rows: slice) -> None:
        """A_ij ← A_ij − Σ_{k<j} L_ik L_jkᵀ for the tile of ``panel`` at the columns ``rows``."""
        scratch = np.empty((len(panel), len(own)), dtype=np.float32)
        for columns in slices(rows.start, _WIDE):
            self._run.check_cancel()
            np.matmul(panel[:, columns], own[:, columns].T, out=scratch)
            panel[:, rows] -= scratch

    def _forward(self, values: Singles, first: int) -> None:
        """values ← L⁻¹ values, in place, for values that are zero above block ``first``."""
        start = self._blocks[first].start
        for panel, rows in zip(self._panels[first:], self._blocks[first:], strict=True):
            self._run.check_cancel()
            for columns in slices(rows.start - start, _WIDE):
                before = slice(start + columns.start, start + columns.stop)
                values[rows] -= panel[:, before] @ values[before]
            values[rows] = panel[:, rows] @ values[rows]
