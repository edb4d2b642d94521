"""The structural SVM with 0/1 loss, Eq. (1) and (2): Crammer and Singer's problem, by dual block descent.

One block is one example's K variables. Its sub-problem is solved exactly by sorting (Keerthi et al. 2008);
examples and classes that sit at their bounds are left out between certificates.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from core.errors import Fault, InvalidProblem
from core.jit import Rows, as_rows, compiled, row_axpy, row_dot, row_norms2
from core.solution import Solution
from core.solvers.checks import element_faults, matrix_faults, positive_fault
from core.solvers.iterate import Certificate, iterate
from core.solvers.products import Poll, combine, entries_per_row, row_blocks, take
from core.solvers.sorted_block import solve_block
from core.types import CancelCheck, FloatArray, IntArray, Matrix, ProgressCallback

_BLOCK_ENTRIES = 2_000_000
_MAX_EPOCHS_PER_ROUND = 20
_SWEEPS_PER_ROUND = 3
_IDLE_ROUNDS = 12


@dataclass(frozen=True, slots=True, eq=False)
class CrammerSingerProblem:
    """Eq. (1) with n examples φ_i (m,), K classes and e_ik = 0 where k = y_i, else 1.

    primal   P(W) = ½‖W‖² + b Σ_i max_k (e_ik + w_k·φ_i − w_{y_i}·φ_i)
    dual     D(α) = −½‖W(α)‖² − Σ_ik e_ik α_ik,   w_k(α) = Σ_i α_ik φ_i,
             Σ_k α_ik = 0,   α_ik ≤ b where k = y_i, else α_ik ≤ 0.

    features: Φ, shape (n, m), float32 or float64, dense or CSR. labels: y, shape (n,), integer codes 0..K−1.
    n_classes: K ≥ 2. bound: b = C/n > 0, the ``C`` of LIBLINEAR and scikit-learn.

    Raises InvalidProblem when shapes do not fit or values are out of range.
    """

    features: Matrix
    labels: IntArray
    n_classes: int
    bound: float

    def __post_init__(self) -> None:
        faults = matrix_faults(self.features) + positive_fault("bound", self.bound)
        if self.n_classes < 2:
            faults.append(
                Fault("n_classes", "out_of_range", f"at least two classes are needed, got {self.n_classes}")
            )
        labels = np.asarray(self.labels)
        if labels.dtype.kind not in "iu":
            faults.append(Fault("labels", "wrong_dtype", f"labels must be integer codes, got {labels.dtype}"))
        elif not faults and labels.shape != (self.features.shape[0],):
            shape = (self.features.shape[0],)
            faults.append(
                Fault("labels", "wrong_shape", f"labels must have shape {shape}, got {labels.shape}")
            )
        if not faults:
            inside = (labels >= 0) & (labels < self.n_classes)
            faults += element_faults("labels", inside, "out_of_range", f"between 0 and {self.n_classes - 1}")
        if faults:
            raise InvalidProblem(*faults)
        object.__setattr__(self, "labels", np.ascontiguousarray(labels, dtype=np.int64))

    def primal_objective(self, W: FloatArray) -> float:
        """P(W) for W (K, m)."""
        losses = 0.0
        for block in row_blocks(self.features):
            scores = take(self.features, block) @ W.T
            labels = self.labels[block, None]
            own = np.take_along_axis(scores, labels, axis=1)
            margins = scores - own + 1.0
            np.put_along_axis(margins, labels, 0.0, axis=1)
            losses += float(margins.max(axis=1).sum())
        return 0.5 * float(np.sum(W * W)) + self.bound * losses

    def weights_of(self, alpha: FloatArray, poll: Poll = lambda: None) -> FloatArray:
        """W(α), shape (K, m), for α (n, K)."""
        return combine(self.features, alpha, poll)

    def dual_objective_at(self, alpha: FloatArray, W: FloatArray) -> float:
        """D(α) when W(α) is known. With Σ_k α_ik = 0, −Σ e_ik α_ik is the sum of the α_i,y_i."""
        own = np.take_along_axis(alpha, self.labels[:, None], axis=1)
        return float(own.sum() - 0.5 * np.sum(W * W))

    def feasible_start(self, initial_dual: FloatArray | None) -> FloatArray:
        """A dual point (n, K) to start from: zeros, or ``initial_dual`` made feasible for this problem.

        The other classes' α are cut at 0, each row is scaled into the bound, and the own class balances it.
        """
        shape = (self.features.shape[0], self.n_classes)
        if initial_dual is None:
            return np.zeros(shape)
        alpha = np.array(initial_dual, dtype=np.float64)
        if alpha.shape != shape or not np.isfinite(alpha).all():
            message = f"initial_dual must be finite, of shape {shape}; its shape is {alpha.shape}"
            raise InvalidProblem(Fault("initial_dual", "wrong_shape", message))
        labels = self.labels[:, None]
        np.put_along_axis(alpha, labels, 0.0, axis=1)
        alpha = np.minimum(alpha, 0.0)
        alpha *= self.bound / np.maximum(-alpha.sum(axis=1, keepdims=True), self.bound)
        np.put_along_axis(alpha, labels, -alpha.sum(axis=1, keepdims=True), axis=1)
        return alpha


def solve_crammer_singer(
    problem: CrammerSingerProblem,
    *,
    tolerance: float = 1e-4,
    max_epochs: int = 2000,
    seed: int = 0,
    initial_dual: FloatArray | None = None,
    progress: ProgressCallback | None = None,
    should_cancel: CancelCheck | None = None,
) -> Solution:
    """Minimise Eq. (1): value W (K, m), dual α (n, K).

    tolerance: relative duality gap at which to stop. max_epochs: limit for passes over the (remaining)
    examples. seed: order of the examples. initial_dual: (n, K), made feasible; the dual of a neighbouring
    problem is a warm start. progress: called after each certificate with stage ``"crammer_singer"``.
    should_cancel: asked every few milliseconds.

    Raises InvalidProblem for arguments out of range and Cancelled when asked to stop.
    """
    return iterate(
        _BlockDescent(problem, seed, initial_dual),
        stage="crammer_singer",
        tolerance=tolerance,
        max_iterations=max_epochs,
        progress=progress,
        should_cancel=should_cancel,
    )


class _BlockDescent:
    """State: α, W(α), and for each example the classes that may still move, packed to the left.

    classes: (n, K) int32, of which row i holds ``counts[i]`` active classes. active: examples with two or
    more. worst: the largest KKT violation at the last certificate; classes at their bound are left out when
    they are further than that from moving.
    """

    def __init__(self, problem: CrammerSingerProblem, seed: int, initial_dual: FloatArray | None) -> None:
        n, K = problem.features.shape[0], problem.n_classes
        self.problem = problem
        self.rng = np.random.default_rng(seed)
        self.rows: Rows = as_rows(problem.features)
        self.labels: NDArray[np.int64] = problem.labels.astype(np.int64, copy=False)
        self.norms = row_norms2(self.rows, n)
        self.dual: FloatArray = problem.feasible_start(initial_dual)
        self._settle_zero_rows()
        self.value = problem.weights_of(self.dual)
        self.classes: NDArray[np.int32] = np.tile(np.arange(K, dtype=np.int32), (n, 1))
        self.counts: NDArray[np.int32] = np.full(n, K, dtype=np.int32)
        self.active: NDArray[np.int64] = np.flatnonzero(self.norms > 0.0)
        self.worst = np.inf
        self.block = max(1, int(_BLOCK_ENTRIES / (entries_per_row(problem.features) * K)))
        self.iterations = 0
        self.best_bound, self.idle = -np.inf, 0

    def _settle_zero_rows(self) -> None:
        """A row without entries has loss 1 whatever W is: own α at the bound, another class's at minus it."""
        empty = np.flatnonzero(self.norms == 0.0)
        labels = self.problem.labels[empty]
        self.dual[empty] = 0.0
        self.dual[empty, labels] = self.problem.bound
        self.dual[empty, (labels + 1) % self.problem.n_classes] = -self.problem.bound

    def advance(self, poll: Poll) -> Certificate:
        """Epochs that together cost a few passes over everything, then the certificate."""
        budget = _SWEEPS_PER_ROUND * self.problem.features.shape[0] * self.problem.n_classes
        for _ in range(_MAX_EPOCHS_PER_ROUND):
            budget -= self._epoch(poll)
            self.iterations += 1
            if budget <= 0 or not len(self.active):
                break
        return self._certify(poll)

    def _epoch(self, poll: Poll) -> int:
        """One pass over the active examples in random order; answers with the row products it took."""
        work = 0
        self.rng.shuffle(self.active)
        for start in range(0, len(self.active), self.block):
            poll()
            work += _sweep(
                self.rows,
                self.labels,
                self.problem.bound,
                self.norms,
                self.active[start : start + self.block],
                self.classes,
                self.counts,
                self.worst,
                self.dual,
                self.value,
            )
        self.active = self.active[self.counts[self.active] > 1]
        return work

    def _certify(self, poll: Poll) -> Certificate:
        problem = self.problem
        # W has gathered the rounding of every step since the last certificate; the bound must not.
        self.value = problem.weights_of(self.dual, poll)
        losses, worst = 0.0, 0.0
        for block in row_blocks(problem.features):
            poll()
            block_losses, block_worst = _screen(
                take(problem.features, block) @ self.value.T,
                self.labels[block],
                problem.bound,
                self.worst,
                self.dual[block],
                self.classes[block],
                self.counts[block],
            )
            losses += block_losses
            worst = max(worst, block_worst)
        self.worst = worst
        self.active = np.flatnonzero((self.counts > 1) & (self.norms > 0.0))
        objective = 0.5 * float(np.sum(self.value**2)) + problem.bound * losses
        bound = problem.dual_objective_at(self.dual, self.value)
        self.idle = self.idle + 1 if bound - self.best_bound <= 1e-15 * abs(bound) else 0
        self.best_bound = max(self.best_bound, bound)
        return Certificate(objective, bound, stalled=self.idle >= _IDLE_ROUNDS)


