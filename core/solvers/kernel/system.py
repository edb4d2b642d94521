"""Kernel interpolation: (K + jI) α = Y for an RBF kernel matrix K, with one column of Y per class.

The method is preconditioned conjugate gradients. The preconditioner is the tiled Cholesky factor in float32,
if it fits into the allowed memory: its solution is then the first iterate, and further ones refine it.
Otherwise the preconditioner is the kernel's Nyström approximation from landmarks, B Bᵀ + δI with B (n, p),
and K is recomputed, block by block, for every step.

The columns share the products, but each has step lengths of its own. Conjugate gradients minimise, column by
column, J(α) = ½ αᵀ(K + jI)α − αᵀY, so that J never rises beyond rounding.
"""

from __future__ import annotations

import time
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import scipy.linalg
from numpy.typing import NDArray

from core.errors import Fault, InvalidProblem
from core.run import Run
from core.solvers.checks import matrix_faults, positive_fault
from core.solvers.kernel.rows import KernelRows, in_parallel, slices
from core.solvers.kernel.tile_file import TileFile
from core.solvers.kernel.tiled_cholesky import TILE, NotPositiveDefinite, TiledCholesky
from core.solvers.solution import Status, Summary
from core.solvers.threads import one_blas_thread
from core.types import FloatArray

Doubles = NDArray[np.float64]

STAGE = "kernel_interpolation"
_SINGLE_RESOLUTION = 1e-5
"""Relative residuals below this need a kernel in float64."""
_JITTER_FACTOR, _MOST_JITTER = 10.0, 1.0
_MAX_LANDMARKS = 2000
_KEPT_ROWS = 8192
"""Fewer rows are factored within seconds, so that no file is kept for them."""
_IDLE_STEPS = 100
"""After this many successive steps without a smaller residual, rounding errors prevent progress."""


@dataclass(frozen=True, slots=True, eq=False)
class KernelSolution:
    """α and details of the solution.

    value: α, (n, K). fitted: (K + jI) α − jα, the function at the training rows, (n, K).
    residual: ‖(K + jI) α − Y‖ / ‖Y‖. objective: Σ over the columns of J(α). jitter: j, which is increased if
    a tile could not be factored. condition: an estimate of the condition number of K + jI; None without a
    Cholesky factor. iterations: of conjugate gradients. trace: J at the start and after each iteration.
    inverse_diagonal: of (K + jI)⁻¹, (n,), if it was requested and there is a Cholesky factor.
    """

    value: Doubles
    fitted: Doubles
    residual: float
    objective: float
    jitter: float
    condition: float | None
    status: Status
    iterations: int
    seconds: float
    trace: tuple[float, ...]
    inverse_diagonal: Doubles | None = None

    def summary(self) -> Summary:
        """Objective, relative residual instead of a relative gap, iterations, time and status."""
        return Summary(self.objective, None, self.residual, self.iterations, self.seconds, self.status.value)


