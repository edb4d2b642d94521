"""Dual coordinate descent for gated hinge problems, with proximal Newton steps where it is slow."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from core.run import Run
from core.solvers.box_descent import active_set, projected_gradient, sweep
from core.solvers.gated_hinge import GatedHingeProblem
from core.solvers.iterate import Certificate, iterate
from core.solvers.jit import Rows, as_rows, row_norms2
from core.solvers.products import entries_per_row
from core.solvers.proximal_newton import proximal_step
from core.solvers.proximal_point import MAX_NEWTON_STEPS, Width
from core.solvers.solution import Solution
from core.solvers.threads import one_blas_thread
from core.types import FloatArray

_BLOCK_ENTRIES = 2_000_000
_MAX_EPOCHS_PER_ROUND = 20
# A round is slow when it leaves more than this share of the gap.
_SLOW = 0.5
_IDLE_ROUNDS = 12


def solve_dual_cd(
    problem: GatedHingeProblem,
    *,
    tolerance: float = 1e-6,
    max_epochs: int = 10_000,
    initial_dual: FloatArray | None = None,
    run: Run = Run(),
) -> Solution:
    """Minimise Eq. (12) through its dual: value θ (m,), dual α (n,).

    tolerance: relative duality gap at which to stop. max_epochs: limit of passes over the active rows plus
    Newton steps. initial_dual: (n,), clipped to [0, U]; the dual of a problem with a similar C or ε is a warm
    start. run: its seed orders the rows; each certificate is reported as stage ``"dual_cd"``.

    Rounds are coordinate descent in random order on the active rows (shrinking); after a round that did not
    halve the gap, proximal Newton steps take over. The reported objective is that of the best primal point so
    far, so the trace never rises.

    Raises InvalidProblem for arguments out of range and Cancelled when asked to stop.
    """
    # The products are small and sequential: starting a second BLAS thread costs more than it saves.
    with one_blas_thread():
        return iterate(
            _DualCoordinateDescent(problem, run.seed, initial_dual),
            stage="dual_cd",
            tolerance=tolerance,
            max_iterations=max_epochs,
            run=run,
        )


class _DualCoordinateDescent:
    """Solver state: α with θ(α), the best primal point, the active rows, and the kind of the next round."""

    def __init__(self, problem: GatedHingeProblem, seed: int, initial_dual: FloatArray | None) -> None:
        self.problem = problem
        self.rng = np.random.default_rng(seed)
        self.rows: Rows = as_rows(problem.features)
        self.norms = row_norms2(self.rows, problem.shape[0])
        self.dual = problem.feasible_start(initial_dual)
        self._settle_zero_rows()
        self.theta = problem.theta_of(self.dual)
        self.value, self.objective, self.dual_objective = self.theta, np.inf, -np.inf
        self.active: NDArray[np.int64] = np.flatnonzero(self.norms > 0.0)
        self.block = max(1, int(_BLOCK_ENTRIES / entries_per_row(problem.features)))
        self.iterations = 0
        self.idle = 0
        self.width = Width(float(np.mean(np.abs(problem.targets))) or 1.0)
        self.newton_next = False

    def _settle_zero_rows(self) -> None:
        """Set α of empty rows: their slack is t_i for every θ, so α_i is U_i if t_i > 0, otherwise 0."""
        empty = self.norms == 0.0
        self.dual[empty] = np.where(self.problem.targets[empty] > 0.0, self.problem.bounds[empty], 0.0)

    @property
    def gap(self) -> float:
        return self.objective - self.dual_objective

    def advance(self, run: Run) -> Certificate:
        """One round: the method of the round before if that halved the gap, otherwise the other one."""
        newton, gap, bound = self.newton_next, self.gap, self.dual_objective
        steps = self._newton(run) if newton else self._descend(run)
        self.iterations += steps
        self._certify(run)
        idle = self.gap > 0.999 * gap and self.dual_objective - bound <= 1e-15 * abs(bound)
        self.idle = self.idle + 1 if idle else 0
        slow = self.gap > _SLOW * gap
        if newton:
            self.width.adapt(struggled=steps >= MAX_NEWTON_STEPS or idle)
        self.newton_next = slow != newton
        return Certificate(self.objective, self.dual_objective, stalled=self.idle >= _IDLE_ROUNDS)

    def _descend(self, run: Run) -> int:
        """Epochs over the active rows, 1 to 20, together about as expensive as two passes over all rows."""
        problem, active = self.problem, self.active
        epochs = int(np.clip(2 * problem.shape[0] // max(1, len(active)), 1, _MAX_EPOCHS_PER_ROUND))
        for _ in range(epochs):
            self.rng.shuffle(active)
            for start in range(0, len(active), self.block):
                run.check_cancel()
                sweep(
                    self.rows,
                    problem.signs,
                    problem.targets,
                    problem.bounds,
                    self.norms,
                    active[start : start + self.block],
                    1,
                    self.dual,
                    self.theta,
                )
        return epochs

    def _newton(self, run: Run) -> int:
        step = proximal_step(
            self.problem,
            self.dual,
            self.theta,
            width=self.width.value,
            accuracy=1e-3 * self.gap,
            run=run,
            active=self.active,
        )
        self.dual, self.theta = step.alpha, step.theta
        self._consider(step.point, self.problem.slacks(step.point, run))
        return max(1, step.newton_steps)

    def _certify(self, run: Run) -> None:
        """Duality gap at θ(α) and the active set."""
        # The incrementally updated θ has accumulated rounding errors, which the bound must not contain.
        self.theta = self.problem.theta_of(self.dual, run)
        self.dual_objective = self.problem.dual_objective_at(self.dual, self.theta)  # Eq. (13)
        slacks = self.problem.slacks(self.theta, run)
        self._consider(self.theta, slacks)
        self._screen(slacks)

    def _consider(self, theta: FloatArray, slacks: FloatArray) -> None:
        """Keep the better primal point."""
        objective = self.problem.objective_at(theta, slacks)
        if objective < self.objective:
            self.value, self.objective = theta.copy(), objective

    def _screen(self, slacks: FloatArray) -> None:
        """Shrinking: drop empty rows, and rows at a bound with more KKT slack than the worst violation."""
        gradient = projected_gradient(slacks, self.dual, self.problem.bounds)
        gradient[self.norms == 0.0] = -np.inf
        self.active = np.flatnonzero(active_set(gradient))