@compiled
def _screen(
    scores: FloatArray,
    labels: NDArray[np.int64],
    bound: float,
    slack: float,
    alpha: FloatArray,
    classes: NDArray[np.int32],
    counts: NDArray[np.int32],
) -> tuple[float, float]:
    """Sum of the losses and largest KKT violation of a block of rows; refills its lists of active classes.

    With g_k = w_k·φ + e_k, an example is optimal when no g_k exceeds the smallest g_j of the classes below
    their bound. A class at its bound is active unless its g is more than ``slack`` below that.
    """
    losses = 0.0
    worst = 0.0
    for i in range(scores.shape[0]):
        own = labels[i]
        top = -np.inf
        low = np.inf
        for k in range(scores.shape[1]):
            upper = bound if k == own else 0.0
            scores[i, k] += 0.0 if k == own else 1.0
            top = max(top, scores[i, k])
            if alpha[i, k] < upper:
                low = min(low, scores[i, k])
        losses += top - scores[i, own]
        worst = max(worst, top - low)
        count = 0
        for k in range(scores.shape[1]):
            upper = bound if k == own else 0.0
            if alpha[i, k] < upper or scores[i, k] >= low - slack:
                classes[i, count] = k
                count += 1
        counts[i] = count
    return losses, worst


@compiled
def _sweep(
    rows: Rows,
    labels: NDArray[np.int64],
    bound: float,
    norms: FloatArray,
    order: NDArray[np.int64],
    classes: NDArray[np.int32],
    counts: NDArray[np.int32],
    slack: float,
    alpha: FloatArray,
    W: FloatArray,
) -> int:
    """Exact block steps for the examples in ``order``, keeping W = W(α); drops classes like ``_screen``."""
    K = alpha.shape[1]
    g, linear, upper, scratch, x = np.empty(K), np.empty(K), np.empty(K), np.empty(K), np.empty(K)
    work = 0
    for i in order:
        count = counts[i]
        work += count
        top = -np.inf
        low = np.inf
        for p in range(count):
            k = classes[i, p]
            own = k == labels[i]
            upper[p] = bound if own else 0.0
            g[p] = row_dot(rows, i, W[k]) + (0.0 if own else 1.0)
            top = max(top, g[p])
            if alpha[i, k] < upper[p]:
                low = min(low, g[p])
        kept = 0
        for p in range(count):
            k = classes[i, p]
            if alpha[i, k] < upper[p] or g[p] >= low - slack:
                classes[i, kept] = k
                linear[kept] = g[p] - norms[i] * alpha[i, k]
                upper[kept] = upper[p]
                kept += 1
        counts[i] = kept
        if kept < 2 or top <= low:
            continue
        solve_block(norms[i], linear, upper, bound, kept, scratch, x)
        for p in range(kept):
            k = classes[i, p]
            step = x[p] - alpha[i, k]
            if step != 0.0:
                alpha[i, k] = x[p]
                row_axpy(rows, i, step, W[k])
                work += 1
    return work