def solve_kernel_system(
    rows: FloatArray,
    right: FloatArray,
    *,
    jitter: float = 1e-4,
    tolerance: float = 1e-2,
    max_iterations: int = 200,
    memory_bytes: float = 4 * 2.0**30,
    with_inverse_diagonal: bool = False,
    tile: int = TILE,
    run: Run = Run(),
) -> KernelSolution:
    """Solve (K + jI) α = Y with K_ij = exp(−‖z_i − z_j‖²).

    rows: z, (n, d), which include the factor of the kernel's width. right: Y, (n, q). jitter: j > 0; while a
    tile is not positive definite, it is multiplied by ten, up to 1, and the factorisation is repeated.
    tolerance: relative residual at which to stop. memory_bytes: for the factor, 2 n² bytes, or otherwise for
    B.
    with_inverse_diagonal: costs as much as the factorisation.
    run: its threads share tiles and blocks; no result depends on their number. Reports stage
        ``"kernel_interpolation"`` in tiles, or in steps with the objective. From 8192 rows on, its scratch
        folder has the finished columns of tiles until α is found.

    Raises InvalidProblem for arguments out of range, Cancelled (checked between tiles and blocks).
    """
    _check(rows, right, jitter, tolerance, max_iterations)
    started = time.perf_counter()
    exact = KernelRows(np.ascontiguousarray(rows, dtype=np.float64))
    used = exact if tolerance < _SINGLE_RESOLUTION else exact.astype(np.float32)
    with one_blas_thread(), ThreadPoolExecutor(run.threads) as pool, ExitStack() as stack:
        condition: float | None = None
        diagonal: Doubles | None = None
        preconditioner: Preconditioner
        if 2.0 * exact.n * (exact.n + tile) <= memory_bytes:
            factor, jitter = _factored(exact.astype(np.float32), jitter, pool, run, tile, stack)
            condition = factor.condition()
            diagonal = factor.inverse_diagonal() if with_inverse_diagonal else None
            preconditioner = factor
        else:
            preconditioner = NystromPreconditioner(used, jitter, memory_bytes, pool, run)
        solved = _conjugate_gradients(
            used, right, jitter, preconditioner, tolerance, max_iterations, pool, run
        )
        if isinstance(preconditioner, TiledCholesky) and preconditioner.kept is not None:
            preconditioner.kept.remove()
    alpha, residual, objective, status, iterations, trace = solved
    fitted = right - residual - jitter * alpha
    relative = float(np.linalg.norm(residual) / np.linalg.norm(right))
    seconds = time.perf_counter() - started
    return KernelSolution(
        alpha, fitted, relative, objective, jitter, condition, status, iterations, seconds, trace, diagonal
    )


class Preconditioner(Protocol):
    """An approximate inverse of K + jI."""

    def solve(self, right: FloatArray) -> Doubles:
        """M⁻¹ R, (n, q). Raises Cancelled."""
        ...


