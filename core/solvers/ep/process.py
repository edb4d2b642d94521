"""A Gaussian process at n rows: its prior, and its posterior given one Gaussian site per row.

The prior has mean 0 and covariance V Vᵀ + diag(D); a site is the factor exp(−½ s f² + ν f). With
t = s/(1 + sD), P = I + Vᵀ diag(t) V = C Cᵀ and B = V C⁻ᵀ the posterior has

    mean_i = (v_i·w + D_i ν_i)/(1 + s_i D_i),   w = P⁻¹ Vᵀ (ν/(1 + sD)),
    variance_i = D_i/(1 + s_i D_i) + ‖B_i‖²/(1 + s_i D_i)²,

and nothing is divided by s, which may be 0 or negative. For an exact covariance D = 0, and V is its Cholesky
factor. Cost: O(n m²) for V (n, m).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.linalg import cholesky, solve_triangular

from core.types import BoolArray, FloatArray


@dataclass(frozen=True, slots=True, eq=False)
class Sites:
    """Gaussian factors exp(−½ s f² + ν f), one a row. precision: s (n,). shift: ν (n,)."""

    precision: FloatArray
    shift: FloatArray

    @classmethod
    def flat(cls, n: int) -> Sites:
        """Factors that are 1 everywhere."""
        return cls(np.zeros(n), np.zeros(n))

    def towards(self, other: Sites, share: float) -> Sites:
        """The sites at ``share`` of the way to ``other``."""
        return Sites(
            self.precision + share * (other.precision - self.precision),
            self.shift + share * (other.shift - self.shift),
        )


@dataclass(frozen=True, slots=True, eq=False)
class Prior:
    """Covariance V Vᵀ + diag(D). root: V (n, m). rest: D (n,), at least 0."""

    root: FloatArray
    rest: FloatArray

    @classmethod
    def exact(cls, covariance: FloatArray) -> Prior:
        """The prior with a positive definite covariance (n, n). Raises LinAlgError."""
        return cls(cholesky(covariance, lower=True), np.zeros(len(covariance)))

    def condition(self, sites: Sites) -> Posterior:
        """The posterior given the sites. Raises LinAlgError if they make it improper."""
        V, D = self.root, self.rest
        growth = 1.0 + sites.precision * D
        if not (growth > 0.0).all():
            raise np.linalg.LinAlgError("a site of negative precision outweighs the prior")
        t = sites.precision / growth
        P = V.T @ (t[:, None] * V)
        P.flat[:: len(P) + 1] += 1.0
        C = cholesky(P, lower=True, overwrite_a=True, check_finite=False)
        spread = solve_triangular(C, V.T, lower=True, check_finite=False).T
        weights = spread.T @ (sites.shift / growth)
        mean = (spread @ weights + D * sites.shift) / growth
        variance = D / growth + np.einsum("ij,ij->i", spread, spread) / growth**2
        log_integral = (
            0.5 * float(sites.shift @ mean)
            - float(np.log(np.diag(C)).sum())
            - 0.5 * float(np.log(growth).sum())
        )
        return Posterior(sites, mean, variance, log_integral, t, spread, C, weights)


@dataclass(frozen=True, eq=False)
class Posterior:
    """A prior times its sites.

    mean, variance: of each row, (n,). log_integral: log ∫ prior × sites. precision: t (n,).
    spread: B (n, m). factor: C (m, m), lower. whitened: Cᵀ w (m,).
    """

    sites: Sites
    mean: FloatArray
    variance: FloatArray
    log_integral: float
    precision: FloatArray
    spread: FloatArray
    factor: FloatArray
    whitened: FloatArray

    @cached_property
    def weights(self) -> FloatArray:
        """w, (m,): the posterior mean of the process at any row is its V·w."""
        solved: FloatArray = solve_triangular(self.factor, self.whitened, lower=True, trans="T")
        return solved

    @property
    def pull(self) -> FloatArray:
        """b = K⁻¹ mean, (n,), K the prior covariance."""
        return self.sites.shift - self.sites.precision * self.mean

    def cavity(self) -> Cavity:
        """The posterior without the site of each row, row by row; ``proper`` marks where it is a Gaussian."""
        s, v = self.sites.precision, self.variance
        share = 1.0 - v * s
        proper = share > 1e-10
        safe = np.where(proper, share, 1.0)
        return Cavity((self.mean - v * self.sites.shift) / safe, v / safe, proper)


@dataclass(frozen=True, slots=True, eq=False)
class Cavity:
    """Mean and variance (n,) of each row without its site. proper: whether such a Gaussian exists, (n,)."""

    mean: FloatArray
    variance: FloatArray
    proper: BoolArray

    def log_site_integral(self, posterior: Posterior) -> FloatArray:
        """log ∫ cavity × site of each row, (n,)."""
        ratio = posterior.variance / self.variance
        values: FloatArray = 0.5 * (
            np.log(ratio) + posterior.mean**2 / posterior.variance - self.mean**2 / self.variance
        )
        return values

    def match(self, slope: FloatArray, curvature: FloatArray) -> Sites:
        """The sites that give the moments of the tilted distribution.

        slope: d log Z/dm. curvature: κ = (d log Z/dm)² − 2 d log Z/dv, so that the new variance is
        v(1 − vκ); Rasmussen and Williams, Eq. 3.51 to 3.59, for any factor.
        """
        share = np.maximum(1.0 - self.variance * curvature, 1e-10)
        return Sites(curvature / share, (slope + self.mean * curvature) / share)
