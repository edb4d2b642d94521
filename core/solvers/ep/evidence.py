"""Type-II maximum likelihood: widths, mean and noise of GPC and GPC+ by L-BFGS on the evidence.

The amplitude of the latent process is 1; any other amplitude is the same model with other noise and mean. So
GPC has the parameters (log γ, c, m_g), and GPC+ also (log γ_g, log a_g) of the noise process. The evidence is
not convex; GPC+ starts from the optimum of GPC.

The evidence of GPC+ is that of the labels given x and x*, while a query has x only. If x* tells the class, a
model that takes every row of a rare class for noise has much evidence but is useless. So GPC+ replaces GPC
only if it gives the labels a higher probability by x alone, for each row by the posterior without the row's
own site.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import log
from typing import Final

import numpy as np
from scipy.optimize import minimize, minimize_scalar
from scipy.special import log_ndtr

from core.run import Run
from core.solvers.ep.landmark_prior import Distances, LandmarkPrior
from core.solvers.ep.probit import Approximation, Factors, ProbitModel, propagate
from core.types import FloatArray, IntArray

_FACTOR: Final = np.log(1e3)
"""Widths stay within this factor of the initial ones."""
_MEANS: Final = (-5.0, 5.0)
_NOISES: Final = (np.log(1e-3), np.log(1e3))
_LEAST_AMPLITUDE: Final = np.log(1e-3)
_FIRST_AMPLITUDE: Final = 0.5
AMPLITUDES: Final = (1.0, 10.0)
"""Upper bounds of a_g: noise of similar size everywhere and, if that helps, of very different sizes."""


@dataclass(frozen=True, slots=True)
class NoiseKernel:
    """log γ_g and log a_g."""

    log_width: float
    log_amplitude: float


@dataclass(frozen=True, slots=True)
class Hyperparameters:
    """log γ of the latent process, its mean c, m_g, and the kernel of g; None if g is constant."""

    log_width: float
    mean: float = 0.0
    noise_mean: float = 0.0
    noise: NoiseKernel | None = None

    def vector(self) -> FloatArray:
        """The parameters in the form that L-BFGS takes, (3,) or (5,)."""
        values = [self.log_width, self.mean, self.noise_mean]
        if self.noise is not None:
            values += [self.noise.log_width, self.noise.log_amplitude]
        return np.array(values)

    @classmethod
    def of(cls, vector: FloatArray) -> Hyperparameters:
        """The parameters made from ``vector``."""
        width, mean, noise_mean, *noise = (float(value) for value in vector)
        return cls(width, mean, noise_mean, NoiseKernel(*noise) if noise else None)

    def bounds(self, largest_amplitude: float) -> list[tuple[float, float]]:
        """Bounds of each number, around this start."""
        found = [_around(self.log_width), _MEANS, _NOISES]
        if self.noise is not None:
            found += [_around(self.noise.log_width), (_LEAST_AMPLITUDE, log(largest_amplitude))]
        return found


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """Training rows. signs: y = ±1, (n,). latent: distances of x. noise: distances of x*, or None."""

    signs: FloatArray
    latent: Distances
    noise: Distances | None = None

    def take(self, rows: IntArray) -> Rows:
        """Some of the rows, with the same landmarks."""
        noise = None if self.noise is None else self.noise.take(rows)
        return Rows(self.signs[rows], self.latent.take(rows), noise)

    def without_noise(self) -> Rows:
        """The same rows for a constant noise."""
        return replace(self, noise=None)


@dataclass(frozen=True, slots=True, eq=False)
class Fitted:
    """A model with its approximate posterior. latent, noise: the covariances."""

    values: Hyperparameters
    latent: LandmarkPrior
    noise: LandmarkPrior | None
    model: ProbitModel
    posterior: Approximation

    @classmethod
    def at(
        cls,
        rows: Rows,
        values: Hyperparameters,
        *,
        tolerance: float = 1e-6,
        start: Factors | None = None,
        run: Run = Run(),
    ) -> Fitted:
        """The posterior for given hyper-parameters. Raises Cancelled."""
        latent = LandmarkPrior(rows.latent, values.log_width)
        noise = None
        if values.noise is not None and rows.noise is not None:
            noise = LandmarkPrior(rows.noise, values.noise.log_width, values.noise.log_amplitude)
        model = ProbitModel(
            rows.signs, latent.prior, values.mean, values.noise_mean, None if noise is None else noise.prior
        )
        posterior = propagate(model, tolerance=tolerance, start=start, run=run)
        return cls(values, latent, noise, model, posterior)

    def gradient(self) -> FloatArray:
        """Gradient of the log evidence with respect to ``Hyperparameters.vector``."""
        posterior = self.posterior
        values = [self.latent.gradient(posterior.latent)[0], posterior.mean_slope, posterior.noise_slope]
        if self.noise is not None and posterior.noise is not None:
            values += self.noise.gradient(posterior.noise)
        return np.array(values)


@dataclass(frozen=True, slots=True, eq=False)
class Choice:
    """Hyper-parameters with the largest evidence found.

    log_evidence: their log evidence. gradient: the largest derivative of the log evidence that points into
    the bounds, per row. evaluations: number of evaluations of the evidence. converged: whether L-BFGS ended
    by its own tolerance.
    """

    values: Hyperparameters
    log_evidence: float
    gradient: float
    evaluations: int
    converged: bool


def maximise(
    rows: Rows,
    start: Hyperparameters,
    *,
    max_iterations: int,
    largest_amplitude: float = AMPLITUDES[-1],
    tolerance: float = 1e-5,
    finished: int = 0,
    total: int | None = None,
    run: Run = Run(),
) -> Choice:
    """The hyper-parameters of the largest evidence near ``start``, by L-BFGS within bounds.

    tolerance: of expectation propagation, and of the projected gradient per row.
    finished, total: steps of the whole fit before this search, and in total, for the progress.
    run: reports stage ``"evidence"`` in steps, one per iteration. Raises Cancelled.
    """
    steps = _Steps(run, finished, max_iterations if total is None else total)
    search = _Search(rows, tolerance, steps)
    bounds = start.bounds(largest_amplitude)
    found = minimize(
        search,
        start.vector(),
        jac=True,
        method="L-BFGS-B",
        bounds=bounds,
        callback=lambda intermediate_result: steps.count(float(intermediate_result.fun)),
        options={"maxiter": max_iterations, "maxfun": 3 * max_iterations, "gtol": tolerance, "ftol": 1e-7},
    )
    best = search.best
    inside = np.clip(best.vector + best.gradient, *np.transpose(bounds)) - best.vector
    return Choice(
        Hyperparameters.of(best.vector),
        best.value * len(rows.signs),
        float(np.abs(inside).max()),
        search.evaluations,
        bool(found.success),
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Point:
    """Log evidence per row, and its gradient, at hyper-parameters."""

    vector: FloatArray
    value: float
    gradient: FloatArray


class _Steps:
    """Progress of a fit of ``total`` steps, ``finished`` of which precede it."""

    def __init__(self, run: Run, finished: int, total: int) -> None:
        self.run, self._finished, self._total = run, finished, total

    def count(self, objective: float) -> None:
        """Count one more step."""
        self._finished = min(self._finished + 1, self._total)
        self.run.report("evidence", self._finished, self._total, objective)


class _Search:
    """Negative log evidence per row with its gradient; each posterior starts from the last one's sites."""

    def __init__(self, rows: Rows, tolerance: float, steps: _Steps) -> None:
        self._rows, self._tolerance, self._run = rows, tolerance, steps.run
        self._factors: Factors | None = None
        self.evaluations = 0
        self.best = _Point(np.zeros(0), -np.inf, np.zeros(0))

    def __call__(self, vector: FloatArray) -> tuple[float, FloatArray]:
        fitted = self._fitted(Hyperparameters.of(vector))
        self.evaluations += 1
        n = len(self._rows.signs)
        value, gradient = fitted.posterior.log_evidence / n, fitted.gradient() / n
        if not (np.isfinite(value) and np.isfinite(gradient).all()):
            return 1e10, np.zeros_like(vector)
        self._factors = fitted.posterior.factors
        if value > self.best.value:
            self.best = _Point(vector.copy(), value, gradient)
        return -value, -gradient

    def _fitted(self, values: Hyperparameters) -> Fitted:
        try:
            return Fitted.at(
                self._rows, values, tolerance=self._tolerance, start=self._factors, run=self._run
            )
        except np.linalg.LinAlgError:
            # Sites for other hyper-parameters may make the posterior improper; flat sites never do.
            return Fitted.at(self._rows, values, tolerance=self._tolerance, run=self._run)