class NystromPreconditioner:
    """M = B Bᵀ + δI with B = K_nL L_LL⁻ᵀ, the Nyström approximation from random landmarks, B (n, p) float32.

    δ is the jitter, or the mean error of the approximation on the diagonal, if that is larger. M⁻¹
    follows from (BᵀB + δI)⁻¹ by the formula of Woodbury. The landmarks are drawn by the run's seed.
    """

    def __init__(
        self, kernel: KernelRows, jitter: float, memory_bytes: float, pool: Executor, run: Run
    ) -> None:
        p = int(max(1, min(_MAX_LANDMARKS, kernel.n // 2, memory_bytes / (4.0 * kernel.n))))
        chosen = np.sort(np.random.default_rng(run.seed).choice(kernel.n, p, replace=False))
        landmarks = KernelRows(kernel.rows[chosen])
        inner = landmarks.astype(np.float64).block(slice(0, p), slice(0, p))
        inner[np.diag_indices(p)] += 1e-6 * p
        upper = scipy.linalg.cholesky(inner, check_finite=False)
        to_factor = scipy.linalg.solve_triangular(upper, np.eye(p), check_finite=False).astype(np.float32)
        self._factor = np.empty((kernel.n, p), dtype=np.float32)

        def fill(block: slice) -> None:
            run.check_cancel()
            both = KernelRows(np.concatenate((kernel.rows[block], landmarks.rows)))
            size = block.stop - block.start
            self._factor[block] = both.block(slice(0, size), slice(size, size + p)) @ to_factor

        in_parallel(pool, fill, slices(kernel.n, TILE))
        left = 1.0 - np.einsum("ij,ij->i", self._factor, self._factor, dtype=np.float64)
        self._shift = max(jitter, float(left.mean()))
        gram = (self._factor.T @ self._factor).astype(np.float64)
        gram[np.diag_indices(p)] += self._shift
        self._gram = scipy.linalg.cho_factor(gram, lower=True, check_finite=False)

    def solve(self, right: FloatArray) -> Doubles:
        """M⁻¹ R = (R − B (BᵀB + δI)⁻¹ Bᵀ R) / δ."""
        inner = scipy.linalg.cho_solve(self._gram, self._factor.T @ right, check_finite=False)
        result: Doubles = (right - self._factor @ inner) / self._shift
        return result


def _factored(
    kernel: KernelRows, jitter: float, pool: Executor, run: Run, tile: int, stack: ExitStack
) -> tuple[TiledCholesky, float]:
    """The factor, and the jitter for which it exists. Raises InvalidProblem if even 1 is too small.

    stack: closes the file with the factor's columns.
    """
    while True:
        kept = None
        if run.scratch is not None and kernel.n >= _KEPT_ROWS:
            size = 2 * kernel.n * (kernel.n + tile)
            kept = TileFile.open(run.scratch, kernel.rows, f"jitter {jitter!r}, tiles of {tile}", size)
        if kept is not None:
            stack.callback(kept.close)
        try:
            factor = TiledCholesky(
                kernel,
                jitter,
                pool,
                run,
                tile=tile,
                report=lambda done, total: run.report(STAGE, done, total),
                kept=kept,
            )
        except NotPositiveDefinite as error:
            if kept is not None:
                kept.remove()
            jitter *= _JITTER_FACTOR
            if jitter > _MOST_JITTER:
                raise InvalidProblem(Fault("teacher.jitter", "singular", str(error))) from error
        else:
            return factor, jitter


def _conjugate_gradients(
    kernel: KernelRows,
    right: FloatArray,
    jitter: float,
    preconditioner: Preconditioner,
    tolerance: float,
    max_iterations: int,
    pool: Executor,
    run: Run,
) -> tuple[Doubles, Doubles, float, Status, int, tuple[float, ...]]:
    """α, Y − (K + jI) α, J, status, number of iterations, and J after each."""

    def times(vectors: Doubles) -> Doubles:
        return kernel.times(vectors, pool, run) + jitter * vectors

    Y = np.asarray(right, dtype=np.float64)
    enough = tolerance * float(np.linalg.norm(Y))
    alpha = preconditioner.solve(Y)
    image = times(alpha)
    # The best multiple of the preconditioner's solution: near 1 for a factor, arbitrary for an approximation.
    alpha, image = _scaled(alpha, image, Y)
    residual = Y - image
    trace = [-0.5 * _inner(alpha, Y + residual)]
    best, idle, iterations = float(np.linalg.norm(residual)), 0, 0
    direction, weight = np.zeros_like(Y), np.ones(Y.shape[1])
    status = Status.CONVERGED
    while best > enough:
        if idle >= _IDLE_STEPS or iterations >= max_iterations:
            status = Status.STALLED if idle >= _IDLE_STEPS else Status.MAX_ITERATIONS
            break
        steep = preconditioner.solve(residual)
        before, weight = weight, (residual * steep).sum(axis=0)
        direction = steep + (_ratio(weight, before) if iterations else 0.0) * direction
        image = times(direction)
        step = _ratio(weight, (direction * image).sum(axis=0))
        alpha, residual = alpha + step * direction, residual - step * image
        iterations += 1
        trace.append(-0.5 * _inner(alpha, Y + residual))
        now = float(np.linalg.norm(residual))
        idle = 0 if now < best else idle + 1
        best = min(best, now)
        run.report(STAGE, iterations, max_iterations, trace[-1])
    return alpha, residual, trace[-1], status, iterations, tuple(trace)


def _scaled(alpha: Doubles, image: Doubles, right: Doubles) -> tuple[Doubles, Doubles]:
    """Each column times the factor that minimises J along the column."""
    factor = _ratio((alpha * right).sum(axis=0), (alpha * image).sum(axis=0))
    return alpha * factor, image * factor


def _ratio(above: Doubles, below: Doubles) -> Doubles:
    """above / below, and 0 where ``below`` is not positive."""
    return np.divide(above, below, out=np.zeros_like(above), where=below > 0.0)


def _inner(one: Doubles, two: Doubles) -> float:
    return float(np.vdot(one, two))


def _check(rows: FloatArray, right: FloatArray, jitter: float, tolerance: float, max_iterations: int) -> None:
    faults = matrix_faults(rows) + positive_fault("jitter", jitter) + positive_fault("tolerance", tolerance)
    if right.ndim != 2 or len(right) != len(rows) or not np.isfinite(right).all():
        message = f"right must be finite, of shape ({len(rows)}, q), got {right.shape}"
        faults.append(Fault("right", "wrong_shape", message))
    elif not right.any():
        faults.append(Fault("right", "zero", "right must have an entry that is not 0"))
    if max_iterations < 0:
        faults.append(Fault("max_iterations", "out_of_range", "max_iterations must not be negative"))
    if faults:
        raise InvalidProblem(*faults)
