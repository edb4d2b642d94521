"""The multi-class optimal margin distribution machine (mcODM), by dual block descent.

Zhang and Zhou, Multi-class optimal margin distribution machine (ICML 2017). The margin of an example is
γ_i = s_y − max_{l≠y} s_l with s_l = w_l·φ_i, and all margins are drawn into a band around 1 from both sides:

    min_W ½‖W‖² + c/2 Σ_i (ξ_i² + μ ε_i²),   c = C / (n (1 − θ)²),
    ξ_i = [1 − θ − γ_i]_+,   ε_i = [γ_i − 1 − θ]_+

The maximum in ε_i makes the objective neither convex nor smooth. In the inner problems it is a fixed number
M_i, computed from the previous solution, and P_M(W) is convex. Each is solved in its dual,

    D_M(α, β) = −½‖W‖² − Σ_i (α_{i,y}² + β_i²/μ)/(2c) − (1 − θ) Σ_{i,l≠y} α_il − Σ_i (M_i + 1 + θ) β_i,
    w_l = Σ_i (α_il − [l = y_i] β_i) φ_i,   Σ_l α_il = 0,   α_il ≤ 0 for l ≠ y_i,   β_i ≥ 0,

whose feasible set does not depend on M, so every inner problem starts from the solution of the last one.
The outer loop ends at a fixed point, when updating M changes the objective by no more than the tolerance.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from core.errors import Fault, InvalidProblem
from core.run import Run
from core.solvers.checks import positive_fault
from core.solvers.jit import as_rows, row_norms2
from core.solvers.margins.multiclass_sweeps import margin_sweep, margin_terms
from core.solvers.multiclass_hinge import CrammerSingerProblem
from core.solvers.products import entries_per_row, rmatvec, row_blocks, rows_of
from core.solvers.solution import Solution, Status
from core.solvers.threads import one_blas_thread
from core.types import FloatArray, IntArray, Matrix

STAGE = "mcodm"
_EPOCHS_PER_ROUND = 10
_BLOCK_ENTRIES = 2_000_000
_SLACK_SHARE = 0.02
"""Share of the worst violation; classes with more slack than this are left out until the next certificate."""
_SINGLE_RESOLUTION = 1e-4
"""Scores in float32 have an error of about 1e-7 of the largest; smaller violations need float64."""
_IDLE_ROUNDS = 12


@dataclass(frozen=True, slots=True, eq=False)
class MulticlassMarginProblem:
    """mcODM with n examples φ_i (m,) and K classes, see the module's docstring.

    features: Φ, shape (n, m), float32 or float64, dense or CSR. labels: y, shape (n,), codes 0..K−1.
    n_classes: K ≥ 2. C: λ > 0 of the slides. band: θ in [0, 1). excess: μ > 0.

    Raises InvalidProblem when shapes do not fit or values are out of range.
    """

    features: Matrix
    labels: IntArray
    n_classes: int
    C: float
    band: float
    excess: float

    def __post_init__(self) -> None:
        faults = positive_fault("excess", self.excess) + positive_fault("1 - band", 1.0 - self.band)
        if not self.band >= 0.0:
            faults.append(Fault("band", "out_of_range", f"band must not be negative, got {self.band}"))
        if faults:
            raise InvalidProblem(*faults)
        checked = CrammerSingerProblem(self.features, self.labels, self.n_classes, self.C)
        object.__setattr__(self, "labels", checked.labels)

    @property
    def weight(self) -> float:
        """c = C / (n (1 − θ)²)."""
        return float(self.C / (self.features.shape[0] * (1.0 - self.band) ** 2))

    def rivals_of(self, W: FloatArray) -> FloatArray:
        """max_{l≠y} w_l·φ, (n,), for W (K, m)."""
        best = np.empty(self.features.shape[0])
        for block in row_blocks(self.features):
            scores = rows_of(self.features, block) @ W.T
            np.put_along_axis(scores, self.labels[block, None], -np.inf, axis=1)
            best[block] = scores.max(axis=1)
        return best

    def objective(self, W: FloatArray, rivals: FloatArray | None = None) -> float:
        """P_M(W) for W (K, m) and M (n,); without M the objective itself, with M = max_{l≠y} w_l·φ."""
        own = np.empty(self.features.shape[0])
        for block in row_blocks(self.features):
            scores = rows_of(self.features, block) @ W.T
            own[block] = np.take_along_axis(scores, self.labels[block, None], axis=1)[:, 0]
        best = self.rivals_of(W)
        short = np.maximum(1.0 - self.band - own + best, 0.0)
        beyond = np.maximum(own - (best if rivals is None else rivals) - 1.0 - self.band, 0.0)
        losses = float(np.sum(short**2 + self.excess * beyond**2))
        return 0.5 * float(np.vdot(W, W)) + 0.5 * self.weight * losses

    def weights_of(self, alpha: FloatArray, beta: FloatArray, run: Run = Run()) -> FloatArray:
        """W(α, β), (K, m), for α (n, K) and β (n,)."""
        coefficients = alpha.copy()
        coefficients[np.arange(len(beta)), self.labels] -= beta
        return rmatvec(self.features, coefficients, run)

    def dual_objective(self, alpha: FloatArray, beta: FloatArray, rivals: FloatArray, W: FloatArray) -> float:
        """D_M(α, β) at W(α, β). As Σ_l α_il = 0, −Σ_{l≠y} α_il = α_{i,y}."""
        own = alpha[np.arange(len(beta)), self.labels]
        quadratic = float(np.sum(own**2) + np.sum(beta**2) / self.excess) / (2.0 * self.weight)
        linear = (1.0 - self.band) * float(own.sum()) - float(np.sum((rivals + 1.0 + self.band) * beta))
        return linear - quadratic - 0.5 * float(np.vdot(W, W))


@dataclass(frozen=True, slots=True)
class MarginSolution(Solution):
    """A solution with the results of the outer loop; the certificate is that of the last inner problem.

    value: W (K, m). dual: α with β as its last column, (n, K + 1). rivals: M (n,).
    rounds: D_M after each certificate of each inner problem, one tuple per inner problem.
    change: |P − P_M| / P at the end, which is 0 at a fixed point.
    """

    rivals: FloatArray
    rounds: tuple[tuple[float, ...], ...]
    change: float


def solve_multiclass_odm(
    problem: MulticlassMarginProblem,
    *,
    tolerance: float = 1e-3,
    max_epochs: int = 5000,
    max_outer: int = 50,
    initial_dual: FloatArray | None = None,
    run: Run = Run(),
) -> MarginSolution:
    """A fixed point of the outer loop: value W (K, m), dual (n, K + 1).

    tolerance: relative duality gap of the inner problem, and relative change of the objective when M is
    updated. Earlier inner problems are solved to a tenth of the previous change, so that they cost little.
    max_epochs: limit of passes over the active examples. max_outer: limit of inner problems.
    initial_dual: (n, K + 1), of the same rows, made feasible. run: its seed orders the examples; each
    certificate is reported as stage ``"mcodm"``.

    Raises InvalidProblem for arguments out of range, Cancelled.
    """
    faults = positive_fault("tolerance", tolerance)
    if faults or max_epochs < 1 or max_outer < 1:
        message = "max_epochs and max_outer must be at least 1"
        raise InvalidProblem(*(faults or [Fault("max_epochs", "out_of_range", message)]))
    with one_blas_thread():
        return _BlockDescent(problem, initial_dual, run).solve(tolerance, max_epochs, max_outer)


class _BlockDescent:
    """Solver state: α, β, W(α, β), M, and the active classes of each example.

    classes: (n, K) int32; the first ``counts[i]`` entries of row i are its active classes other than y.
    value, primal: the best primal point of this inner problem.
    """

    def __init__(self, problem: MulticlassMarginProblem, initial_dual: FloatArray | None, run: Run) -> None:
        self.problem, self.run = problem, run
        n, K = problem.features.shape[0], problem.n_classes
        self.rng = np.random.default_rng(run.seed)
        self.rows = as_rows(problem.features)
        self.labels: NDArray[np.int64] = problem.labels.astype(np.int64, copy=False)
        self.norms = row_norms2(self.rows, n)
        self.alpha, self.beta = self._start(initial_dual)
        self.rivals: FloatArray = np.zeros(n)
        self.classes: NDArray[np.int32] = np.zeros((n, K), dtype=np.int32)
        self.counts: NDArray[np.int32] = np.zeros(n, dtype=np.int32)
        self.slack, self.epochs = np.inf, 0
        self.settled = problem.weights_of(self.alpha, self.beta, run)
        self.primal, self.value = np.inf, self.settled
        self.W = self.settled.astype(np.float32)
        if initial_dual is not None:
            self.rivals = problem.rivals_of(self.settled)

    def solve(self, tolerance: float, max_epochs: int, max_outer: int) -> MarginSolution:
        """The outer loop."""
        started = time.perf_counter()
        trace: list[float] = []
        rounds: list[tuple[float, ...]] = []
        change = 1.0
        for outer in range(1, max_outer + 1):
            goal = tolerance if outer == max_outer else max(tolerance, 0.1 * change)
            inner = self._inner(goal, max_epochs, trace)
            rounds.append(inner)
            gap = (self.primal - inner[-1]) / max(self.primal, 1e-12)
            fresh = self.problem.rivals_of(self.value)
            objective = self.problem.objective(self.value, fresh)
            change = abs(objective - self.primal) / max(objective, 1e-12)
            done = gap <= tolerance and change <= tolerance
            if done or outer == max_outer or self.epochs >= max_epochs or gap > goal:
                break
            self.rivals = fresh
        stalled = gap > goal and self.epochs < max_epochs
        status = Status.CONVERGED if done else Status.STALLED if stalled else Status.MAX_ITERATIONS
        return MarginSolution(
            value=self.value,
            dual=np.column_stack([self.alpha, self.beta]),
            objective=self.primal,
            dual_objective=inner[-1],
            status=status,
            iterations=self.epochs,
            seconds=time.perf_counter() - started,
            trace=tuple(trace),
            rivals=self.rivals,
            rounds=tuple(rounds),
            change=change,
        )

    def _inner(self, goal: float, max_epochs: int, trace: list[float]) -> tuple[float, ...]:
        """Solve the problem for the current M to the relative gap ``goal``.

        Returns D_M after each certificate.
        """
        self.primal, self.value = np.inf, self.settled
        bounds = [self._certify(self.settled)]
        idle = 0
        while True:
            gap = self.primal - bounds[-1]
            trace.append(self.primal)
            self.run.report(STAGE, self.epochs, max_epochs, self.primal, gap)
            if gap <= goal * max(self.primal, 1e-12) or self.epochs >= max_epochs or idle >= _IDLE_ROUNDS:
                return tuple(bounds)
            self._descend()
            self.settled = self.problem.weights_of(self.alpha, self.beta, self.run)
            bounds.append(self._certify(self.settled))
            idle = idle + 1 if bounds[-1] - bounds[-2] <= 1e-15 * abs(bounds[-1]) else 0

    def _descend(self) -> None:
        """Epochs over the active rows, until their work equals one pass over all rows and classes."""
        problem = self.problem
        budget = problem.features.shape[0] * (problem.n_classes + 1)
        active = np.flatnonzero((self.counts >= 0) & (self.norms > 0.0))
        for epoch in range(_EPOCHS_PER_ROUND):
            self.rng.shuffle(active)
            per_row = entries_per_row(problem.features) * (1.0 + float(self.counts[active].mean()))
            size = max(1, int(_BLOCK_ENTRIES / per_row))
            for at in range(0, len(active), size):
                self.run.check_cancel()
                budget -= self._sweep(active[at : at + size])
            self.epochs += 1
            if not len(active) or (budget <= 0 and epoch >= 2):
                break

    def _sweep(self, order: NDArray[np.int64]) -> int:
        problem = self.problem
        return margin_sweep(
            self.rows,
            self.labels,
            problem.weight,
            problem.band,
            problem.excess,
            self.rivals,
            self.norms,
            order,
            self.classes,
            self.counts,
            self.slack,
            self.alpha,
            self.beta,
            self.W,
        )

    def _certify(self, W: FloatArray) -> float:
        """Compute D_M; update the best primal point, the active set and the precision of the next round."""
        problem = self.problem
        losses, worst, scale = 0.0, 0.0, 1.0
        best = np.empty(len(self.labels))
        for block in row_blocks(problem.features):
            self.run.check_cancel()
            lost, violation, size = margin_terms(
                rows_of(problem.features, block) @ W.T,
                self.labels[block],
                problem.weight,
                problem.band,
                problem.excess,
                self.rivals[block],
                self.slack,
                self.alpha[block],
                self.beta[block],
                best[block],
                self.classes[block],
                self.counts[block],
            )
            losses, worst, scale = losses + lost, max(worst, violation), max(scale, size)
        self.slack = _SLACK_SHARE * worst
        primal = 0.5 * float(np.vdot(W, W)) + losses
        if primal < self.primal:
            self.primal, self.value = primal, W
        self.W = W.astype(np.float32 if worst > _SINGLE_RESOLUTION * scale else np.float64)
        return problem.dual_objective(self.alpha, self.beta, self.rivals, W)

    def _start(self, initial_dual: FloatArray | None) -> tuple[FloatArray, FloatArray]:
        """α and β: zeros, or ``initial_dual`` made feasible. Raises InvalidProblem."""
        problem = self.problem
        n, K = problem.features.shape[0], problem.n_classes
        if initial_dual is None:
            dual = np.zeros((n, K + 1))
        else:
            dual = np.array(initial_dual, dtype=np.float64)
            if dual.shape != (n, K + 1) or not np.isfinite(dual).all():
                message = f"initial_dual must be finite, of shape ({n}, {K + 1}); its shape is {dual.shape}"
                raise InvalidProblem(Fault("initial_dual", "wrong_shape", message))
        alpha, beta = np.minimum(dual[:, :K], 0.0), np.maximum(dual[:, K], 0.0)
        own = self.labels
        every = np.arange(n)
        # The loss of an empty row is the same for every W; its α does not enter W.
        empty = self.norms == 0.0
        alpha[empty], beta[empty] = 0.0, 0.0
        alpha[every[empty], (own[empty] + 1) % K] = -problem.weight * (1.0 - problem.band)
        alpha[every, own] = 0.0
        alpha[every, own] = -alpha.sum(axis=1)
        return alpha, beta
