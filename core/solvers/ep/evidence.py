"""Type-II maximum likelihood: widths, mean and noise of GPC and GPC+ by L-BFGS on the evidence.

The amplitude of the latent process is 1: another one is the same model with other noise and mean. So GPC has
(log γ, c, m_g), and GPC+ also (log γ_g, log a_g) of the process of the noise. The evidence is not convex;
GPC+ starts from the optimum of GPC.

The evidence of GPC+ is that of the labels given x and x*, and a query has x alone. Where x* tells the class,
a model that takes every row of a rare class for noise has much evidence and is of no use. So GPC+ replaces
GPC only if it gives the labels more probability by x alone, each row's by the posterior without its own site.
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
"""Widths stay within this factor of the first ones."""
_MEANS: Final = (-5.0, 5.0)
_NOISES: Final = (np.log(1e-3), np.log(1e3))
_LEAST_AMPLITUDE: Final = np.log(1e-3)
_FIRST_AMPLITUDE: Final = 0.5
AMPLITUDES: Final = (1.0, 10.0)
"""Upper bounds of a_g: noise of similar size everywhere, and if that helps of very different size."""


@dataclass(frozen=True, slots=True)
class NoiseKernel:
    """log γ_g and log a_g."""

    log_width: float
    log_amplitude: float


@dataclass(frozen=True, slots=True)
class Hyperparameters:
    """log γ of the latent process, its mean c, m_g, and the kernel of g; None: g is constant."""

    log_width: float
    mean: float = 0.0
    noise_mean: float = 0.0
    noise: NoiseKernel | None = None

    def vector(self) -> FloatArray:
        """As L-BFGS takes it, (3,) or (5,)."""
        values = [self.log_width, self.mean, self.noise_mean]
        if self.noise is not None:
            values += [self.noise.log_width, self.noise.log_amplitude]
        return np.array(values)

    @classmethod
    def of(cls, vector: FloatArray) -> Hyperparameters:
        """From ``vector``."""
        width, mean, noise_mean, *noise = (float(value) for value in vector)
        return cls(width, mean, noise_mean, NoiseKernel(*noise) if noise else None)

    def bounds(self, largest_amplitude: float) -> list[tuple[float, float]]:
        """Of each number, around this start."""
        found = [_around(self.log_width), _MEANS, _NOISES]
        if self.noise is not None:
            found += [_around(self.noise.log_width), (_LEAST_AMPLITUDE, log(largest_amplitude))]
        return found


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """Rows to learn from. signs: y = ±1, (n,). latent: distances of x. noise: of x*; None without any."""

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
        """Of the log evidence by the numbers of ``Hyperparameters.vector``."""
        posterior = self.posterior
        values = [self.latent.gradient(posterior.latent)[0], posterior.mean_slope, posterior.noise_slope]
        if self.noise is not None and posterior.noise is not None:
            values += self.noise.gradient(posterior.noise)
        return np.array(values)


@dataclass(frozen=True, slots=True, eq=False)
class Choice:
    """Hyper-parameters with the largest evidence found.

    log_evidence: there. gradient: the largest derivative of the log evidence that points into the bounds, by
    row. evaluations: of the evidence. converged: whether L-BFGS ended by its own tolerance.
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

    tolerance: of expectation propagation, and of the projected gradient by row.
    finished, total: steps of the whole fit before this search, and in all, for its progress.
    run: reports stage ``"evidence"`` in steps, one an iteration. Raises Cancelled.
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
    """Log evidence by row, and its gradient, at hyper-parameters."""

    vector: FloatArray
    value: float
    gradient: FloatArray


class _Steps:
    """Progress of a fit of ``total`` steps, ``finished`` of them before it begins."""

    def __init__(self, run: Run, finished: int, total: int) -> None:
        self.run, self._finished, self._total = run, finished, total

    def count(self, objective: float) -> None:
        """One more step."""
        self._finished = min(self._finished + 1, self._total)
        self.run.report("evidence", self._finished, self._total, objective)


class _Search:
    """Negative log evidence by row with its gradient; each posterior starts from the sites of the last."""

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
            # Sites of other hyper-parameters may make the posterior improper; flat ones never do.
            return Fitted.at(self._rows, values, tolerance=self._tolerance, run=self._run)


def with_noise(values: Hyperparameters, log_width: float) -> Hyperparameters:
    """Where GPC+ starts: at the optimum of GPC, with a process of the noise of the first width."""
    return replace(values, noise=NoiseKernel(log_width, log(_FIRST_AMPLITUDE)))


@dataclass(frozen=True, slots=True)
class Query:
    """What is known of a query, where there is no x*.

    noise: the variance of the noise. With constant noise it is exp(m_g). Otherwise it is the one with the
    smallest ``loss``; the paper leaves it open (below Eq. 9).
    loss: mean of −log of the probability of each row's label, by the posterior without its own site.
    """

    noise: float
    loss: float

    @classmethod
    def of(cls, fitted: Fitted) -> Query:
        """From the cavities of the latent process."""
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
