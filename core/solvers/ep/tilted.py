"""The probit likelihood with uncertain noise under a Gaussian: Eq. 12 of Hernández-Lobato et al. (NIPS 2014).

    Z = ∫ Φ(y m/√(v + exp g)) N(g | m_g, v_g) dg

by Gauss–Hermite quadrature, and the derivatives of log Z with respect to m, v, m_g and v_g: five quadratures
per row. All are derivatives of the same quadrature sum, so a fixed point of expectation propagation is a
stationary point of its evidence. exp g is a variance, as in Eq. 7.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from scipy.special import log_ndtr, logsumexp

from core.types import FloatArray

_NODES: Final = 32
_LARGEST: Final = 300.0
"""Limit of |g|: beyond it the result does not change, and the exponential would overflow."""
_LOG_ROOT_2PI: Final = 0.5 * np.log(2.0 * np.pi)


def quadrature(nodes: int = _NODES) -> tuple[FloatArray, FloatArray]:
    """Nodes ξ and logarithms of the weights of ∫ h(ξ) N(ξ | 0, 1) dξ, both (q,)."""
    points, weights = np.polynomial.hermite_e.hermegauss(nodes)
    return points, np.log(weights / weights.sum())


_POINTS, _LOG_WEIGHTS = quadrature()


@dataclass(frozen=True, slots=True, eq=False)
class Tilted:
    """log Z and its derivatives, each (n,); the last two are 0 if the noise is known."""

    log_z: FloatArray
    mean: FloatArray
    variance: FloatArray
    noise_mean: FloatArray
    noise_variance: FloatArray


def known_noise(margin: FloatArray, variance: FloatArray, log_noise: float) -> Tilted:
    """log Z = log Φ(y m/√(v + exp g)) and its derivatives with respect to y m and v, for one g."""
    total = variance + np.exp(log_noise)
    z = margin / np.sqrt(total)
    log_z = log_ndtr(z)
    slope = np.exp(-0.5 * z**2 - _LOG_ROOT_2PI - log_z)
    of_total = -0.5 * slope * z / total
    return Tilted(log_z, slope / np.sqrt(total), of_total, of_total * np.exp(log_noise), np.zeros_like(z))


def uncertain_noise(
    margin: FloatArray, variance: FloatArray, noise_mean: FloatArray, noise_variance: FloatArray
) -> Tilted:
    """log Z and its derivatives with respect to y m, v, m_g and v_g; all (n,)."""
    spread = np.sqrt(noise_variance)[:, None]
    noise = np.exp(np.clip(noise_mean[:, None] + spread * _POINTS, -_LARGEST, _LARGEST))
    total = variance[:, None] + noise
    z = margin[:, None] / np.sqrt(total)
    log_phi = log_ndtr(z)
    logs = log_phi + _LOG_WEIGHTS
    log_z = logsumexp(logs, axis=1)
    # One exponential gives both the share of a node in Z and its φ/Φ.
    slope = np.exp(_LOG_WEIGHTS - 0.5 * z**2 - _LOG_ROOT_2PI - log_z[:, None])
    of_total = -0.5 * slope * z / total
    of_noise = of_total * noise
    return Tilted(
        log_z,
        (slope / np.sqrt(total)).sum(axis=1),
        of_total.sum(axis=1),
        of_noise.sum(axis=1),
        of_noise @ _POINTS / (2.0 * spread[:, 0]),
    )