def with_noise(values: Hyperparameters, log_width: float) -> Hyperparameters:
    """The starting point of GPC+: the optimum of GPC, with a noise process of the initial width."""
    return replace(values, noise=NoiseKernel(log_width, log(_FIRST_AMPLITUDE)))


@dataclass(frozen=True, slots=True)
class Query:
    """Expected results for a query, which has no x*.

    noise: variance of the noise. With constant noise it is exp(m_g); otherwise it is the variance with the
    smallest ``loss``; the paper leaves it open (below Eq. 9).
    loss: mean of −log probability of each row's label, by the posterior without the row's own site.
    """

    noise: float
    loss: float

    @classmethod
    def of(cls, fitted: Fitted) -> Query:
        """The results from the cavities of the latent process."""
        cavity, model = fitted.posterior.cavity, fitted.model
        margin = model.signs * (cavity.mean + model.mean)

        def loss(log_noise: float) -> float:
            return -float(log_ndtr(margin / np.sqrt(cavity.variance + np.exp(log_noise))).mean())

        log_noise = fitted.values.noise_mean
        if fitted.noise is not None:
            options = {"xatol": 1e-6}
            log_noise = float(minimize_scalar(loss, bounds=_NOISES, method="bounded", options=options).x)
        return cls(float(np.exp(log_noise)), loss(log_noise))


def _around(log_width: float) -> tuple[float, float]:
    return log_width - _FACTOR, log_width + _FACTOR
