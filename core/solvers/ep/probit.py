"""Expectation propagation for the likelihood Φ(y f/√exp(g)): GPC+, and GPC if g is one known number.

f has a Gaussian process prior with constant mean c, g one with constant mean m_g that is independent of f
(Hernández-Lobato et al., Mind the Nuisance, NIPS 2014, Eq. 7 to 12). The posterior is approximated by a
product of two Gaussians. All sites are updated at once, with damping; a fixed point is a stationary point of
the evidence, which need not be its only one. With g known the fixed point is that of Algorithm 3.5 of
Rasmussen and Williams, Gaussian Processes for Machine Learning.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from core.run import Run
from core.solvers.ep.process import Cavity, Posterior, Prior, Sites
from core.solvers.ep.tilted import Tilted, known_noise, uncertain_noise
from core.solvers.solution import Status
from core.types import BoolArray, FloatArray

_FIRST_STEP: Final = 0.9
_LEAST_STEP: Final = 1e-3


@dataclass(frozen=True, slots=True, eq=False)
class ProbitModel:
    """Rows with labels, and the priors. signs: y = ±1, (n,). mean: c.

    latent: prior of f − c. noise: prior of g − m_g; None: g = m_g everywhere. noise_mean: m_g, the logarithm
    of a variance.
    """

    signs: FloatArray
    latent: Prior
    mean: float
    noise_mean: float
    noise: Prior | None = None

    def flat(self) -> Factors:
        """Initial sites."""
        n = len(self.signs)
        return Factors(Sites.flat(n), None if self.noise is None else Sites.flat(n))


@dataclass(frozen=True, slots=True, eq=False)
class Factors:
    """The sites of both processes; ``noise`` is None if g is known."""

    latent: Sites
    noise: Sites | None

    def towards(self, other: Factors, share: float) -> Factors:
        """The factors at ``share`` of the way to ``other``."""
        noise = None
        if self.noise is not None and other.noise is not None:
            noise = self.noise.towards(other.noise, share)
        return Factors(self.latent.towards(other.latent, share), noise)


@dataclass(frozen=True, slots=True, eq=False)
class Approximation:
    """The result of expectation propagation.

    latent, noise: posteriors of f − c and g − m_g. factors: their sites, a start for a similar model.
    cavity: of the latent process. log_evidence: log Z; ``mean_slope`` and ``noise_slope`` are its derivatives
    with respect to c and m_g. change: largest change of a site in the last sweep, in posterior standard
    deviations. sweeps: number of updates of all sites.
    """

    latent: Posterior
    noise: Posterior | None
    factors: Factors
    cavity: Cavity
    log_evidence: float
    mean_slope: float
    noise_slope: float
    change: float
    sweeps: int
    status: Status


def propagate(
    model: ProbitModel,
    *,
    tolerance: float = 1e-6,
    max_sweeps: int = 500,
    start: Factors | None = None,
    run: Run = Run(),
) -> Approximation:
    """Update all sites until none changes by more than ``tolerance`` posterior standard deviations.

    The step towards the new sites is shortened when the change grows or the posterior would be improper. A
    site whose cavity is improper keeps its value in this sweep.
    Status: CONVERGED; MAX_ITERATIONS; STALLED if no step leads to a proper posterior in float64. Raises
    Cancelled.
    """
    state = _State.of(model, start)
    step, before, status, sweeps = _FIRST_STEP, np.inf, Status.MAX_ITERATIONS, 0
    while sweeps < max_sweeps:
        run.check_cancel()
        change = state.change
        if not change > tolerance:
            status = Status.CONVERGED if change <= tolerance else Status.STALLED
            break
        step = max(0.6 * step, 0.05) if change > before else min(1.02 * step, 1.0)
        before = change
        following = _proper(state, step)
        if following is None:
            status = Status.STALLED
            break
        state, sweeps = following, sweeps + 1
    return state.result(sweeps, status)


def _proper(state: _State, step: float) -> _State | None:
    """The state after a step, which is halved while the posterior would be improper; None if none works."""
    while step >= _LEAST_STEP:
        try:
            return _State.of(state.model, state.factors.towards(state.wanted, step))
        except np.linalg.LinAlgError:
            step *= 0.5
    return None


@dataclass(frozen=True, slots=True, eq=False)
class _State:
    """Posteriors for given sites, and the target sites of the next update."""

    model: ProbitModel
    factors: Factors
    latent: Posterior
    noise: Posterior | None
    cavity: Cavity
    noise_cavity: Cavity | None
    tilted: Tilted
    wanted: Factors

    @classmethod
    def of(cls, model: ProbitModel, factors: Factors | None) -> _State:
        factors = model.flat() if factors is None else factors
        latent = model.latent.condition(factors.latent)
        cavity = latent.cavity()
        margin = model.signs * (cavity.mean + model.mean)
        if model.noise is None or factors.noise is None:
            tilted = known_noise(margin, cavity.variance, model.noise_mean)
            wanted = Factors(_update(model.signs, cavity, tilted, factors.latent), None)
            return cls(model, factors, latent, None, cavity, None, tilted, wanted)
        noise = model.noise.condition(factors.noise)
        of_noise = noise.cavity()
        tilted = uncertain_noise(margin, cavity.variance, of_noise.mean + model.noise_mean, of_noise.variance)
        proper = cavity.proper & of_noise.proper
        curvature = tilted.noise_mean**2 - 2.0 * tilted.noise_variance
        wanted = Factors(
            _kept(proper, _update(model.signs, cavity, tilted, factors.latent), factors.latent),
            _kept(proper, of_noise.match(tilted.noise_mean, curvature), factors.noise),
        )
        return cls(model, factors, latent, noise, cavity, of_noise, tilted, wanted)

    @property
    def change(self) -> float:
        """Largest distance of a site from its target, in posterior standard deviations."""
        largest = _distance(self.factors.latent, self.wanted.latent, self.latent)
        if self.noise is None or self.factors.noise is None or self.wanted.noise is None:
            return largest
        return max(largest, _distance(self.factors.noise, self.wanted.noise, self.noise))

    def result(self, sweeps: int, status: Status) -> Approximation:
        """The approximation with its evidence."""
        terms = self.tilted.log_z - self.cavity.log_site_integral(self.latent)
        total = self.latent.log_integral
        if self.noise is not None and self.noise_cavity is not None:
            terms = terms - self.noise_cavity.log_site_integral(self.noise)
            total += self.noise.log_integral
        return Approximation(
            latent=self.latent,
            noise=self.noise,
            factors=self.factors,
            cavity=self.cavity,
            log_evidence=float(terms.sum()) + total,
            mean_slope=float(self.model.signs @ self.tilted.mean),
            noise_slope=float(self.tilted.noise_mean.sum()),
            change=self.change,
            sweeps=sweeps,
            status=status,
        )


def _update(signs: FloatArray, cavity: Cavity, tilted: Tilted, old: Sites) -> Sites:
    slope = signs * tilted.mean
    return _kept(cavity.proper, cavity.match(slope, slope**2 - 2.0 * tilted.variance), old)


def _kept(proper: BoolArray, new: Sites, old: Sites) -> Sites:
    """The new sites where the cavity is proper, otherwise the old ones."""
    return Sites(np.where(proper, new.precision, old.precision), np.where(proper, new.shift, old.shift))


def _distance(old: Sites, new: Sites, posterior: Posterior) -> float:
    precision = np.abs(new.precision - old.precision) * posterior.variance
    shift = np.abs(new.shift - old.shift) * np.sqrt(posterior.variance)
    return float(max(precision.max(), shift.max()))
