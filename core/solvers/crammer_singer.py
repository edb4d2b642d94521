"""Crammer and Singer's problem, Eq. (1) and (2), by dual block descent.

One block is the K dual variables of one example (Keerthi et al. 2008). Its sub-problem is solved exactly, by
projection on the simplex (Michelot 1986). Shrinking leaves out examples and classes at their bounds between
two certificates. Six measures make dense problems fast:

- Sweeps run in float32 until violations approach its resolution, then in float64. α and certificates are
  float64 throughout. While a row is swept, the next one is fetched.
- Once few examples are active, they are copied, in float32, so that most come from the processor's caches.
- Two workers sweep disjoint rows from the same W; an exact line search combines their steps (cf. CoCoA).
  There are always two, so results do not depend on the number of threads.
- Near the solution, D is maximised after each epoch over the plane of the last two steps (``plane_search``).
- The primal point is the best multiple of the mean of W over a round.
- If W has few entries, proximal Newton steps take over where descent converges slowly, as at a large C.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from core.run import Run
from core.solvers.block_sweeps import duality_terms, line_search_terms, merge, rivals_ahead
from core.solvers.iterate import Certificate, iterate
from core.solvers.jit import as_rows, is_sparse, row_norms2
from core.solvers.memory import MOST_PLANE_ENTRIES
from core.solvers.multiclass_hinge import CrammerSingerProblem, best_multiple
from core.solvers.products import entries_per_row, rmatvec_block, row_blocks, rows_of
from core.solvers.proximal_block_newton import proximal_block_step
from core.solvers.proximal_point import MAX_NEWTON_STEPS, Width, best_share
from core.solvers.solution import Solution
from core.solvers.swept_examples import SweptExamples
from core.solvers.threads import one_blas_thread
from core.types import FloatArray

__all__ = ["CrammerSingerProblem", "solve_crammer_singer"]

R = TypeVar("R")

_BLOCK_ENTRIES = 2_000_000
_WORKER_ENTRIES = 700_000
_SETTLED_ENTRIES = 125_000
_MIN_WORKER_ROWS = 96
_MAX_EPOCHS_PER_ROUND = 20
_FEWEST_EPOCHS_PER_ROUND = 3
# Share of the worst violation. Classes with more slack than this are left out until the next certificate.
_SLACK_SHARE = 0.02
# Rounds in succession in which neither bound of the optimum improves, until the solver has stalled.
_IDLE_ROUNDS = 12
# Relative size of rounding errors in D, and of the smallest rise between rounds that counts as progress.
_ROUNDING, _LEAST_RISE = 1e-15, 1e-12
# A round is slow when it leaves more than this share of the gap.
_SLOW = 0.5
# The steps of epochs are combined once the relative gap is this small, so that bounds change little, and a
# round has left more than this share of the gap: where descent is fast, the mean of W is the better point.
_CLOSE, _LINGERING = 0.05, 0.4
# A round ends when the gap of the active rows, measured on the way, is below this share of the tolerance.
_ENOUGH = 0.6
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
            _BlockDescent(problem, run.seed, initial_dual, pool, tolerance),
            stage="crammer_singer",
            tolerance=tolerance,
            max_iterations=max_epochs,
            run=run,
        )


class _BlockDescent:
    """Solver state: α, W(α) and the active classes of each example.

    classes: (n, K) int32; the first ``counts[i]`` entries of row i are its active classes. swept: the
    examples that a round sweeps, all or a copy of some. active: their numbers among these, of those with two
    or more active classes. slack: distance from violating its bound beyond which a class is inactive.
    W: W(α) in the precision of the sweeps, first float32. worker_weights: the workers' copies of W.
    settled: W(α) in float64 at the last certificate.
    bound, best_bound: D at the last certificate, and the largest D so far.
    mean: average of W over the epochs of a round, weighted by the epoch number. W(α) oscillates around the
    optimum, so its mean is the better primal point. value, objective: the best primal point so far, a
    multiple of a mean: where C/n is large, margins short of 1 by little would cost most.
    """

    def __init__(
        self,
        problem: CrammerSingerProblem,
        seed: int,
        initial_dual: FloatArray | None,
        pool: Executor,
        tolerance: float,
    ) -> None:
        n, K = problem.features.shape[0], problem.n_classes
        self.problem, self.pool, self.tolerance = problem, pool, tolerance
        self.rng = np.random.default_rng(seed)
        rows = as_rows(problem.features)
        self.labels: NDArray[np.int64] = problem.labels.astype(np.int64, copy=False)
        self.norms = row_norms2(rows, n)
        self.dual: FloatArray = problem.feasible_start(initial_dual)
        self._settle_zero_rows()
        self.settled = problem.weights_of(self.dual)
        self.value = self.settled
        self.objective = np.inf
        self.W: FloatArray = self.value.astype(np.float32)
        self.worker_weights = (self.W.copy(), self.W.copy())
        self.mean = np.zeros_like(self.value)
        self.classes: NDArray[np.int32] = np.tile(np.arange(K, dtype=np.int32), (n, 1))
        self.counts: NDArray[np.int32] = np.full(n, K, dtype=np.int32)
        self.all = SweptExamples(
            rows, self.labels, self.norms, self.dual, self.classes, self.counts, problem.bound
        )
        self.swept = self.all
        self.memory: NDArray[np.float32] | None = None
        self.active: NDArray[np.int64] = np.flatnonzero(self.norms > 0.0)
        self.slack = np.inf
        self.iterations = 0
        self.bound, self.best_bound, self.idle = -np.inf, -np.inf, 0
        self.may_newton = not is_sparse(problem.features) and self.W.size <= _MOST_NEWTON_WEIGHTS
        self.newton_next, self.slow, self.width = False, 0, Width()
        self.combining = False

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
        moving = self.active.copy()
        is_short = self.W.dtype == np.float32 and 2 * len(moving) <= len(self.dual)
        before = self.dual[moving] if is_short else None
        steps = self._newton(run) if newton else self._descend(run)
        self.iterations += steps
        self._settle(moving, before, run)
        certificate = self._certify(run)
        slow = self.gap > _SLOW * gap
        self.combining |= self.gap > _LINGERING * gap and self.gap < _CLOSE * self.objective
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
            self.settled,
            self.active,
            width=self.width.value,
            accuracy=1e-3 * self.gap,
            run=run,
        )
        self.dual[self.active] = step.alpha
        self.mean = step.point
        return max(1, step.newton_steps)

    def _descend(self, run: Run) -> int:
        """3 to 20 epochs over the active set.

        They end when their work equals one pass over all rows and classes, or when the gap of the active
        rows, measured on the way, is well within the tolerance.
        """
        budget = self.problem.features.shape[0] * self.problem.n_classes
        self.mean[:], weights = 0.0, 0.0
        plane = None
        for epoch in range(1, _MAX_EPOCHS_PER_ROUND + 1):
            if plane is None:
                if self.swept.worth_copying(self.active, self.W.dtype):
                    self.memory = self.all.memory() if self.memory is None else self.memory
                    self.swept = self.all.copy_of(self.active, self.memory)
                    self.active = np.arange(len(self.active))
                is_small = len(self.active) * self.problem.n_classes <= MOST_PLANE_ENTRIES
                if self.combining and is_small and (epoch > 1 or self.swept is not self.all):
                    plane = self.swept.plane_search(self.active.copy())
            if plane is not None:
                plane.start(self.W)
            work, gap = self._epoch(run)
            budget -= work
            if plane is not None and plane.improve(self.W):
                self.active = plane.order[self.swept.counts[plane.order] > 1]
                for weights_of_worker in self.worker_weights:
                    weights_of_worker[:] = self.W
            self.mean += epoch * self.W  # weighted average of the epochs, normalised below
            weights += epoch
            enough = budget <= 0 or gap <= _ENOUGH * self.tolerance * self.objective
            if (enough and epoch >= _FEWEST_EPOCHS_PER_ROUND) or not len(self.active):
                break
        self.mean /= weights
        if self.swept.numbers is not None:
            self.dual[self.swept.numbers] = self.swept.dual
        self.swept = self.all  # with other active sets, which the next certificate overwrites
        return epoch

    def _epoch(self, run: Run) -> tuple[int, float]:
        """One pass over the active rows in random order: the number of row products, and ``sweep``'s gap."""
        work, gap = 0, 0.0
        self.rng.shuffle(self.active)
        for first, second in self._partitions():
            run.check_cancel()
            if len(second):
                batch_work, batch_gap = self._sweep_in_parallel(first, second)
            else:
                batch_work, _, batch_gap = self.swept.sweep(first, self.W, self.slack)
            work, gap = work + batch_work, gap + batch_gap
        self.active = self.active[self.swept.counts[self.active] > 1]
        return work, gap

    def _partitions(self) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
        """Rows for each of the two workers, until all active rows are assigned.

        A batch must be large enough to amortise combining the steps, and small enough for the workers to be
        nearly independent. If rows are sparse or too few for that, the second worker gets none.
        """
        active = self.active
        if not len(active):
            return iter(())
        per_row = entries_per_row(self.problem.features) * float(self.swept.counts[active].mean())
        size = max(_MIN_WORKER_ROWS, int(_WORKER_ENTRIES / per_row))
        if is_sparse(self.problem.features) or 8 * size > len(active):
            size = max(1, int(_BLOCK_ENTRIES / per_row))
            return ((active[at : at + size], active[:0]) for at in range(0, len(active), size))
        return (
            (active[at : at + size], active[at + size : at + 2 * size])
            for at in range(0, len(active), 2 * size)
        )

    def _sweep_in_parallel(self, first: NDArray[np.int64], second: NDArray[np.int64]) -> tuple[int, float]:
        """Both workers sweep their rows from W; an exact line search then scales the sum of their steps.

        Along α + s Δα the dual is D + s (Σ_i Δα_i,y_i − ⟨W, ΔW⟩) − s²/2 ‖ΔW‖². Returns the number of row
        products, and the gap.
        """
        swept, (one, two) = self.swept, self.worker_weights
        both = np.concatenate((first, second))
        before = swept.dual[both]
        other = self.pool.submit(swept.sweep, second, two, self.slack)
        work, own, gap = swept.sweep(first, one, self.slack)
        other_work, other_own, other_gap = other.result()
        slope, curvature = line_search_terms(self.W, one, two)
        slope += own + other_own
        share = best_share(slope, curvature)
        merge(self.W, one, two, share)
        if share < 1.0:
            swept.dual[both] = before + share * (swept.dual[both] - before)
        return work + other_work, gap + other_gap

    def _certify(self, run: Run) -> Certificate:
        """Duality gap, active set and the precision of the next round, by the scores of the mean of W.

        Those of W(α), which would tell the violations exactly, cost a second pass over the features.
        """
        problem = self.problem
        worst, scale = 0.0, 1.0
        ahead = np.empty(len(self.labels))
        W = np.ascontiguousarray(self.mean.T)

        def terms_of(block: slice) -> tuple[float, float]:
            scores = rows_of(problem.features, block) @ W
            labels = self.labels[block]
            ahead[block] = rivals_ahead(scores, labels)
            return duality_terms(
                scores,
                labels,
                problem.bound,
                self.slack,
                self.dual[block],
                self.classes[block],
                self.counts[block],
            )

        for block_worst, block_scale in self._map_blocks(terms_of):
            run.check_cancel()
            worst, scale = max(worst, block_worst), max(scale, block_scale)
        self.slack = _SLACK_SHARE * worst
        self.active = np.flatnonzero((self.counts > 1) & (self.norms > 0.0))
        objective = self.objective
        self._consider_mean(ahead)
        bound = problem.dual_objective_at(self.dual, self.settled)  # weak duality: D(α) <= min P
        # The last rounds in float32 may lower D, which then rises again for a while before it is the best.
        is_best = bound - self.best_bound > _ROUNDING * abs(bound)
        rises = bound - self.bound > _LEAST_RISE * abs(bound)
        self.idle = 0 if is_best or rises or self.objective < objective else self.idle + 1
        self.bound, self.best_bound = bound, max(self.best_bound, bound)
        self._restart(single=worst > _SINGLE_RESOLUTION * scale and is_best)
        return Certificate(self.objective, bound, stalled=self.idle >= _IDLE_ROUNDS)

    def _settle(self, moving: NDArray[np.int64], before: FloatArray | None, run: Run) -> None:
        """W(α) in float64 after a round that has changed the rows ``moving``, whose α was ``before``.

        The sweeps' W has accumulated rounding errors, which no bound may contain. While it is in float32 and
        few rows have moved, a correction of the last W(α) is exact enough; otherwise ``before`` is None. Sums
        are in the order of the blocks, so that threads do not affect the rounding.
        """
        features = self.problem.features
        if before is None:
            self.settled = np.zeros(self.value.shape)
            parts = self._map_blocks(lambda block: rmatvec_block(features, self.dual, block))
        else:
            size = max(1, int(_SETTLED_ENTRIES / entries_per_row(features)))
            blocks = (slice(at, at + size) for at in range(0, len(moving), size))
            parts = (
                (self.dual[moving[block]] - before[block]).T @ features[moving[block]].astype(np.float64)
                for block in blocks
            )
        for part in parts:
            run.check_cancel()
            self.settled += part

    def _map_blocks(self, function: Callable[[slice], R]) -> Iterator[R]:
        """``function`` of each block of rows, in order, on both threads; on none if there is one block."""
        blocks = list(row_blocks(self.problem.features))
        return map(function, blocks) if len(blocks) == 1 else self.pool.map(function, blocks)

    def _consider_mean(self, ahead: FloatArray) -> None:
        """Keep the best multiple of the mean if it is the better primal point; rivals are ``ahead`` (n,)."""
        norm2, bound = float(np.vdot(self.mean, self.mean)), self.problem.bound
        factor = best_multiple(norm2, bound, ahead)
        objective = 0.5 * factor**2 * norm2 + bound * float(np.maximum(1.0 + factor * ahead, 0.0).sum())
        if objective < self.objective:
            self.value, self.objective = factor * self.mean, objective

    def _restart(self, *, single: bool) -> None:
        """Continue from the settled W(α); in float32 if ``single`` and the last round was in float32, too."""
        self.W = self.settled.astype(np.float32 if single and self.W.dtype == np.float32 else np.float64)
        self.worker_weights = (self.W.copy(), self.W.copy())
