"""Posteriors of Gaussian process classifiers by other ways: Algorithm 3.5, and quadrature over everything."""

from __future__ import annotations

from itertools import product

import numpy as np
from scipy.stats import norm

from core.solvers.ep.probit import ProbitModel, propagate
from core.solvers.ep.process import Prior


def algorithm_difference(seed: int) -> float:
    """Largest relative difference of mean, variances and log evidence to Algorithm 3.5, up to 15 rows."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(2, 16))
    K = covariance(rng.normal(size=(n, 2)), float(np.exp(rng.uniform(-1, 2))))
    y = random_signs(rng, n)
    mean, variance, log_z = algorithm_3_5(K, y)
    found = propagate(ProbitModel(y, Prior.exact(K), 0.0, 0.0), tolerance=1e-13)
    return max(
        float(np.abs(found.latent.mean - mean).max() / np.abs(mean).max()),
        float(np.abs(found.latent.variance / variance - 1.0).max()),
        float(abs(found.log_evidence / log_z - 1.0)),
    )


def moments_difference(seed: int, latent: float, noise: float) -> float:
    """Largest difference of means and variances of f and g to quadrature, 1 to 3 rows.

    latent, noise: the largest prior variances of f and of g; with 0, g is known.
    """
    rng = np.random.default_rng(seed)
    n = 1 + seed % 3
    model = ProbitModel(
        random_signs(rng, n),
        Prior.exact(covariance(rng.normal(size=(n, 2)), float(rng.uniform(0.2, 1.0)) * latent)),
        float(rng.uniform(-0.3, 0.3)),
        float(rng.uniform(-0.5, 0.7)),
        Prior.exact(covariance(rng.normal(size=(n, 2)), float(rng.uniform(0.2, 1.0)) * noise))
        if noise
        else None,
    )
    _, moments = by_quadrature(model, {1: 40, 2: 24, 3: 10}[n])
    found = propagate(model, tolerance=1e-10)
    ours = [found.latent.mean + model.mean, found.latent.variance]
    if found.noise is not None:
        ours += [found.noise.mean + model.noise_mean, found.noise.variance]
    return max(float(np.abs(one - other).max()) for one, other in zip(ours, moments, strict=False))


def by_quadrature(model: ProbitModel, nodes: int) -> tuple[float, list[np.ndarray]]:
    """Evidence, and mean and variance of f and g, by Gauss–Hermite quadrature over both processes."""
    n = len(model.signs)
    points, weights = np.polynomial.hermite_e.hermegauss(nodes)
    weights = weights / weights.sum()
    grid = np.array(list(product(points, repeat=n)))
    mass = np.prod(np.array(list(product(weights, repeat=n))), axis=1)
    f = model.mean + grid @ model.latent.root.T
    g = np.full((1, n), model.noise_mean)
    mass_g = np.ones(1)
    if model.noise is not None:
        g, mass_g = model.noise_mean + grid @ model.noise.root.T, mass
    likelihood = np.ones((len(f), len(g)))
    for i in range(n):
        likelihood *= norm.cdf(model.signs[i] * f[:, i, None] / np.exp(0.5 * g[:, i]))
    joint = mass[:, None] * likelihood * mass_g
    total = joint.sum()
    moments = []
    for values, weight in ((f, joint.sum(axis=1) / total), (g, joint.sum(axis=0) / total)):
        mean = weight @ values
        moments += [mean, weight @ (values - mean) ** 2]
    return float(total), moments


def algorithm_3_5(K: np.ndarray, y: np.ndarray, sweeps: int = 2000) -> tuple[np.ndarray, np.ndarray, float]:
    """Mean, variances and log Z of sequential expectation propagation as Rasmussen and Williams print it.

    log Z by their Eq. 3.65.
    """
    n = len(y)
    precision, shift = np.zeros(n), np.zeros(n)
    Sigma, mu = K.copy(), np.zeros(n)
    for _ in range(sweeps):
        before = precision.copy(), shift.copy()
        for i in range(n):
            tau = 1.0 / Sigma[i, i] - precision[i]
            nu = mu[i] / Sigma[i, i] - shift[i]
            m, v = nu / tau, 1.0 / tau
            z = y[i] * m / np.sqrt(1.0 + v)
            ratio = np.exp(norm.logpdf(z) - norm.logcdf(z))
            mean = m + y[i] * v * ratio / np.sqrt(1.0 + v)
            variance = v - v**2 * ratio / (1.0 + v) * (z + ratio)
            change = 1.0 / variance - tau - precision[i]
            precision[i] += change
            shift[i] = mean / variance - nu
            column = Sigma[:, i].copy()
            Sigma -= np.outer(column, column) * change / (1.0 + change * column[i])
            mu = Sigma @ shift
        root = np.sqrt(precision)
        V = np.linalg.solve(np.linalg.cholesky(np.eye(n) + root[:, None] * K * root), root[:, None] * K)
        Sigma = K - V.T @ V
        mu = Sigma @ shift
        if np.abs(precision - before[0]).max() + np.abs(shift - before[1]).max() < 1e-13:
            break
    tau = 1.0 / np.diag(Sigma) - precision
    m, v = (mu / np.diag(Sigma) - shift) / tau, 1.0 / tau
    site_mean, site_variance = shift / precision, 1.0 / precision
    total = K + np.diag(site_variance)
    log_z = (
        -0.5 * np.linalg.slogdet(total)[1]
        - 0.5 * site_mean @ np.linalg.solve(total, site_mean)
        + norm.logcdf(y * m / np.sqrt(1.0 + v)).sum()
        + 0.5 * np.log(v + site_variance).sum()
        + ((m - site_mean) ** 2 / (2.0 * (v + site_variance))).sum()
    )
    return mu, np.diag(Sigma), float(log_z)


def covariance(rows: np.ndarray, amplitude: float, gamma: float = 0.5) -> np.ndarray:
    """An RBF kernel matrix with a small ridge."""
    squares = ((rows[:, None] - rows) ** 2).sum(axis=2)
    return np.asarray(amplitude * np.exp(-gamma * squares) + 1e-8 * amplitude * np.eye(len(rows)))


def random_signs(rng: np.random.Generator, n: int) -> np.ndarray:
    """±1 at random, (n,)."""
    return np.where(rng.random(n) < 0.5, -1.0, 1.0)
