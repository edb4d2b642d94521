"""A squared exponential covariance through landmarks, and the gradient of the evidence in its parameters.

    k(x, x') = a exp(−γ‖x − x'‖²)   Q = K_nm (K_mm + ε a I)⁻¹ K_mn   covariance of the rows: Q + diag(k − Q)

This is the fully independent training conditional of Snelson and Ghahramani (NIPS 2005): the variances are
exact, and with the rows themselves as landmarks so is the covariance, up to the jitter ε.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cholesky, solve_triangular

from core.solvers.ep.process import Posterior, Prior
from core.types import FloatArray, IntArray

Floats = NDArray[np.float64]

JITTER: Final = 1e-6
"""ε: share of the amplitude that is added to the variances of the landmarks, for their Cholesky factor."""


@dataclass(frozen=True, slots=True, eq=False)
class Distances:
    """Squared distances of the rows to the landmarks (n, m), and of the landmarks to each other (m, m)."""

    rows: FloatArray
    landmarks: FloatArray

    @classmethod
    def of(cls, rows: FloatArray, landmarks: FloatArray) -> Distances:
        """The distances of rows (n, d) and landmarks (m, d)."""
        return cls(squared_distances(rows, landmarks), squared_distances(landmarks, landmarks))

    def take(self, rows: IntArray) -> Distances:
        """The distances of some of the rows."""
        return Distances(self.rows[rows], self.landmarks)


def squared_distances(A: FloatArray, B: FloatArray) -> FloatArray:
    """‖a − b‖² of rows (n, d) and (m, d), shape (n, m), never below 0."""
    values = -2.0 * (A @ B.T)
    values += np.einsum("ij,ij->i", A, A)[:, None]
    values += np.einsum("ij,ij->i", B, B)
    return np.maximum(values, 0.0, out=values)


class LandmarkPrior:
    """The covariance of rows with given distances. log_width: log γ. log_amplitude: log a."""

    def __init__(self, distances: Distances, log_width: float, log_amplitude: float = 0.0) -> None:
        self.amplitude = np.exp(log_amplitude)
        self._exponents = -np.exp(log_width) * distances.rows
        self._own_exponents = -np.exp(log_width) * distances.landmarks
        self._cross = self.amplitude * np.exp(self._exponents)
        self._own = self.amplitude * np.exp(self._own_exponents)
        self._own.flat[:: len(self._own) + 1] += JITTER * self.amplitude
        self.factor: FloatArray = cholesky(self._own, lower=True, check_finite=False)

    @cached_property
    def prior(self) -> Prior:
        """The covariance as V Vᵀ + diag(D), V = K_nm L⁻ᵀ with L Lᵀ = K_mm + ε a I."""
        V = solve_triangular(self.factor, self._cross.T, lower=True, check_finite=False).T
        return Prior(V, np.maximum(self.amplitude - np.einsum("ij,ij->i", V, V), 0.0))

    def gradient(self, posterior: Posterior) -> tuple[float, float]:
        """Derivatives of the evidence with respect to log γ and log a at a fixed point of the propagation.

        There the sites can be treated as constant, and d log Z = ½ tr((b bᵀ − R) dK) with b = K⁻¹ mean and
        R = (K + S⁻¹)⁻¹ (Rasmussen and Williams, Eq. 5.27).
        """
        b, t, B = posterior.pull, posterior.precision, posterior.spread
        weighed = t[:, None] * B
        A = solve_triangular(self.factor, self.prior.root.T, lower=True, trans="T", check_finite=False).T
        diagonal = 0.5 * (b**2 - t + np.einsum("ij,ij->i", weighed, weighed))
        H = 0.5 * (np.outer(b, b @ A) - t[:, None] * A + weighed @ (weighed.T @ A))
        H -= diagonal[:, None] * A
        J = A.T @ H
        cross, own = 2.0 * H * self._cross, J * self._own
        by_width = float(np.vdot(cross, self._exponents) - np.vdot(own, self._own_exponents))
        by_amplitude = float(cross.sum() - own.sum() + self.amplitude * diagonal.sum())
        return by_width, by_amplitude

    def predictor(self, posterior: Posterior) -> tuple[Floats, Floats]:
        """Coefficients α (m,) and factor R (r, m): mean α·k(x), variance a − ‖R k(x)‖² at any row.

        k(x): covariances with the landmarks. R omits directions in which the rows give no information.
        """
        L = self.factor
        coef = solve_triangular(L, posterior.weights, lower=True, trans="T", check_finite=False)
        V = self.prior.root
        values, vectors = np.linalg.eigh(V.T @ (posterior.precision[:, None] * V))
        kept = values > 1e-12 * max(values[-1], 1.0)
        known = vectors[:, kept] * np.sqrt(values[kept] / (1.0 + values[kept]))
        factor = solve_triangular(L, known, lower=True, trans="T", check_finite=False).T
        return np.asarray(coef, dtype=np.float64), np.ascontiguousarray(factor, dtype=np.float64)
