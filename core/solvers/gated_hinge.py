"""The problem of every student with a hinge loss: Eq. (12) and its dual, Eq. (13)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np

from core.errors import Fault, InvalidProblem
from core.run import Run
from core.solvers.checks import element_faults, matrix_faults, positive_fault, vector_faults
from core.solvers.products import matvec, rmatvec
from core.types import FloatArray, Matrix


@dataclass(frozen=True, slots=True, eq=False)
class GatedHingeProblem:
    """Gated SVM in its general form, with n examples φ_i (m,).

    primal   P(θ) = ½‖θ‖² + Σ_i U_i [u_i]_+,   u_i = t_i + z_i θ·φ_i
    dual     D(α) = Σ_i α_i t_i − ½‖θ(α)‖²,    θ(α) = −Σ_i α_i z_i φ_i,   0 ≤ α_i ≤ U_i
    with D(α) ≤ min P for every feasible α.

    features: Φ, shape (n, m), float32 or float64, dense or CSR.
    signs: z, shape (n,), +1 for the target class and −1 for the rest.
    targets: t, shape (n,), t_i = ε − z_i S_i for a gate S.
    bounds: U, shape (n,), U_i = C / (n d_i) > 0.

    Raises InvalidProblem when shapes do not fit or values are not finite.
    """

    features: Matrix
    signs: FloatArray
    targets: FloatArray
    bounds: FloatArray

    def __post_init__(self) -> None:
        for name in ("signs", "targets", "bounds"):
            object.__setattr__(self, name, np.ascontiguousarray(getattr(self, name), dtype=np.float64))
        faults = matrix_faults(self.features)
        if not faults:
            n = self.features.shape[0]
            for name in ("signs", "targets", "bounds"):
                faults += vector_faults(name, getattr(self, name), n)
        if not faults:
            faults += element_faults("signs", np.abs(self.signs) == 1.0, "out_of_range", "+1 or -1")
            faults += element_faults("bounds", self.bounds > 0, "out_of_range", "greater than 0")
        if faults:
            raise InvalidProblem(*faults)

    @classmethod
    def gated(
        cls,
        features: Matrix,
        signs: FloatArray,
        gate: FloatArray,
        *,
        C: float,
        margin: float,
        difficulty: FloatArray | None = None,
    ) -> Self:
        """gSVM, Eq. (12); without ``difficulty`` (d = 1) gSVM-0, Eq. (8).

        gate: the teacher's scores of the target class, S (n,). difficulty: d (n,), 0 < d. margin: ε ≥ 0.
        """
        faults = positive_fault("C", C)
        if not (np.isfinite(margin) and margin >= 0):
            faults.append(
                Fault("margin", "out_of_range", f"margin must be finite and at least 0, got {margin}")
            )
        n = features.shape[0]
        signs, gate = np.asarray(signs, dtype=np.float64), np.asarray(gate, dtype=np.float64)
        degrees = np.ones(n) if difficulty is None else np.asarray(difficulty, dtype=np.float64)
        faults += vector_faults("signs", signs, n) + vector_faults("gate", gate, n)
        faults += vector_faults("difficulty", degrees, n)
        if not faults:
            faults += element_faults("difficulty", degrees > 0, "out_of_range", "greater than 0")
        if faults:
            raise InvalidProblem(*faults)
        return cls(features, signs, margin - signs * gate, C / (n * degrees))

    @classmethod
    def svm(
        cls, features: Matrix, signs: FloatArray, *, C: float, difficulty: FloatArray | None = None
    ) -> Self:
        """The plain SVM: S = 0, ε = 1, and d = 1 if not given. The usual weight vector is then −θ."""
        gate = np.zeros(features.shape[0])
        return cls.gated(features, signs, gate, C=C, margin=1.0, difficulty=difficulty)

    @property
    def shape(self) -> tuple[int, int]:
        """(n, m)."""
        n, m = self.features.shape
        return n, m

    def slacks(self, theta: FloatArray, run: Run = Run()) -> FloatArray:
        """u = t + z ∘ Φθ, shape (n,)."""
        return self.targets + self.signs * matvec(self.features, theta, run)

    def objective_at(self, theta: FloatArray, slacks: FloatArray) -> float:
        """P(θ) from θ and its slacks u."""
        return float(0.5 * (theta @ theta) + self.bounds @ np.maximum(slacks, 0.0))

    def primal_objective(self, theta: FloatArray) -> float:
        """P(θ)."""
        return self.objective_at(theta, self.slacks(theta))

    def theta_of(self, alpha: FloatArray, run: Run = Run()) -> FloatArray:
        """θ(α) = −Σ α_i z_i φ_i, shape (m,)."""
        return rmatvec(self.features, -self.signs * alpha, run)

    def dual_objective(self, alpha: FloatArray) -> tuple[float, FloatArray]:
        """D(α) and θ(α). D is a lower bound of the optimum only if ``alpha`` (n,) is feasible."""
        theta = self.theta_of(alpha)
        return self.dual_objective_at(alpha, theta), theta

    def dual_objective_at(self, alpha: FloatArray, theta: FloatArray) -> float:
        """D(α) from α and θ(α)."""
        return float(alpha @ self.targets - 0.5 * (theta @ theta))

    def feasible_start(self, initial_dual: FloatArray | None) -> FloatArray:
        """Initial dual point (n,): zeros, or ``initial_dual`` clipped to [0, U]. Raises InvalidProblem."""
        n = self.shape[0]
        if initial_dual is None:
            return np.zeros(n)
        faults = vector_faults("initial_dual", np.asarray(initial_dual), n)
        if faults:
            raise InvalidProblem(*faults)
        return np.clip(np.asarray(initial_dual, dtype=np.float64), 0.0, self.bounds)
