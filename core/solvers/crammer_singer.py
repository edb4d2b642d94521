"""Crammer and Singer's problem, Eq. (1) and (2), by dual block descent.

One block is the K dual variables of one example. Its sub-problem is solved exactly by sorting (Keerthi et al.
2008). Shrinking leaves out examples and classes at their bounds between two certificates. Three measures make
dense problems fast:

- Sweeps run in float32 until violations approach its resolution, then in float64. α and certificates are
  float64 throughout.
- Two workers sweep disjoint rows from the same W; an exact line search combines their steps (cf. CoCoA).
  There are always two, so results do not depend on the number of threads.
- If W has few entries, proximal Newton steps take over where descent converges slowly, as at a large C.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from core.run import Run
from core.solvers.block_sweeps import duality_terms, hinge_losses, line_search_terms, merge, sweep
from core.solvers.iterate import Certificate, iterate
from core.solvers.jit import Rows, as_rows, is_sparse, row_norms2
from core.solvers.multiclass_hinge import CrammerSingerProblem
from core.solvers.products import entries_per_row, rmatvec_block, row_blocks, rows_of
from core.solvers.proximal_block_newton import proximal_block_step
from core.solvers.proximal_point import MAX_NEWTON_STEPS, Width, best_share
from core.solvers.solution import Solution
from core.solvers.threads import one_blas_thread
from core.types import FloatArray

__all__ = ["CrammerSingerProblem", "solve_crammer_singer"]

R = TypeVar("R")

_BLOCK_ENTRIES = 2_000_000
_WORKER_ENTRIES = 700_000
_MIN_WORKER_ROWS = 96
_MAX_EPOCHS_PER_ROUND = 20
_FEWEST_EPOCHS_PER_ROUND = 3
# Share of the worst violation. Classes with more slack than this are left out until the next certificate.
_SLACK_SHARE = 0.02
_IDLE_ROUNDS = 12
# A round is slow when it leaves more than this share of the gap.
_SLOW = 0.5
# Slow rounds of block descent in succession before a Newton step, which is far more expensive.
_PATIENCE = 8
# Limit of K·m, the entries of W: Newton's system has (K m)² entries, and beyond this descent is faster.
_MOST_NEWTON_WEIGHTS = 700
# Scores in float32 have an error of about 1e-7 of the largest; smaller violations need float64.
_SINGLE_RESOLUTION = 1e-4


def solve_crammer_singer(
    problem: CrammerSingerProblem,
    *,
    tolerance: float = 1e-4,
    max_epochs: int = 2000,
    initial_dual: FloatArray | None = None,
    run: Run = Run(),
) -> Solution:
    """Minimise Eq. (1): value W (K, m), dual α (n, K).

    tolerance: relative duality gap at which to stop. max_epochs: limit of passes over the active examples
    plus Newton steps. initial_dual: (n, K), made feasible; the dual of a problem with a similar C is a
    warm start. run: its seed orders the examples; each certificate is reported as stage
    ``"crammer_singer"``.

    Raises InvalidProblem for arguments out of range and Cancelled when asked to stop.
    """
    # With several BLAS threads the order of the sums would vary, and both workers call BLAS concurrently.
    with one_blas_thread(), ThreadPoolExecutor(max_workers=2) as pool:
        return iterate(
            _BlockDescent(problem, run.seed, initial_dual, pool),
            stage="crammer_singer",
            tolerance=tolerance,
            max_iterations=max_epochs,
            run=run,
        )


class _BlockDescent:
    """Solver state: α, W(α) and the active classes of each example.

    classes: (n, K) int32; the first ``counts[i]`` entries of row i are its active classes. active: numbers of
    the examples with two or more. slack: distance from violating its bound beyond which a class is inactive.
    W: W(α) in the precision of the sweeps, first float32. worker_weights: the workers' copies of W.
    mean: average of W over the epochs of a round, weighted by the epoch number. W(α) oscillates around the
    optimum, so its mean is often the better primal point. value, objective: the best primal point so far.
    """

    def __init__(
        self, problem: CrammerSingerProblem, seed: int, initial_dual: FloatArray | None, pool: Executor
    ) -> None:
        n, K = problem.features.shape[0], problem.n_classes
        self.problem, self.pool = problem, pool
        self.rng = np.random.default_rng(seed)
        self.rows: Rows = as_rows(problem.features)
        self.labels: NDArray[np.int64] = problem.labels.astype(np.int64, copy=False)
        self.norms = row_norms2(self.rows, n)
        self.dual: FloatArray = problem.feasible_start(initial_dual)
        self._settle_zero_rows()
        self.value = problem.weights_of(self.dual)
        self.objective = np.inf
        self.W: FloatArray = self.value.astype(np.float32)
        self.worker_weights = (self.W.copy(), self.W.copy())
        self.mean = np.zeros_like(self.value)
        self.classes: NDArray[np.int32] = np.tile(np.arange(K, dtype=np.int32), (n, 1))
        self.counts: NDArray[np.int32] = np.full(n, K, dtype=np.int32)
        self.active: NDArray[np.int64] = np.flatnonzero(self.norms > 0.0)
        self.slack = np.inf
        self.iterations = 0
        self.best_bound, self.idle = -np.inf, 0
        self.may_newton = not is_sparse(problem.features) and self.W.size <= _MOST_NEWTON_WEIGHTS
        self.newton_next, self.slow, self.width = False, 0, Width()

    def _settle_zero_rows(self) -> None:
        """Set α of empty rows: their loss is 1 for every W, so α is b for y_i and −b for another class."""
        empty = np.flatnonzero(self.norms == 0.0)
        labels = self.problem.labels[empty]
        self.dual[empty] = 0.0
        self.dual[empty, labels] = self.problem.bound
        self.dual[empty, (labels + 1) % self.problem.n_classes] = -self.problem.bound

    def advance(self, run: Run) -> Certificate:
        """A round of block descent, or one Newton step after several slow rounds; then the certificate."""
        newton, gap = self.newton_next, self.gap
        steps = self._newton(run) if newton else self._descend(run)
        self.iterations += steps
        certificate = self._certify(run)
        slow = self.gap > _SLOW * gap
        if newton:
            # A smaller σ converges faster, as long as Newton's method solves the proximal problem easily.
            self.width.adapt(struggled=steps >= MAX_NEWTON_STEPS or self.gap > 0.999 * gap)
            self.slow, self.newton_next = 0, not slow
        else:
            self.slow = self.slow + 1 if slow else 0
            self.newton_next = self.may_newton and self.slow >= _PATIENCE
        return certificate

    @property
    def gap(self) -> float:
        return self.objective - self.best_bound

    def _newton(self, run: Run) -> int:
        step = proximal_block_step(
            self.problem,
            self.dual,
            self.problem.weights_of(self.dual, run),
            self.active,
            width=self.width.value,
            accuracy=1e-3 * self.gap,
            run=run,
        )
        self.dual[self.active] = step.alpha
        self.mean = step.point
        return max(1, step.newton_steps)

    def _descend(self, run: Run) -> int:
        """3 to 20 epochs over the active set, until their work equals one pass over all rows and classes."""
        budget = self.problem.features.shape[0] * self.problem.n_classes
        self.mean[:], weights = 0.0, 0.0
        for epoch in range(1, _MAX_EPOCHS_PER_ROUND + 1):
            budget -= self._epoch(run)
            self.mean += epoch * self.W  # weighted average of the epochs, normalised below
            weights += epoch
            if (budget <= 0 and epoch >= _FEWEST_EPOCHS_PER_ROUND) or not len(self.active):
                break
        self.mean /= weights
        return epoch

    def _epoch(self, run: Run) -> int:
        """One pass over the active examples in random order. Returns the number of row products."""
        work = 0
        self.rng.shuffle(self.active)
        for first, second in self._partitions():
            run.check_cancel()
            work += self._sweep_in_parallel(first, second) if len(second) else self._sweep(first, self.W)[0]
        self.active = self.active[self.counts[self.active] > 1]
        return work

    def _partitions(self) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
        """Rows for each of the two workers, until all active rows are assigned.

        A batch must be large enough to amortise combining the steps, and small enough for the workers to be
        nearly independent. If rows are sparse or too few for that, the second worker gets none.
        """
        active = self.active
        if not len(active):
            return iter(())
        per_row = entries_per_row(self.problem.features) * float(self.counts[active].mean())
        size = max(_MIN_WORKER_ROWS, int(_WORKER_ENTRIES / per_row))
        if is_sparse(self.problem.features) or 8 * size > len(active):
            size = max(1, int(_BLOCK_ENTRIES / per_row))
            return ((active[at : at + size], active[:0]) for at in range(0, len(active), size))
        return (
            (active[at : at + size], active[at + size : at + 2 * size])
            for at in range(0, len(active), 2 * size)
        )

    def _sweep(self, order: NDArray[np.int64], W: FloatArray) -> tuple[int, float]:
        problem = self.problem
        return sweep(
            self.rows,
            self.labels,
            problem.bound,
            self.norms,
            order,
            self.classes,
            self.counts,
            self.slack,
            self.dual,
            W,
        )

    def _sweep_in_parallel(self, first: NDArray[np.int64], second: NDArray[np.int64]) -> int:
        """Both workers sweep their rows from W; an exact line search then scales the sum of their steps.

        Along α + s Δα the dual is D + s (Σ_i Δα_i,y_i − ⟨W, ΔW⟩) − s²/2 ‖ΔW‖². Returns the number of row
        products.
        """
        one, two = self.worker_weights
        both = np.concatenate((first, second))
        before = self.dual[both]
        other = self.pool.submit(self._sweep, second, two)
        work, own = self._sweep(first, one)
        other_work, other_own = other.result()
        slope, curvature = line_search_terms(self.W, one, two)
        slope += own + other_own
        share = best_share(slope, curvature)
        merge(self.W, one, two, share)
        if share < 1.0:
            self.dual[both] = before + share * (self.dual[both] - before)
        return work + other_work

    def _certify(self, run: Run) -> Certificate:
        """Duality gap at W(α) and at the mean of W, the active set, and the precision of the next round."""
        problem = self.problem
        # The incrementally updated W has accumulated rounding errors, which the bound must not contain.
        W = self._weights(run)
        losses, mean_losses, worst, scale = 0.0, 0.0, 0.0, 1.0

        both = np.concatenate((W, self.mean)).T

        def terms_of(block: slice) -> tuple[float, float, float, float]:
            scores = rows_of(problem.features, block) @ both
            labels = self.labels[block]
            terms = duality_terms(
                scores[:, : problem.n_classes],
                labels,
                problem.bound,
                self.slack,
                self.dual[block],
                self.classes[block],
                self.counts[block],
            )
            return *terms, hinge_losses(scores[:, problem.n_classes :], labels)

        for block_losses, block_worst, block_scale, block_mean in self._map_blocks(terms_of):
            run.check_cancel()
            losses += block_losses
            mean_losses += block_mean
            worst, scale = max(worst, block_worst), max(scale, block_scale)
        self.slack = _SLACK_SHARE * worst
        self.active = np.flatnonzero((self.counts > 1) & (self.norms > 0.0))
        self._consider(W, losses)
        self._consider(self.mean, mean_losses)
        bound = problem.dual_objective_at(self.dual, W)  # weak duality: D(α) <= min P
        self.idle = self.idle + 1 if bound - self.best_bound <= 1e-15 * abs(bound) else 0
        self.best_bound = max(self.best_bound, bound)
        self._restart_from(W, single=worst > _SINGLE_RESOLUTION * scale and not self.idle)
        return Certificate(self.objective, bound, stalled=self.idle >= _IDLE_ROUNDS)

    def _weights(self, run: Run) -> FloatArray:
        """W(α) in float64, summed in the order of the blocks, so that threads do not affect the rounding."""
        features = self.problem.features
        W: FloatArray = np.zeros(self.value.shape)
        for part in self._map_blocks(lambda block: rmatvec_block(features, self.dual, block)):
            run.check_cancel()
            W += part
        return W

    def _map_blocks(self, function: Callable[[slice], R]) -> Iterator[R]:
        """``function`` of each block of rows, in order, on both threads; on none if there is one block."""
        blocks = list(row_blocks(self.problem.features))
        return map(function, blocks) if len(blocks) == 1 else self.pool.map(function, blocks)

    def _consider(self, W: FloatArray, losses: float) -> None:
        """Keep the better primal point."""
        objective = 0.5 * float(np.sum(W * W)) + self.problem.bound * losses
        if objective < self.objective:
            self.value, self.objective = W.copy(), objective

    def _restart_from(self, W: FloatArray, *, single: bool) -> None:
        """Continue from the recomputed W; in float32 if ``single`` and the last round was in float32, too."""
        self.W = W.astype(np.float32 if single and self.W.dtype == np.float32 else np.float64)
        self.worker_weights = (self.W.copy(), self.W.copy())
