"""The teacher's problem: the structural SVM with 0/1 loss, Eq. (1) and (2), and its dual."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from core.errors import Fault, InvalidProblem
from core.run import Run
from core.solvers.checks import element_faults, matrix_faults, positive_fault
from core.solvers.products import rmatvec, row_blocks, rows_of
from core.types import FloatArray, IntArray, Matrix


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
            scores = rows_of(self.features, block) @ W.T
            labels = self.labels[block, None]
            own = np.take_along_axis(scores, labels, axis=1)
            margins = scores - own + 1.0
            np.put_along_axis(margins, labels, 0.0, axis=1)
            losses += float(margins.max(axis=1).sum())
        return 0.5 * float(np.sum(W * W)) + self.bound * losses

    def weights_of(self, alpha: FloatArray, run: Run = Run()) -> FloatArray:
        """W(α), shape (K, m), for α (n, K)."""
        return rmatvec(self.features, alpha, run)

    def dual_objective_at(self, alpha: FloatArray, W: FloatArray) -> float:
        """D(α) from α and W(α). As Σ_k α_ik = 0, −Σ_ik e_ik α_ik = Σ_i α_i,y_i."""
        own = np.take_along_axis(alpha, self.labels[:, None], axis=1)
        return float(own.sum() - 0.5 * np.sum(W * W))

    def feasible_start(self, initial_dual: FloatArray | None) -> FloatArray:
        """Initial dual point (n, K): zeros, or ``initial_dual`` made feasible. Raises InvalidProblem."""
        shape = (self.features.shape[0], self.n_classes)
        if initial_dual is None:
            return np.zeros(shape)
        alpha = np.array(initial_dual, dtype=np.float64)
        if alpha.shape != shape or not np.isfinite(alpha).all():
            message = f"initial_dual must be finite, of shape {shape}; its shape is {alpha.shape}"
            raise InvalidProblem(Fault("initial_dual", "wrong_shape", message))
        return self.balanced(alpha, self.labels)

    def balanced(self, alpha: FloatArray, labels: IntArray) -> FloatArray:
        """Make α (a, K) of examples with ``labels`` (a,) feasible, in place.

        α_ik is clipped at 0 for k ≠ y_i, each row is scaled so that −Σ_{k≠y_i} α_ik <= b, and α_i,y_i is set
        to that sum.
        """
        own = labels[:, None]
        np.put_along_axis(alpha, own, 0.0, axis=1)
        np.minimum(alpha, 0.0, out=alpha)
        alpha *= self.bound / np.maximum(-alpha.sum(axis=1, keepdims=True), self.bound)
        np.put_along_axis(alpha, own, np.minimum(-alpha.sum(axis=1, keepdims=True), self.bound), axis=1)
        return alpha


def best_multiple(norm2: float, bound: float, ahead: FloatArray) -> float:
    """The c >= 0 that minimises P(c W) = ½ c² ‖W‖² + b Σ_i [1 + c r_i]_+, exactly.

    norm2: ‖W‖². bound: b. ahead: r (n,), the highest score of a rival minus that of the own class. 1 if W =
    0.
    """
    if norm2 == 0.0:
        return 1.0
    behind = np.sort(ahead[ahead < 0.0])  # 1 + c r_i falls to 0 at c = −1/r_i, in ascending order here
    ends = -1.0 / behind
    # P' right after each end, where the losses of the rows up to it are 0; P' increases.
    left = ahead.sum() - np.concatenate(([0.0], np.cumsum(behind)))
    at = int(np.searchsorted(ends * norm2 + bound * left[1:], 0.0))
    inside = max(0.0, -bound * float(left[at]) / norm2)
    return min(inside, float(ends[at])) if at < len(ends) else inside
